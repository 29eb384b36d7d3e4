"""Counters of loops in the user's source: where they start, what they go up by, and what they count."""

import ast
import contextlib
import sys
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from leadline.graphs.torch.worker.expressions import (
    UnreadableExpression,
    assigned_names,
    called_name,
    evaluate,
    gives_elements,
    is_count,
    parse_file,
    source_text,
    target_name,
    without_progress,
)
from leadline.graphs.torch.worker.iterated import recorded


def current_setting(test: Any, frame: Any) -> Any:
    """Return the present value of a setting, as ``self.debug`` or ``trials is not None``; ``None`` if it is none."""
    with contextlib.suppress(UnreadableExpression):
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            return evaluate(test.left, frame) is not None
        return evaluate(test, frame) if isinstance(test, (ast.Name, ast.Attribute)) else None


def read_counter(loop: Any, name: str, frame: Any) -> Optional[Tuple[bool, float, float]]:
    """Return whether a counter counts steps, its start and increment; ``None`` if ``name`` is none.

    It counts steps if an inner loop increments it, or a condition under which the step is made. A counter that goes up
    under another condition, or is reset, counts something else, such as epochs without progress.
    """
    if not name:
        return None
    try:
        if is_variable_of(loop, name):
            counted = read_target(loop.iter, loop.target, name, frame)
            added = [each for each in loop.body if isinstance(each, ast.AugAssign) and target_name(each.target) == name]
            offset = sum(evaluate(added_expression(each, name), frame) for each in added)
            return None if counted is None else (counted[0], counted[1] + offset, counted[2])
        nodes, changes = _changes(loop, name, frame)
        increments = [evaluate(added_expression(node, name), frame) for node in changes]
        if not changes or not all(map(is_count, increments)):
            return None
        line, blocks = changes[0].lineno, (ast.For, ast.While, ast.If)
        around = [part for part in nodes if isinstance(part, blocks) and part is not loop and is_around(part, line)]
        around = [
            part for part in around if not isinstance(part, ast.If) or current_setting(part.test, frame) is not True
        ]
        conditions = [part for part in around if isinstance(part, ast.If)]
        # That of Accelerate tells that the optimizer makes a step.
        conditions = [part for part in conditions if not source_text(part.test, frame).endswith("sync_gradients")]
        if not all(_same_branch(part, line, frame.f_lineno) for part in conditions):
            return None
        is_counted = is_around(loop, line) and line < frame.f_lineno
        is_within = bool(around) or any(map(_is_conditional, changes))
        return is_within, _first_value(name, loop, frame, increments[0] if is_counted else 0), increments[0]
    except UnreadableExpression:
        return None


def _changes(loop: Any, name: str, frame: Any) -> Tuple[List[Any], List[Any]]:
    """Return the nodes of a loop, or of the methods it calls, that hold a change of a variable, and the changes."""
    nodes: List[Any] = list(ast.walk(loop))
    changes = [node for node in nodes if name in map(target_name, changed_targets(node))]
    if not changes and name.startswith("self."):
        nodes = called_methods(loop, frame)
        changes = [node for node in nodes if name in map(target_name, changed_targets(node))]
    return nodes, changes


_seen: Dict[Tuple[str, int, str], List[float]] = {}
"""Values that a variable had in turn at the steps within a loop, by file, line and name."""


def observed_counter(loop: Any, name: str, frame: Any) -> Optional[Tuple[bool, float, float]]:
    """Return what ``read_counter`` does, of a number that code out of sight raises alike from each watched step on."""
    if not name or is_variable_of(loop, name):
        return None
    if any(isinstance(change, ast.AugAssign) for change in _changes(loop, name, frame)[1]):
        return None  # it goes up where the source says, which is not in each step
    values = _observe(loop, name, frame)
    increments = {later - earlier for earlier, later in zip(values, values[1:])}  # noqa: B905, RUF007 - Python 3.9
    is_steady = len(increments) == 1 and min(increments) > 0
    return (True, values[0], increments.pop()) if is_steady else None


def _observe(loop: Any, name: str, frame: Any) -> List[float]:
    values = _seen.setdefault((frame.f_code.co_filename, loop.lineno, name), [])
    with contextlib.suppress(UnreadableExpression):
        value = evaluate(ast.parse(name, mode="eval").body, frame)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and values[-1:] != [value]:
            values.append(value)
    return values


