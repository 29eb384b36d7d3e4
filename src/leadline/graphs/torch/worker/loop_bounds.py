"""Ends of loops in the user's source: counters compared with bounds, and conditions for a ``break``."""

import ast
import contextlib
import math
from argparse import Namespace
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from leadline.graphs.torch.worker.expressions import (
    UnreadableExpression,
    called_name,
    evaluate,
    is_count,
    own_statements,
    parse_file,
    scope_of,
    target_name,
)
from leadline.graphs.torch.worker.loop_counters import (
    called_methods,
    changed_targets,
    current_setting,
    is_around,
    is_counted_within,
    is_variable_of,
    methods_around,
    observed_counter,
    read_counter,
    within_scope,
)


def breaks_now(statements: List[Any], frame: Any) -> bool:
    """Return whether a setting that is on, as ``--dry-run``, ends the loop of these statements in the current pass."""
    for node in statements:
        if isinstance(node, ast.If) and any(isinstance(child, ast.Break) for child in node.body):
            if isinstance(node.test, ast.Attribute) and read_setting(node.test, frame) is True:
                return True
        elif isinstance(node, ast.If) and _holds(node.test, frame) and breaks_now(node.body, frame):
            return True
    return False


def read_setting(test: ast.Attribute, frame: Any) -> Any:
    """Return an option of the command line, which stays as it is, ``None`` for any other attribute."""
    try:
        return evaluate(test, frame) if isinstance(evaluate(test.value, frame), Namespace) else None
    except UnreadableExpression:
        return None


def _holds(test: Any, frame: Any) -> bool:
    """Return whether an equation, as in ``if batch % 10 == 0``, is true now."""
    try:
        is_equation = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)
        return is_equation and bool(evaluate(test.left, frame) == evaluate(test.comparators[0], frame))
    except UnreadableExpression:
        return False


def steps_at_end(loop: Any, scope: Any, line: int) -> bool:
    """Return whether the end of a loop makes the step of ``line`` from what accumulated since the last whole step.

    Either a condition around the step names the last pass, too, or the code after the loop makes the same step.
    """
    around = [node for node in ast.walk(loop) if isinstance(node, ast.If) and holds_line(node.body, line)]
    for test in (
        node.test for node in around if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
    ):
        others = [each for each in test.values if not any(isinstance(part, ast.Mod) for part in ast.walk(each))]
        equations = [each for each in others if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq)]
        if equations and len(others) < len(test.values):
            return True
    steps = {ast.dump(call.func) for call in _step_calls(loop) if call.lineno <= line <= (call.end_lineno or line)}
    after = [node for node in own_statements(getattr(scope, "body", [])) if node.lineno > (loop.end_lineno or line)]
    plain = [node for node in after if isinstance(node, (ast.Expr, ast.Assign))]
    return any(ast.dump(call.func) in steps for node in plain for call in _step_calls(node))


def counts_on(loop: Any, scope: Any, line: int) -> bool:
    """Return whether the condition of a step at ``line`` counts the passes of a loop on when ``scope`` runs it again.

    It names the epoch, or a counter that nothing in ``scope`` sets back.
    """
    tests = [node.test for node in ast.walk(loop) if isinstance(node, ast.If) and holds_line(node.body, line)]
    parts: List[Any] = [part for test in tests for part in ast.walk(test)]
    counted = [node for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
               for node in ast.walk(part.left)]  # fmt: skip
    names = {target_name(node) for node in counted} - {""}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and not names.isdisjoint(map(target_name, node.targets)):
            names |= {target_name(part) for part in ast.walk(node.value)} - {""}
    added = {target_name(node.target) for node in ast.walk(loop) if isinstance(node, ast.AugAssign)}
    reset = {target_name(target) for node in ast.walk(scope) for target in getattr(node, "targets", [])}
    return any("epoch" in name for name in names) or not (names & added) <= reset


def holds_line(statements: List[Any], line: int) -> bool:
    """Return whether a line is one of these consecutive statements."""
    return bool(statements) and statements[0].lineno <= line <= (statements[-1].end_lineno or line)


def divisors(nodes: List[Any], frame: Any) -> Iterator[int]:
    """Yield each N above one of ``... % N`` within nodes, in their order."""
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            with contextlib.suppress(UnreadableExpression):
                value = evaluate(part.right, frame)
                if isinstance(value, int) and value > 1:
                    yield value


def _step_calls(node: Any) -> Iterator[ast.Call]:
    """Yield the calls of optimizers and gradient scalers within a statement."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and called_name(call) in ("step", "train_batch"):
            yield call


def while_bound(node: ast.While, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Return the passes of a ``while`` loop, whether they are steps within it, and the counter."""
    operators = (ast.Lt, ast.LtE, ast.NotEq)
    bound = find_comparison(node.test, node, frame, operators) or break_bound(node, frame)
    bound = bound or find_comparison(node.test, node, frame, operators, observed_counter)
    # A counter that an outer loop sets back, and that goes up within this one, tells neither passes nor steps.
    return None if bound is not None and bound[1] and _is_set_back(node, bound[2], frame) else bound


