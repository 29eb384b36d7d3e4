"""How often ``for`` loops of the script pass, read from what they iterate over."""

import ast
import contextlib
import math
from typing import Any, Dict, List, Optional, Tuple

from leadline.graphs.torch.worker.expressions import (
    MOST_COUNT,
    UnreadableExpression,
    called_name,
    evaluate,
    imagined_frame,
    parse_file,
    target_name,
    without_progress,
)
from leadline.graphs.torch.worker.generators import count_yields, yields_endlessly
from leadline.graphs.torch.worker.iterated import is_wrapper, recorded
from leadline.graphs.torch.worker.loop_bounds import break_bound, while_bound
from leadline.graphs.torch.worker.loop_counters import varying_increment


def iterations(node: ast.For, frame: Any) -> Tuple[Any, Optional[int]]:
    """Return what a loop iterates over, without wrappers, and how often; ``None`` where either is unknown."""
    iterated = unwrap(node.iter, node.target)[0]
    iterable, count = _read_length(iterated, frame)
    zipped = [part for part in _zipped(node.iter) if called_name(part) not in ENDLESS]
    if zipped:  # the shortest ends the loop
        lengths = {part: _read_length(unwrap(part, None)[0], frame)[1] for part in zipped}
        ends = [size for part, size in lengths.items() if size is not None or not yields_endlessly(part, frame)]
        count = None if None in ends else min(ends, default=None)  # type: ignore[type-var]
    bound = break_bound(node, frame)
    if bound is not None and (count is None or bound[0] < count) and not bound[1]:
        count = bound[0]
    return iterable, count


def _read_length(node: Any, frame: Any) -> Tuple[Any, Optional[int]]:
    iterable, length = None, None
    try:
        iterable = evaluate(node, frame)
    except Exception:  # noqa: BLE001 - nor can the user's object be read if it raises any other error
        iterable, length = recorded(node, frame)
    if length is not None:
        return iterable, length
    try:
        iterable = without_progress(iterable)
        return iterable, len(iterable) if len(iterable) <= MOST_COUNT else None
    except Exception:  # noqa: BLE001 - any error of the user's object means that its length is unknown
        passes = None if iterable is None else _passes_of_iterator(iterable)
        return iterable, count_yields(node, frame, _passes) if passes is None else passes


_iterators: Dict[int, Optional[int]] = {}
"""Passes of iterators of the script's own, as read in their first pass."""


def _passes_of_iterator(iterator: Any) -> Optional[int]:
    """Return how often an object whose ``__next__`` compares an attribute with a bound gives an element."""
    if id(iterator) not in _iterators:
        method: Any = getattr(type(iterator), "__next__", None)
        code: Any = getattr(method, "__code__", None)
        tree = parse_file(code.co_filename) if code else None
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
        body = next(
            (node for node in functions if (node.name, node.lineno) == (code.co_name, code.co_firstlineno)), None
        )
        _iterators[id(iterator)] = None
        with contextlib.suppress(UnreadableExpression):
            if body is not None:
                place = imagined_frame({"self": iterator}, method.__globals__, code.co_filename)
                _iterators[id(iterator)] = _read_iterator(body, place)
    return _iterators[id(iterator)]


def _read_iterator(body: ast.FunctionDef, place: Any) -> Optional[int]:
    """Return the passes of an iterator in its first one, from the ``if`` that ends it and its counter's increment."""
    for node in ast.walk(body):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
            continue
        counter, operator = target_name(node.test.left), node.test.ops[0]
        added = [each for each in ast.walk(body)
                 if isinstance(each, ast.AugAssign) and target_name(each.target) == counter]  # fmt: skip
        raises = any(isinstance(each, ast.Raise) for each in node.body)
        if len(added) == 1 and isinstance(operator, (ast.GtE, ast.Eq) if raises else ast.Lt):
            is_counted = added[0].lineno < node.lineno
            left: float = evaluate(node.test.comparators[0], place) - evaluate(node.test.left, place)
            passes: int = math.ceil(left / evaluate(added[0].value, place)) + (0 if is_counted else 1)
            return passes
    return None


def _passes(node: Any, frame: Any) -> Optional[int]:
    if isinstance(node, ast.For):
        return iterations(node, frame)[1]
    times, counts_inner, counter = while_bound(node, frame) or (None, False, "")
    return None if counts_inner or varying_increment(node, counter, frame) else times


ENDLESS = ("cycle", "count", "repeat")
"""Functions of ``itertools`` whose results have no end."""


def _zipped(iterable: Any) -> List[Any]:
    """Return the arguments of ``zip`` within wrappers."""
    while is_wrapper(iterable):
        if called_name(iterable) == "zip":
            return list(iterable.args)
        iterable = iterable.args[0]
    return []


def unwrap(iterable: Any, target: Any) -> Tuple[Any, Any]:
    """Return the iterable within its wrappers, and the target of its elements, ``None`` if that is not known."""
    if isinstance(iterable, ast.Call) and called_name(iterable) == "trange" and iterable.args:
        iterable = ast.copy_location(ast.Call(func=ast.Name("range"), args=iterable.args, keywords=[]), iterable)
    while isinstance(iterable, ast.Call):
        if called_name(iterable) == "as_numpy_iterator" and isinstance(iterable.func, ast.Attribute):
            iterable = iterable.func.value
            continue
        if not is_wrapper(iterable):
            break
        if called_name(iterable) in ("enumerate", "zip"):
            place = 1 if called_name(iterable) == "enumerate" else 0
            target = target.elts[place] if isinstance(target, ast.Tuple) and len(target.elts) > place else None
        iterable = iterable.args[0]
    return iterable, target
