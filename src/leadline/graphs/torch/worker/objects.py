"""How much of a data set are Python objects, whose pages forked workers copy by merely reading them."""

import sys
import types
from typing import Any, Iterable, List, Set

PAGE = 4096
SAMPLED = 1000
"""Elements of a container that stand for all of them."""
MOST = 200_000
"""Objects that are looked at."""
LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), range)
SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""What is no data, or is shared by everything."""


def object_bytes(root: Any) -> int:
    """Return the bytes of the Python objects below ``root`` that reading all of it writes a count of references to.

    Of a large object that is its first page alone. Tensors and arrays count as one object each, and of a long container
    a sample of elements, evenly over it, stands for all.
    """
    seen: Set[int] = set()
    return int(_below(root, seen))


def _below(one: Any, seen: Set[int]) -> float:
    if id(one) in seen or len(seen) >= MOST or isinstance(one, SHARED):
        return 0.0
    seen.add(id(one))
    own = float(min(sys.getsizeof(one, 0), PAGE))
    if isinstance(one, LEAVES):
        return own
    if isinstance(one, (list, tuple, set, frozenset, dict)):
        own = 64.0  # its header: the array of its elements is read only
        if isinstance(one, dict):
            return own + _sampled(one.keys(), len(one), seen) + _sampled(one.values(), len(one), seen)
        return own + _sampled(one, len(one), seen)
    held = getattr(one, "__dict__", None)
    return own + (sum(_below(value, seen) for value in list(held.values())) if isinstance(held, dict) else 0.0)


def _sampled(elements: Iterable[Any], count: int, seen: Set[int]) -> float:
    """Return the bytes of all elements, by some of them where there are many."""
    if count <= SAMPLED:
        return sum(_below(one, seen) for one in list(elements))
    stride = count / SAMPLED
    wanted = {int(place * stride) for place in range(SAMPLED)}
    found: List[float] = [_below(one, seen) for place, one in enumerate(elements) if place in wanted]
    return sum(found) * count / len(found)
