"""Bytes of Python objects that forked loader workers copy by reading them."""

import sys
import types
from typing import Any, Iterable, Set

PAGE_BYTES = 4096
SAMPLED_ELEMENTS = 1000
"""Elements of a container that stand for all of them."""
MOST_OBJECTS = 200_000
"""Limit of the objects that are counted."""
LEAF_TYPES = (str, bytes, bytearray, int, float, complex, bool, type(None), range)
SHARED_TYPES = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""Types that hold no data, or that all objects share."""


def object_bytes(root: Any) -> int:
    """Return the bytes below ``root`` that merely reading it writes to, by counting references.

    Forked workers copy these pages. For a large object it is the first page alone. Tensors and arrays count as one
    object each. A long container is estimated from a sample of elements, evenly over it.
    """
    return int(_object_bytes(root, set()))


def _object_bytes(root: Any, visited: Set[int]) -> float:
    if id(root) in visited or len(visited) >= MOST_OBJECTS or isinstance(root, SHARED_TYPES):
        return 0.0
    visited.add(id(root))
    size = float(min(sys.getsizeof(root, 0), PAGE_BYTES))
    if isinstance(root, LEAF_TYPES):
        return size
    if isinstance(root, (list, tuple, set, frozenset, dict)):
        size = 64.0  # the header: reading leaves the array of elements unwritten
        if isinstance(root, dict):
            size += _sampled_bytes(root.keys(), len(root), visited)
            return size + _sampled_bytes(root.values(), len(root), visited)
        return size + _sampled_bytes(root, len(root), visited)
    attributes = getattr(root, "__dict__", None)
    values = list(attributes.values()) if isinstance(attributes, dict) else []
    return size + sum(_object_bytes(value, visited) for value in values)


def _sampled_bytes(elements: Iterable[Any], count: int, visited: Set[int]) -> float:
    """Return the bytes of all elements, scaled up from a sample of a long container."""
    if count <= SAMPLED_ELEMENTS:
        return sum(_object_bytes(element, visited) for element in list(elements))
    positions = {int(position * (count / SAMPLED_ELEMENTS)) for position in range(SAMPLED_ELEMENTS)}
    sampled = [element for position, element in enumerate(elements) if position in positions]
    sizes = [_object_bytes(element, visited) for element in sampled]
    return sum(sizes) * count / len(sizes)
