"""What a trace records between two boundaries: ops, memory events, and the weights that are held."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple


class RecordedOp(NamedTuple):
    """One op as it ran. Tensors are tuples of shape, dtype, storage key and bytes touched."""

    func: Any
    stage: str
    inputs: Tuple[Tuple[Any, ...], ...]
    outputs: Tuple[Tuple[Any, ...], ...]
    args: Tuple[Any, ...]
    sources: Tuple[int, ...]
    extra: Optional[Dict[str, Any]] = None
    channels_last: bool = False


class TraceWindow:
    """Ops and memory events between two boundaries, and the memory held at the first of them."""

    def __init__(self, first: int, live: List[Tuple[int, int]]) -> None:
        self.first = first
        self.held = live
        self.ops: List[RecordedOp] = []
        self.events: List[Tuple[int, int, int]] = []
        # Ops whose first tensor is a view, into whose memory autograd adds nothing.
        self.to_views: Set[int] = set()
        self.parameters = self.parameter_bytes = 0


def count_weights(tensors: Iterable[Any], live: Dict[int, Tuple[int, int, Any]]) -> Tuple[int, int]:
    """Return count and bytes of the elements that parameters cover. Elements that several share count once."""
    # A sharded parameter may be one flat tensor and many views of it. Tied weights are one tensor in two modules.
    spans: Set[Tuple[int, int, int, int]] = set()
    for tensor in tensors:
        if tensor is None:
            continue  # it no longer exists
        local = getattr(tensor, "_local_tensor", tensor)
        key, start = local.untyped_storage()._cdata, local.storage_offset()
        if key in live and live[key][1] > 0:
            spans.add((key, start, start + local.numel(), local.element_size()))
    count = size = last = covered_end = 0
    for key, start, end, width in sorted(spans):
        if key != last:
            last, covered_end = key, 0
        new_elements = max(0, end - max(start, covered_end))
        covered_end = max(covered_end, end)
        count, size = count + new_elements, size + new_elements * width
    return count, size
