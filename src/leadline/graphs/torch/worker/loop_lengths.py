"""How often ``for`` loops of the script pass, read from what they iterate over."""

import ast
from typing import Any, List, Optional, Tuple

from leadline.graphs.torch.worker.expressions import MOST_COUNT, called_name, evaluate, gives_elements
from leadline.graphs.torch.worker.generators import count_yields, yields_endlessly
from leadline.graphs.torch.worker.loop_bounds import break_bound, varying_increment, while_bound


def iterations(node: ast.For, frame: Any) -> Tuple[Any, Optional[int]]:
    """Return what a loop iterates over, without wrappers, and how often; ``None`` where either is unknown."""
    iterated = unwrap(node.iter, node.target)[0]
    iterable, count = _read_length(iterated, frame)
    zipped = [part for part in _zipped(node.iter) if called_name(part) not in ENDLESS]
    if zipped:  # the shortest ends the loop
        lengths = {part: _read_length(part, frame)[1] for part in zipped}
        ends = [size for part, size in lengths.items() if size is not None or not yields_endlessly(part, frame)]
        count = None if None in ends else min(ends, default=None)  # type: ignore[type-var]
    bound = break_bound(node, frame)
    if bound is not None and (count is None or bound[0] < count) and not bound[1]:
        count = bound[0]
    return iterable, count


def _read_length(node: Any, frame: Any) -> Tuple[Any, Optional[int]]:
    iterable = None
    try:
        iterable = evaluate(node, frame)
        iterable = getattr(iterable, "iterable", iterable)
        return iterable, len(iterable) if len(iterable) <= MOST_COUNT else None
    except Exception:  # noqa: BLE001 - any error of the user's object means that its length is unknown
        return iterable, count_yields(node, frame, _passes)


def _passes(node: Any, frame: Any) -> Optional[int]:
    if isinstance(node, ast.For):
        return iterations(node, frame)[1]
    times, counts_inner, counter = while_bound(node, frame) or (None, False, "")
    return None if counts_inner or varying_increment(node, counter, frame) else times


ENDLESS = ("cycle", "count", "repeat")
"""Functions of ``itertools`` whose results have no end."""


def _zipped(iterable: Any) -> List[Any]:
    """Return the arguments of ``zip`` within wrappers."""
    while isinstance(iterable, ast.Call) and iterable.args and gives_elements(called_name(iterable)):
        if called_name(iterable) == "zip":
            return iterable.args
        iterable = iterable.args[0]
    return []


def unwrap(iterable: Any, target: Any) -> Tuple[Any, Any]:
    """Return the iterable within its wrappers, and the target of its elements, ``None`` if that is not known."""
    if isinstance(iterable, ast.Call) and called_name(iterable) == "trange" and iterable.args:
        iterable = ast.Call(func=ast.Name("range"), args=iterable.args, keywords=[])
    while isinstance(iterable, ast.Call):
        if called_name(iterable) == "as_numpy_iterator" and isinstance(iterable.func, ast.Attribute):
            iterable = iterable.func.value
            continue
        if not gives_elements(called_name(iterable)) or not iterable.args:
            break
        if called_name(iterable) in ("enumerate", "zip"):
            place = 1 if called_name(iterable) == "enumerate" else 0
            target = target.elts[place] if isinstance(target, ast.Tuple) and len(target.elts) > place else None
        iterable = iterable.args[0]
    return iterable, target
