"""How often a generator of the script yields, read from its source without running it."""

import ast
import contextlib
import inspect
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from leadline.graphs.torch.worker.expressions import (
    UnreadableExpression,
    evaluate,
    imagined_frame,
    parse_file,
    read_locals,
    scope_of,
    yields_forever,
)
from leadline.graphs.torch.worker.iterated import recorded
from leadline.graphs.torch.worker.loop_bounds import break_bound, breaks_now
from leadline.graphs.torch.worker.run_conditions import early_end


def count_yields(node: Any, frame: Any, count_passes: Callable[[Any, Any], Optional[int]]) -> Optional[int]:
    """Return how often the generator that an expression names or calls yields; ``None`` if that is unknown.

    It yields in loops, whose passes ``count_passes`` returns, under conditions around these that can be read now, or
    under conditions within them of which both branches yield as often. ``early_end_of`` names what may end them.
    """
    try:
        code, names, scope_globals = _state(node, frame)
    except (UnreadableExpression, TypeError, ValueError):
        return None
    if hasattr(names.get("self"), "n_splits"):  # a splitter of scikit-learn
        return int(names["self"].n_splits)
    if code in _reading:  # it calls itself
        return None
    _reading.append(code)
    try:
        return _count(code, names, scope_globals, count_passes)
    finally:
        _reading.pop()


def early_end_of(node: Any, frame: Any) -> str:
    """Return the condition that may end a generator before it has yielded as often as it was counted, or nothing."""
    try:
        return _early_ends.get(_state(node, frame)[0], "") if _early_ends else ""
    except (UnreadableExpression, TypeError, ValueError):
        return ""


def yields_endlessly(node: Any, frame: Any) -> bool:
    """Return whether a call of a loop made a generator that yields within ``while True``, which nothing ends."""
    try:
        return yields_forever(_state(node, frame)[0])
    except (UnreadableExpression, TypeError, ValueError):
        return False


_reading: List[Any] = []
"""Code of the generators that are being read."""
_early_ends: Dict[Any, str] = {}
"""What may end the loops of a generator early, by its code."""


def _count(
    code: Any, names: Dict[str, Any], scope_globals: Any, count_passes: Callable[[Any, Any], Optional[int]]
) -> Optional[int]:
    tree = parse_file(code.co_filename)
    function: Any = None if tree is None else scope_of(tree, types.SimpleNamespace(f_code=code))
    if not isinstance(function, ast.FunctionDef):
        return None
    state = imagined_frame(names, scope_globals, code.co_filename)
    try:
        count = _count_in(function.body, state, count_passes, in_loop=False)
    except UnreadableExpression:
        return None
    loops = [node for node in ast.walk(function) if isinstance(node, (ast.For, ast.While))]
    if any(break_bound(loop, state) is not None for loop in loops):
        return None  # the last pass may yield or not
    _early_ends.update((code, end) for end in (early_end(loop, state) for loop in loops) if end)
    return count


def _count_in(statements: List[Any], state: Any, count_passes: Any, *, in_loop: bool) -> int:
    """Return how often statements yield; variables set before the loops are added to those of ``state``.

    Raises:
        UnreadableExpression: That depends on what the generator does when it runs.
    """
    total = 0
    for statement in statements:
        parts = list(ast.walk(statement))
        yields = any(isinstance(part, ast.Yield) for part in parts)
        ends = any(isinstance(part, (ast.Break, ast.Return)) for part in parts)
        is_condition = in_loop and isinstance(statement, ast.If) and not yields and not breaks_now([statement], state)
        is_loop = isinstance(statement, (ast.For, ast.While))
        if any(isinstance(part, ast.YieldFrom) for part in parts) or (ends and not (is_condition or is_loop)):
            raise UnreadableExpression
        if yields:
            total += _count_of(statement, state, count_passes, in_loop=in_loop)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) and not in_loop:
            with contextlib.suppress(UnreadableExpression):
                state.f_locals.setdefault(statement.targets[0].id, evaluate(statement.value, state))
    return total


def _count_of(statement: Any, state: Any, count_passes: Any, *, in_loop: bool) -> int:
    if isinstance(statement, (ast.Expr, ast.Assign)):
        return sum(isinstance(part, ast.Yield) for part in ast.walk(statement))
    if isinstance(statement, ast.With):
        return _count_in(statement.body, state, count_passes, in_loop=in_loop)
    if isinstance(statement, ast.If):
        branches = [statement.body, statement.orelse]
        if not in_loop:
            branches = branches[:1] if evaluate(statement.test, state) else branches[1:]
        counts = {_count_in(branch, state, count_passes, in_loop=in_loop) for branch in branches}
        if len(counts) == 1:
            return counts.pop()
    passes = count_passes(statement, state) if isinstance(statement, (ast.For, ast.While)) else None
    if passes is None:
        raise UnreadableExpression
    return int(passes * _count_in(statement.body, state, count_passes, in_loop=True))


def _state(node: Any, frame: Any) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    """Return the code, variables and globals of the generator that a loop goes through."""
    value = recorded(node, frame)[0]
    if value is None and isinstance(node, ast.Call):
        function = evaluate(node.func, frame)
        arguments = [evaluate(argument, frame) for argument in node.args]
        named = {word.arg: evaluate(word.value, frame) for word in node.keywords if word.arg}
        return _called(function, arguments, named)
    value = evaluate(node, frame) if value is None else value
    if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        return value.gi_code, read_locals(value.gi_frame), value.gi_frame.f_globals
    return _called(getattr(type(value), "__iter__", None), [value], {})


def _called(function: Any, arguments: List[Any], named: Dict[str, Any]) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    if inspect.ismethod(function):
        function, arguments = function.__func__, [function.__self__, *arguments]
    if not inspect.isgeneratorfunction(function):
        raise UnreadableExpression
    bound = inspect.signature(function).bind(*arguments, **named)
    bound.apply_defaults()
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())  # noqa: B905 - Python 3.9 has no strict
    outer = {name: cell.cell_contents for name, cell in cells}
    return function.__code__, {**outer, **bound.arguments}, function.__globals__