def called_methods(loop: Any, frame: Any) -> List[Any]:
    """Return the nodes of the methods that a loop, or an expression in it, calls of its own object in the same file."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    called = {called_name(call) for call in calls if target_name(call.func).startswith("self.")}
    return list(methods_around(loop, frame, called))


def methods_around(loop: Any, frame: Any, names: Optional[Set[str]] = None) -> Iterator[Any]:
    """Yield the nodes of the methods of the class around a loop, or of those with these names."""
    tree = parse_file(frame.f_code.co_filename)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] if tree is not None else []
    for method in (method for kind in classes if is_around(kind, loop.lineno) for method in kind.body):
        if names is None or getattr(method, "name", "") in names:
            yield from ast.walk(method)


def varying_increment(loop: Any, counter: str, frame: Any) -> str:
    """Return the expression that a counter goes up by, if each pass computes it anew; else nothing."""
    computed = set(assigned_names(loop.body)) - {counter}
    for node in ast.walk(loop):
        if counter and counter in map(target_name, changed_targets(node)):
            with contextlib.suppress(UnreadableExpression):
                added = added_expression(node, counter)
                if any(isinstance(part, ast.Name) and part.id in computed for part in ast.walk(added)):
                    return source_text(added, frame)
    return ""


def is_variable_of(loop: Any, name: str) -> bool:
    """Return whether a name is a variable that a ``for`` loop sets."""
    return isinstance(loop, ast.For) and name in map(target_name, ast.walk(loop.target))


def read_target(iterable: Any, target: Any, name: str, frame: Any) -> Optional[Tuple[bool, float, float]]:
    """Return the start and increment of a loop's variable that counts, as ``read_counter`` does."""
    kind = called_name(iterable)
    if kind == "enumerate" and isinstance(target, ast.Tuple) and target_name(target.elts[0]) == name:
        starts = [*iterable.args[1:], *(word.value for word in iterable.keywords)]
        return False, evaluate(starts[0], frame) if starts else 0, 1
    if kind in ("range", "trange", "count") and target_name(target) == name:
        arguments = [evaluate(argument, frame) for argument in iterable.args]
        has_start = len(arguments) > (0 if kind == "count" else 1)
        place = 1 if kind == "count" else 2
        return False, arguments[0] if has_start else 0, arguments[place] if len(arguments) > place else 1
    if gives_elements(kind) and iterable.args:
        return read_target(iterable.args[0], target, name, frame)
    if target_name(target) != name:
        return None
    is_named = isinstance(iterable, (ast.Name, ast.Attribute))
    values = without_progress(evaluate(iterable, frame) if is_named else recorded(iterable, frame)[0])
    return (False, values.start, values.step) if isinstance(values, range) else None


def _first_value(name: str, loop: Any, frame: Any, counted: float) -> float:
    """Return the number that a counter starts at: a constant of its last assignment before the loop.

    Without one it is the value at the first step, less what is ``counted`` of the current pass, or else zero.
    """
    tree = parse_file(frame.f_code.co_filename)
    nodes = [tree, *ast.walk(tree)] if tree is not None else []
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and is_around(node, loop.lineno)]
    # An attribute is assigned in any method, a variable in the function of the loop.
    scope = ast.walk(tree) if "." in name and tree is not None else within_scope([*nodes[:1], *functions][-1:])
    before: List[Any] = [node for node in scope if isinstance(node, ast.Assign) and node.lineno < loop.lineno]
    values = [(node.lineno, value) for node in before for target in node.targets
              for part, value in _pairs(target, node.value) if target_name(part) == name]  # fmt: skip
    value = max(values, key=lambda pair: pair[0], default=(0, None))[1]
    if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
        return value.value
    seen = _observe(loop, name, frame)
    if len(seen) == 1:
        seen.insert(0, seen[0] - counted)
    return seen[0] if seen else 0


def _pairs(target: Any, value: Any) -> List[Tuple[Any, Any]]:
    """Return the targets of an assignment, also within tuples, with their values."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts))  # noqa: B905 - Python 3.9 has no strict
    return [(target, value)]


def changed_targets(node: Any) -> List[Any]:
    """Return what a statement assigns or increments."""
    return [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])


def added_expression(node: Any, name: str) -> Any:
    """Return the expression by which a statement increments a variable."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        value: Any = node.value
        return value.body if _is_conditional(node) else value
    total = node.value
    if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add) and target_name(total.left) == name:
        return total.right
    raise UnreadableExpression


def is_counted_within(loop: Any, name: str, frame: Any) -> bool:
    """Return whether a method that a loop calls, and that runs now, has incremented a variable in this pass."""
    lines = [change.lineno for change in _changes(loop, name, frame)[1]]
    inner = sys._getframe(1)
    while inner is not None and inner is not frame:
        code, is_same = inner.f_code, inner.f_code.co_filename == frame.f_code.co_filename
        if is_same and any(code.co_firstlineno < line < inner.f_lineno for line in lines):
            return True
        inner = inner.f_back  # type: ignore[assignment]
    return False


def _is_conditional(node: Any) -> bool:
    """Return whether a statement adds something under a condition only, as in ``steps += 1 if is_whole else 0``."""
    value = getattr(node, "value", None)
    return isinstance(value, ast.IfExp) and isinstance(value.orelse, ast.Constant) and value.orelse.value == 0


def outlives_loop(name: str, frame: Any) -> bool:
    """Return whether a counter is an attribute that keeps its count while the function of a loop is called again."""
    tree = parse_file(frame.f_code.co_filename)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
    resets = [node for function in functions if function.name != "__init__" for node in ast.walk(function)]
    return "." in name and not any(name in map(target_name, getattr(node, "targets", [])) for node in resets)


def is_around(node: Any, line: int) -> bool:
    """Return whether a line is one of those of a node."""
    return bool(node.lineno <= line <= (node.end_lineno or 0))


def _same_branch(condition: ast.If, line: int, other: int) -> bool:
    """Return whether two lines are in the same branch of a condition."""
    branches = (condition.body, condition.orelse)
    return any(
        all(branch[0].lineno <= place <= (branch[-1].end_lineno or 0) for place in (line, other))
        for branch in branches
        if branch
    )


def within_scope(scopes: List[Any]) -> Iterator[ast.AST]:
    """Yield the statements of scopes without those of functions and classes within them."""
    for scope in scopes:
        for child in ast.iter_child_nodes(scope):
            yield child
            if not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
                yield from within_scope([child])
