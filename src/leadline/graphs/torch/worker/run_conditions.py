"""Conditions in loops that only the run decides: they end a loop early, or leave the step of a pass out."""

import ast
from typing import Any

from leadline.graphs.torch.worker.expressions import (
    UnreadableExpression,
    assigned_names,
    called_name,
    evaluate,
    own_statements,
    source_text,
    target_name,
)
from leadline.graphs.torch.worker.loop_bounds import (
    breaks_now,
    find_comparison,
    holds_line,
    read_setting,
)

STEADY = {"isinstance", "hasattr", "callable", "is_available", "is_initialized", "get_rank", "get_world_size", "int"}
"""Functions that return the same in each pass."""

ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def early_end(loop: Any, frame: Any) -> str:
    """Return the first condition for a ``break`` or ``return`` that depends on the run, with its line, or nothing."""
    if breaks_now(loop.body, frame):
        return ""
    for node in own_statements(loop.body):
        if not isinstance(node, ast.If) or not any(
            isinstance(child, (ast.Break, ast.Return)) for child in (*node.body, *node.orelse)
        ):
            continue
        if (
            not _stays_false(node.test, loop, frame)
            and find_comparison(node.test, loop, frame, (ast.Gt, ast.GtE, ast.Eq)) is None
        ):
            return f"`if {source_text(node.test, frame)}` in line {node.lineno}"
    return ""


def skipped_by(loop: Any, frame: Any) -> str:
    """Return the first condition, with its line, by which only the run decides that a pass makes no step, or nothing.

    It is one for a ``continue`` above the current line on what the pass computes, or one around the line that compares
    it, as ``if seen - last_step >= wait`` does, or asks an object, as ``if len(memory) > batch_size`` does.
    """
    changed = set(assigned_names(loop.body))
    for node in own_statements(loop.body):
        if not isinstance(node, ast.If) or _stays_false(node.test, loop, frame):
            continue
        parts = list(ast.walk(node.test))
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        has_call = any(isinstance(part, ast.Call) and called_name(part) not in STEADY for part in parts)
        is_periodic = any(isinstance(part, ast.Mod) for part in parts)
        is_above = isinstance(node.body[-1], ast.Continue) and (node.end_lineno or 0) < frame.f_lineno
        is_around = holds_line(node.body, frame.f_lineno)
        asks = has_call and isinstance(node.test, (ast.Compare, ast.Call))
        compares = isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ORDERS)
        depends = not changed.isdisjoint(names)
        if not is_periodic and ((is_above and depends) or (is_around and (asks or (compares and depends)))):
            return f"`if {source_text(node.test, frame)}` in line {node.lineno}"
    return ""


def _stays_false(test: Any, loop: Any, frame: Any) -> bool:
    """Return whether a condition is false in all passes: a setting, or a conjunction with a setting."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_stays_false(operand, loop, frame) for operand in test.values)
    try:
        if isinstance(test, ast.Attribute):
            return read_setting(test, frame) is False
        assigned = [target_name(part) for node in ast.walk(loop) for part in getattr(node, "targets", [])]
        return isinstance(test, ast.Name) and test.id not in assigned and evaluate(test, frame) is False
    except UnreadableExpression:
        return False
