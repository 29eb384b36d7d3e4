"""Peak device memory of one step: its storage events through a model of PyTorch's caching allocator."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from leadline.core.fit import Moment
from leadline.core.graph import OpGraph, Stage, StorageCategory, StorageEvent
from leadline.core.units import MIB
from leadline.estimators.caching_allocator import Block, CachingAllocator, OutOfMemory
from leadline.estimators.workspaces import workspace_bytes

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


def with_workspaces(graph: OpGraph, *, transformed: bool) -> OpGraph:
    """Return the graph whose ops take their workspaces just before they run, and give them back after.

    ``transformed`` says whether the device transforms convolutions (``workspaces.py``). A graph without any is returned
    as it is.
    """
    events, place = list[StorageEvent](), 0
    name = max((event.storage for event in graph.events), default=0)
    for number, op in enumerate(graph.ops):
        size = workspace_bytes(op, transformed=transformed)
        if not size:
            continue
        while place < len(graph.events) and graph.events[place].op <= number:
            events.append(graph.events[place])
            place += 1
        name += 1
        events.append(StorageEvent(number, name, size, StorageCategory.TEMPORARY))
        events.append(StorageEvent(number, name, -size, StorageCategory.TEMPORARY))
    return replace(graph, events=(*events, *graph.events[place:])) if events else graph


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
