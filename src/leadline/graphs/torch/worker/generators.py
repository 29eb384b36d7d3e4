"""How often a generator of the script yields, read from its source without running it."""

import ast
import contextlib
import gc
import inspect
import math
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from leadline.graphs.torch.worker.expressions import (
    UnreadableExpression,
    assigned_names,
    called_name,
    evaluate,
    parse_file,
    read_locals,
    scope_of,
)
from leadline.graphs.torch.worker.loop_bounds import own_statements


def count_yields(node: Any, frame: Any, count_passes: Callable[[Any, Any], Optional[int]]) -> Optional[int]:
    """Return how often the generator that an expression names or calls yields; ``None`` if that is unknown.

    It yields in one place, under no condition but those of loops, whose passes ``count_passes`` returns, and
    conditions around these that can be read now.
    """
    try:
        state = _state(node, frame)
    except (UnreadableExpression, TypeError, ValueError):
        state = None
    if state is None or _reassigns_arguments(state[0]):
        running = _running(node, frame) if isinstance(node, ast.Call) else None
        state = state if running is None else _state_of(running)
    if state is None:
        return None
    code, names, scope_globals = state
    if hasattr(names.get("self"), "n_splits"):  # a splitter of scikit-learn
        return int(names["self"].n_splits)
    if code in _reading:  # it calls itself
        return None
    _reading.append(code)
    try:
        return _count(code, names, scope_globals, count_passes)
    finally:
        _reading.pop()


def yields_endlessly(node: Any, frame: Any) -> bool:
    """Return whether a call of a loop made a generator that yields within ``while True``, which nothing ends."""
    running = _running(node, frame)
    tree = None if running is None else parse_file(running.gi_code.co_filename)
    function = None if tree is None else scope_of(tree, types.SimpleNamespace(f_code=running.gi_code))
    ends = (ast.Break, ast.Return)
    return any(
        isinstance(part, ast.While)
        and isinstance(part.test, ast.Constant)
        and not any(isinstance(statement, ends) for statement in own_statements(part.body))
        for part in getattr(function, "body", ())
    )


_reading: List[Any] = []
"""Code of the generators that are being read."""


def _count(
    code: Any, names: Dict[str, Any], scope_globals: Any, count_passes: Callable[[Any, Any], Optional[int]]
) -> Optional[int]:
    tree = parse_file(code.co_filename)
    function: Any = None if tree is None else scope_of(tree, types.SimpleNamespace(f_code=code))
    if not isinstance(function, ast.FunctionDef):
        return None
    state = types.SimpleNamespace(
        f_locals=names, f_globals=scope_globals, f_code=types.SimpleNamespace(co_flags=0, co_filename=code.co_filename)
    )
    try:
        body = _taken(function.body, names, state)
    except UnreadableExpression:
        return None
    path = _path_to_yield(body)
    if path is None or any(isinstance(part, (ast.If, ast.Try)) for part in path):
        return None
    loops = [part for part in path if isinstance(part, (ast.For, ast.While))]
    if any(isinstance(part, (ast.Break, ast.Return, ast.YieldFrom)) for part in ast.walk(body)):
        return None
    passes = [count_passes(loop, state) for loop in loops]
    return None if None in passes else math.prod(passes)  # type: ignore[arg-type]


def _state(node: Any, frame: Any) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    """Return the code, variables and globals of a generator."""
    if isinstance(node, ast.Call):
        function = evaluate(node.func, frame)
        arguments = [evaluate(argument, frame) for argument in node.args]
        named = {word.arg: evaluate(word.value, frame) for word in node.keywords if word.arg}
        return _called(function, arguments, named)
    value = evaluate(node, frame)
    if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        return _state_of(value)
    return _called(getattr(type(value), "__iter__", None), [value], {})


def _reassigns_arguments(code: Any) -> bool:
    """Return whether a function changes its arguments, so that the generator that runs knows them better."""
    tree = parse_file(code.co_filename)
    function = None if tree is None else scope_of(tree, types.SimpleNamespace(f_code=code))
    arguments = code.co_varnames[: code.co_argcount]
    return not set(arguments).isdisjoint(assigned_names(getattr(function, "body", [])))


def _state_of(generator: Any) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    return generator.gi_code, read_locals(generator.gi_frame), generator.gi_frame.f_globals


def _running(node: Any, frame: Any) -> Any:
    """Return the generator that the call of a loop made; ``None`` if there are several of its function, or none."""
    try:
        function = evaluate(getattr(node, "func", node), frame)
        function = getattr(function, "__iter__", None) if isinstance(function, type) else function
        code = getattr(function, "__code__", None)
    except UnreadableExpression:
        code = None
    name = called_name(node)
    running = [
        value
        for value in gc.get_objects()
        if type(value) is types.GeneratorType
        and value.gi_frame is not None
        and (value.gi_code is code if code is not None else bool(name) and value.gi_code.co_name == name)
    ]
    owners = {id(read_locals(value.gi_frame).get("self", value)) for value in running}
    return running[0] if len(owners) == 1 else None  # the generators of one object yield alike


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


def _taken(statements: List[Any], names: Dict[str, Any], state: Any) -> ast.Module:
    """Return the statements that run, without the other branches of conditions outside of loops.

    The variables that they set before the loops are added to ``names``, as far as they can be read.
    """
    taken: List[Any] = []
    for statement in statements:
        if isinstance(statement, ast.If) and any(isinstance(part, ast.Yield) for part in ast.walk(statement)):
            branch = statement.body if evaluate(statement.test, state) else statement.orelse
            taken += _taken(branch, names, state).body
            continue
        taken.append(statement)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            with contextlib.suppress(UnreadableExpression):
                names.setdefault(statement.targets[0].id, evaluate(statement.value, state))
    return ast.Module(body=taken, type_ignores=[])


def _path_to_yield(body: ast.Module) -> Optional[List[Any]]:
    """Return the statements around the only ``yield`` of a function's body, or ``None`` if there are several."""
    paths: List[List[Any]] = []

    def visit(node: Any, path: List[Any]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp)):
                continue
            if isinstance(child, ast.Yield):
                paths.append([*path, node])
            visit(child, [*path, node])

    visit(body, [])
    return paths[0] if len(paths) == 1 else None