def _is_set_back(loop: Any, counter: str, frame: Any) -> bool:
    """Return whether a loop around this one assigns the counter anew in each pass."""
    tree = parse_file(frame.f_code.co_filename)
    within = set(map(id, ast.walk(loop)))
    nodes = [] if tree is None else list(ast.walk(scope_of(tree, frame)))
    outer = [node for node in nodes if isinstance(node, (ast.For, ast.While)) and is_around(node, loop.lineno)]
    parts = [part for node in outer for part in ast.walk(node) if id(part) not in within]
    return any(counter in map(target_name, getattr(part, "targets", [])) for part in parts)


def break_bound(loop: Any, frame: Any) -> Optional[Tuple[int, bool, str]]:
    """Find ``if counter >= bound: break`` directly in a loop, such a ``return``, or a ``break`` of the current pass."""
    if breaks_now(loop.body, frame):
        return 1 + (passes_before(loop, frame) or 0), False, ""
    operators = (ast.Gt, ast.GtE, ast.Eq)
    for node in _exits(loop, frame):
        bound = find_comparison(node.test, loop, frame, operators)
        if bound is not None:
            return bound[0] + _extra_rounds(loop, node, bound[2], frame), *bound[1:]
    for node in _exits(loop, frame):
        bound = find_comparison(node.test, loop, frame, operators, observed_counter)
        if bound is not None:  # a variable is still what it was at the step, while an attribute may count that step
            return bound[0] + int("." not in bound[2] and node.lineno > frame.f_lineno), *bound[1:]
    return None


def _exits(loop: Any, frame: Any) -> Iterator[ast.If]:
    """Yield the conditions that end a loop, also below one that holds, as ``if trials is not None``."""
    holding = (node for node in loop.body if isinstance(node, ast.If) and current_setting(node.test, frame) is True)
    direct = [*loop.body, *(child for node in holding for child in node.body)]
    for node in within_scope([loop]):
        if isinstance(node, ast.If):
            kinds = (ast.Break, ast.Return) if node in direct else ast.Return
            if any(isinstance(statement, kinds) for statement in node.body):
                yield node


