"""Peak device memory of one step: its storage events through a model of PyTorch's caching allocator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from leadline.core.fit import Moment
from leadline.core.graph import OpGraph, Stage, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device
from leadline.core.units import MIB
from leadline.estimators.caching_allocator import Block, CachingAllocator, OutOfMemory
from leadline.estimators.workspaces import with_workspaces

CONTEXT_BYTES = 500 * MIB
"""Device memory of the driver's context and the libraries' kernels; 300 to 700 MiB on data-centre GPUs."""


STANDING = (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE)
"""With the last of these that is taken before the first op a step begins."""
CLOSE = 0.01
"""How closely the least memory is found, as a share of it."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak of one step in bytes: what tensors hold, what the allocator has taken, and the peak by category.

    ``by_stage`` is the fullest moment of each stage: where a model is divided, another one may be the peak.
    """

    allocated_bytes: int
    reserved_bytes: int
    by_category: dict[StorageCategory, int]
    by_stage: dict[Stage, dict[StorageCategory, int]] = field(default_factory=dict)


def peak_memory(graph: OpGraph, *, expandable: bool = False) -> PeakMemory:
    """Play the storage events of ``graph`` through the allocator; time is n·log n in the number of events."""
    allocator = CachingAllocator(expandable=expandable)
    most, at_most = dict[Stage, int](), dict[Stage, dict[StorageCategory, int]]()
    for total, number, held in _played(graph, allocator):
        stage = _stage_at(graph, number)
        if total > most.get(stage, 0):
            most[stage], at_most[stage] = total, dict(held)
    fullest = max(most, key=lambda stage: most[stage], default=Stage.FORWARD)
    peak = most.get(fullest, 0)
    return PeakMemory(peak, max(allocator.peak_reserved_bytes, peak), at_most.get(fullest, {}), at_most)


def fills_device(job: TracedJob, device: Device) -> list[OpGraph]:
    """Return what fills a device in turn: the steps, of all sizes of batches, and the longest decode step.

    Steps of different sizes follow one another as in an epoch whose batches are each a record, the worst order: the
    blocks that a smaller batch left are too small for the next one, so that both stay reserved.
    """
    last = job.generation.last if job.generation else None
    graphs = (successive((job.step, *job.longer)), *([last] if last else []))
    return [with_workspaces(graph, device) for graph in graphs]


def successive(steps: Sequence[OpGraph]) -> OpGraph:
    """Return steps that follow one another as one graph.

    What a step finds held that the one before left (weights, optimizer state: by the name of the storage) is not taken
    again, and what it does not find is given back between them.
    """
    first, *later = steps
    if not later:
        return first
    ops, events = list(first.ops), list(first.events)
    for step in later:
        left = _left(events)
        found = {event.storage for event in step.events if event.size_bytes > 0}
        place = len(ops)
        events += [StorageEvent(place, one.storage, -one.size_bytes, one.category) for name, one in left.items()
                   if name not in found]  # fmt: skip
        events += [
            replace(event, op=event.op + place)
            for event in step.events
            if event.size_bytes < 0 or event.storage not in left
        ]
        ops += step.ops
    return replace(first, ops=tuple(ops), events=tuple(events))


def _left(events: Sequence[StorageEvent]) -> dict[int, StorageEvent]:
    """Return what was taken and not given back, by name."""
    left: dict[int, StorageEvent] = {}
    for event in events:
        if event.size_bytes > 0:
            left[event.storage] = event
        else:
            left.pop(event.storage, None)
    return left


def least_memory(graph: OpGraph, peak: PeakMemory, *, expandable: bool = False) -> int:
    """Return the least memory in which the step runs, in bytes, to a hundredth.

    Short of memory, the allocator gives back what no tensor lies in, so that a step may run in less than it reserves
    where there is plenty; what it needs then is what its tensors hold, and the gaps between them.
    """
    low, high = peak.allocated_bytes, peak.reserved_bytes
    while high - low > CLOSE * high:
        middle = (low + high) // 2
        low, high = (low, middle) if _runs_in(graph, middle, expandable=expandable) else (middle, high)
    return high


def timeline(graph: OpGraph, moments: int = 200) -> list[Moment]:
    """Return what is held at ``moments`` points of a step, evenly over what it takes: the fullest of each part.

    Not evenly over its ops, as layers that are alike are one op with a count.
    """
    first = max((n for n, event in enumerate(graph.events) if not event.op and event.category in STANDING), default=0)
    allocator, parts = CachingAllocator(), dict[int, tuple[int, Moment]]()
    for total, number, held in _played(graph, allocator):
        share = (number - first) / (len(graph.events) - first)
        part = int(share * moments)
        if share >= 0 and (part not in parts or total > parts[part][0]):
            kept = {kind.value: size for kind, size in held.items() if size}
            parts[part] = total, Moment(share, _stage_at(graph, number).value, kept, allocator.reserved_bytes)
    return [moment for _, (_, moment) in sorted(parts.items())]


def _stage_at(graph: OpGraph, event: int) -> Stage:
    """Return the stage of the op at which an event stands; what is taken after the last op is the last op's."""
    op = graph.events[event].op
    return graph.ops[min(op, len(graph.ops) - 1)].stage if graph.ops else Stage.FORWARD


def _runs_in(graph: OpGraph, limit_bytes: int, *, expandable: bool) -> bool:
    try:
        for _ in _played(graph, CachingAllocator(expandable=expandable, limit_bytes=limit_bytes)):
            pass
    except OutOfMemory:
        return False
    return True


def _played(graph: OpGraph, allocator: CachingAllocator) -> Iterator[tuple[int, int, dict[StorageCategory, int]]]:
    """Yield the bytes of all tensors after each storage event that takes some, its number, and what is held.

    What is held changes with the next event: keep a copy.
    """
    blocks: dict[int, tuple[Block, int, StorageCategory]] = {}
    held: dict[StorageCategory, int] = {}
    total = 0
    for number, event in enumerate(graph.events):
        size = event.size_bytes
        if size > 0:
            blocks[event.storage] = allocator.allocate(size), size, event.category
            total += size
            held[event.category] = held.get(event.category, 0) + size
            yield total, number, held
        elif event.storage in blocks:
            block, taken, category = blocks.pop(event.storage)
            allocator.release(block)
            total -= taken
            held[category] -= taken
