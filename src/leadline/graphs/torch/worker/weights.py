"""How many weights lie on the traced device."""

from typing import Any, Dict, Iterable, Set, Tuple


def count_weights(tensors: Iterable[Any], live: Dict[int, Tuple[int, int, Any]]) -> Tuple[int, int]:
    """Return count and bytes of the elements that parameters cover, those that several share once.

    A sharded parameter may be one flat tensor and many views of it, tied weights one tensor in two modules.

    Args:
        tensors: parameters, or ``None`` for one that is gone.
        live: memory on the device, by the key of its storage: serial number, bytes, whatever else.
    """
    spans: Set[Tuple[int, int, int, int]] = set()
    for tensor in tensors:
        if tensor is None:
            continue
        local = getattr(tensor, "_local_tensor", tensor)
        key, start = local.untyped_storage()._cdata, local.storage_offset()
        if key in live and live[key][1] > 0:
            spans.add((key, start, start + local.numel(), local.element_size()))
    count = size = last = reached = 0
    for key, start, end, width in sorted(spans):
        if key != last:
            last, reached = key, 0
        fresh = max(0, end - max(start, reached))
        reached = max(reached, end)
        count, size = count + fresh, size + fresh * width
    return count, size