def passes_before(loop: Any, frame: Any) -> Optional[int]:
    """Return the passes of a ``for`` loop before the current one, if its variable counts them."""
    if not isinstance(loop, ast.For):
        return None
    name = target_name(loop.target)
    if sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(loop.target)) > 1:
        return None  # as of `_`, a counter and a part of the batch
    parts: List[Any] = [node for statement in loop.body for node in ast.walk(statement)]
    targets = [[node.target] if isinstance(node, ast.For) else getattr(node, "targets", []) for node in parts]
    assigned = [part for each in targets for target in each for part in ast.walk(target) if isinstance(part, ast.Name)]
    if any(part.id == name and isinstance(part.ctx, ast.Store) for part in assigned):
        return None  # as of `_`, which several loops assign
    try:
        counted = read_counter(loop, name, frame)
        return None if counted is None else int((evaluate(ast.Name(name), frame) - counted[1]) // counted[2])
    except (UnreadableExpression, TypeError, ZeroDivisionError):
        return None


class CountedPasses(NamedTuple):
    """What a counter of passes was at the current line.

    ``before``: Passes before the current one, ``None`` if nothing counts them.
    ``holder``: Line of the loop that increments the counter, the loop itself or a loop within it.
    ``period``: N of a condition ``... % N`` around the current line, zero without.
    """

    before: Optional[int] = None
    holder: int = 0
    period: int = 0


def counted_passes(loop: ast.While, counter: str, frame: Any) -> CountedPasses:
    """Return what the counter of a loop counts at the current line of a frame."""
    try:
        counted = read_counter(loop, counter, frame)
        value = evaluate(ast.parse(counter, mode="eval").body, frame) if counted is not None else None
        if counted is None or not isinstance(value, (int, float)):
            return CountedPasses()
        nodes: List[Any] = list(ast.walk(loop))
        line = frame.f_lineno
        changes = [node.lineno for node in nodes if counter in map(target_name, changed_targets(node))]
        if not changes:  # a method that the loop calls counts, as at the end of an epoch
            before = int((value - counted[1]) // counted[2]) - int(is_counted_within(loop, counter, frame))
            return CountedPasses(before, loop.lineno)
        change = changes[0]
        holders = [node for node in nodes if isinstance(node, (ast.For, ast.While)) and is_around(node, change)]
        tests = [node.test for node in nodes if isinstance(node, ast.If) and holds_line(node.body, line)]
        period = max(divisors(tests, frame), default=0)
        before = int((value - counted[1]) // counted[2]) - int(change < line)
        return CountedPasses(before, max(holder.lineno for holder in holders), period)
    except (UnreadableExpression, SyntaxError, TypeError, ValueError):
        return CountedPasses()


def _extra_rounds(loop: Any, test: ast.If, counter: str, frame: Any) -> int:
    """Return the passes of the current line beyond those of a test that follows both the line and the increment."""
    # The loop itself increments its variable, whatever else adds to it in each pass.
    nodes: Iterator[Any] = iter(()) if is_variable_of(loop, counter) else ast.walk(loop)
    line = frame.f_lineno
    is_own = counter.startswith("self.") and not is_variable_of(loop, counter)
    elsewhere = line if is_own else math.inf  # a method that the current line calls counts
    increment = next((node.lineno for node in nodes if counter in map(target_name, changed_targets(node))), elsewhere)
    return int(test.lineno < increment) - int(line > test.lineno)


INVERSE = {ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div()}
MIRRORED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


def find_comparison(
    test: Any, loop: Any, frame: Any, operators: Tuple[type, ...], read: Any = read_counter
) -> Optional[Tuple[int, bool, str]]:
    """Find a counter of this loop compared with a bound. Return rounds, whether they are steps within it, counter."""
    if isinstance(test, ast.Compare):
        return _compared(test, loop, frame, operators, read) if len(test.ops) == 1 else None
    key = ast.dump(test)
    if key in _resolved:  # its value depends on itself, as in `done = done or step > limit`
        return None
    _resolved.append(key)
    try:
        is_negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and ast.Lt in operators
        kinds = (ast.Gt, ast.GtE, ast.Eq) if is_negated else operators
        parts = [test.operand] if is_negated else _parts(test, loop, frame)
        bounds = [find_comparison(part, loop, frame, kinds, read) for part in parts]
        return next((bound for bound in bounds if bound is not None), None)
    finally:
        _resolved.pop()


_resolved: List[str] = []
"""Conditions that are being read."""


def _parts(test: Any, loop: Any, frame: Any) -> List[Any]:
    """Return the conditions that a condition consists of, or stands for, as in ``if self.is_done(): break``."""
    if isinstance(test, ast.BoolOp):
        is_off = any(current_setting(operand, frame) is False for operand in test.values)
        return [] if is_off and isinstance(test.op, ast.And) else test.values
    if isinstance(test, (ast.Name, ast.Attribute)):
        return _named_conditions(target_name(test), loop, frame)
    if not isinstance(test, ast.Call) or test.args:
        return []
    nodes = called_methods(test, frame)
    returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    return [*(node.test for node in nodes if isinstance(node, ast.If) and _is_true(node.body)), *returned]


def _compared(
    test: ast.Compare, loop: Any, frame: Any, operators: Tuple[type, ...], read: Any
) -> Optional[Tuple[int, bool, str]]:
    sides, kind = (test.left, test.comparators[0]), type(test.ops[0])
    for (counter, limit), operator in ((sides, kind), (sides[::-1], MIRRORED.get(kind))):
        for part, bound in _moved(counter, limit) if operator in operators else ():
            rounds = _rounds(target_name(part), bound, operator, loop, frame, read)
            if rounds is not None and (bound is limit or not _changes_any(loop, bound, frame)):
                return rounds
    return None


def _changes_any(loop: Any, expression: Any, frame: Any) -> bool:
    """Return whether a loop, or a method that it calls, changes what an expression reads, as the best step so far."""
    read = {target_name(part) for part in ast.walk(expression)} - {""}
    nodes = [*ast.walk(loop), *called_methods(loop, frame)]
    return not read.isdisjoint(target_name(target) for node in nodes for target in changed_targets(node))


def _moved(counter: Any, limit: Any) -> Iterator[Tuple[Any, Any]]:
    """Yield both sides of a comparison, also with a part of the first moved to the second, as of ``step + first``."""
    yield counter, limit
    inverse = INVERSE.get(type(counter.op)) if isinstance(counter, ast.BinOp) else None
    if inverse is not None:
        parts = [(counter.left, counter.right), (counter.right, counter.left)]
        for part, other in parts[: 1 if isinstance(counter.op, ast.Sub) else 2]:
            yield from _moved(part, ast.BinOp(limit, inverse, other))


def _named_conditions(flag: str, loop: Any, frame: Any) -> List[Any]:
    """Return the conditions that a name in a loop stands for, or by which a statement makes it true."""
    nodes = [*ast.walk(loop), *(methods_around(loop, frame) if "." in flag else ())]
    tests = [node.value for node in getattr(loop, "body", ()) if isinstance(node, ast.Assign) and _sets(node, flag)]
    conditions: List[Any] = [node for node in nodes if isinstance(node, ast.If)]
    tests += [node.test for node in conditions if any(_sets(each, flag) and _is_on(each.value) for each in node.body)]
    return tests


def _sets(statement: Any, name: str) -> bool:
    return isinstance(statement, ast.Assign) and name in map(target_name, statement.targets)


def _is_on(value: Any) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_true(statements: List[Any]) -> bool:
    return isinstance(statements[-1], ast.Return) and _is_on(statements[-1].value)


def _rounds(name: str, limit: Any, operator: Any, loop: Any, frame: Any, read: Any) -> Optional[Tuple[int, bool, str]]:
    counted = read(loop, name, frame)
    try:
        bound = None if counted is None else evaluate(limit, frame)
    except UnreadableExpression:
        return None
    if counted is None or not is_count(bound):
        return None
    inner, start, increment = counted
    rounds = (bound - start) / increment
    return math.floor(rounds) + 1 if operator in (ast.Gt, ast.LtE) else math.ceil(rounds), inner, name
