"""Peak device memory of one step, by PyTorch's caching allocator or XLA's buffer plan.

PyTorch: the step's storage events run through a model of the allocator. XLA assigns all buffers of a program before it
runs, temporary ones within one block. JAX preallocates three quarters of a GPU at its start and no more later ("GPU
memory allocation" in its documentation). A TPU's memory belongs to the program alone.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from msgspec import field

from leadline.core.fit import MemorySnapshot
from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, Stage, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import format_bytes
from leadline.core.workload import ModelKind, Workload
from leadline.estimators.memory.allocator import CachingAllocator, OutOfMemory
from leadline.estimators.memory.workspaces import add_workspaces

# A step begins after the last of these that is allocated before the first op.
PERSISTENT_CATEGORIES = (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE)
CLOSE = 0.01  # relative precision of the least memory


class PeakMemory(Frozen):
    """Peak of one step in bytes: allocated by tensors, reserved by the allocator, and by category."""

    allocated_bytes: int
    reserved_bytes: int
    by_category: dict[StorageCategory, int]
    # The fullest moment of each stage: in a divided model another stage may be the peak.
    by_stage: dict[Stage, dict[StorageCategory, int]] = field(default_factory=dict)


def peak_memory(graph: OpGraph, *, expandable: bool = False) -> PeakMemory:
    """Play the storage events of ``graph`` through the allocator; time is n·log n in the number of events."""
    moves, allocator = _allocation_moves(graph), CachingAllocator(expandable=expandable)
    deque(_replay(moves, allocator), maxlen=0)
    fullest = _fullest_moments(graph, moves)
    by_category = _category_breakdowns(graph, moves, {number for _, number in fullest.values()})
    peak, at = max(fullest.values(), key=lambda moment: moment[0], default=(0, 0))
    by_stage = {stage: by_category[number] for stage, (_, number) in fullest.items()}
    return PeakMemory(peak, max(allocator.peak_reserved_bytes, peak), by_category.get(at, {}), by_stage)


def device_memory_graphs(job: TracedJob, device: Device) -> list[OpGraph]:
    """Return the graphs that fill a device: steps of all batch sizes, and the longest decode step."""
    # Steps of different sizes follow in the worst order, each larger than all before. The blocks of a smaller batch are
    # too small for the next one, so both stay reserved.
    last = job.generation.last if job.generation else None
    graphs = (concatenate_steps((job.step, *job.longer)), *([last] if last else []))
    return [add_workspaces(graph, device) for graph in graphs]


def job_peak(job: TracedJob, device: Device) -> PeakMemory:
    """Return the largest peak of ``device_memory_graphs``."""
    peaks = [apply_xla_plan(graph, peak_memory(graph)) for graph in device_memory_graphs(job, device)]
    return max(peaks, key=lambda peak: peak.allocated_bytes)


def concatenate_steps(steps: Sequence[OpGraph]) -> OpGraph:
    """Return consecutive steps as one graph."""
    # Storages that persist from the step before (weights, optimizer state, matched by name) are not allocated again.
    # All others are freed between the steps.
    first, *later = steps
    if not later:
        return first
    ops, events = list(first.ops), list(first.events)
    for step in later:
        live = _live_storages(events)
        stored = {event.storage for event in step.events if event.size_bytes > 0}
        place = len(ops)
        events += [
            replace(allocation, op=place, size_bytes=-allocation.size_bytes)
            for name, allocation in live.items()
            if name not in stored
        ]
        events += [
            replace(event, op=event.op + place)
            for event in step.events
            if event.size_bytes < 0 or event.storage not in live
        ]
        ops += step.ops
    return replace(first, ops=tuple(ops), events=tuple(events))


def _live_storages(events: Sequence[StorageEvent]) -> dict[int, StorageEvent]:
    live: dict[int, StorageEvent] = {}
    for event in events:
        if event.size_bytes > 0:
            live[event.storage] = event
        else:
            live.pop(event.storage, None)
    return live


def find_least_memory(graph: OpGraph, peak: PeakMemory, *, expandable: bool = False) -> int:
    """Return the least memory in bytes in which the step runs, to 1 %."""
    # Short of memory, the allocator frees unused segments. A step may then run in less than it would reserve: its
    # tensors and the gaps between them.
    moves = _allocation_moves(graph)
    low, high = peak.allocated_bytes, peak.reserved_bytes
    while high - low > CLOSE * high:
        middle = (low + high) // 2
        try:
            deque(_replay(moves, CachingAllocator(expandable=expandable, limit_bytes=middle)), maxlen=0)
            high = middle
        except OutOfMemory:
            low = middle
    return high


def memory_timeline(graph: OpGraph, moments: int = 200) -> list[MemorySnapshot]:
    """Return the fullest moments of ``moments`` equal parts of a step's storage events."""
    # The parts are not equal in ops, because identical layers are one op with a count.
    first = max(
        (n for n, event in enumerate(graph.events) if not event.op and event.category in PERSISTENT_CATEGORIES),
        default=0,
    )
    moves, parts = _allocation_moves(graph), dict[int, tuple[int, int]]()
    reserved = dict(_replay(moves, CachingAllocator()))
    for number, total in _tensor_levels(moves):
        part = int((number - first) / (len(moves) - first) * moments)
        if number >= first and (part not in parts or total > parts[part][0]):
            parts[part] = total, number
    by_category, snapshots = _category_breakdowns(graph, moves, {number for _, number in parts.values()}), []
    for _, (_, number) in sorted(parts.items()):
        kept = {kind.value: size for kind, size in by_category[number].items() if size}
        share = (number - first) / (len(moves) - first)
        snapshots.append(MemorySnapshot(share, _stage_at(graph, number).value, kept, reserved[number]))
    return snapshots


def _stage_at(graph: OpGraph, event: int) -> Stage:
    """Return the stage of the op of an event; events after the last op belong to that op."""
    op = graph.events[event].op
    return graph.ops[min(op, len(graph.ops) - 1)].stage if graph.ops else Stage.FORWARD


def _allocation_moves(graph: OpGraph) -> list[int]:
    """Return the bytes each event allocates, or the inverted number (~) of the event it frees."""
    # Freeing an unknown storage is 0, which has no effect.
    moves, open_at = list[int](), dict[int, int]()
    for number, event in enumerate(graph.events):
        if event.size_bytes > 0:
            open_at[event.storage] = number
            moves.append(event.size_bytes)
        else:
            opened = open_at.pop(event.storage, None)
            moves.append(0 if opened is None else ~opened)
    return moves


def _replay(moves: Sequence[int], allocator: CachingAllocator) -> Iterator[tuple[int, int]]:
    """Yield each allocating move's number and the reserved bytes after it."""
    blocks = [0] * len(moves)
    for number, move in enumerate(moves):
        if move > 0:
            blocks[number] = allocator.allocate(move)
            yield number, allocator.reserved_bytes
        elif move:
            allocator.release(blocks[~move])


def _tensor_levels(moves: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the number of each move that takes memory, and the bytes of all tensors after it."""
    total = 0
    for number, move in enumerate(moves):
        if move > 0:
            total += move
            yield number, total
        elif move:
            total -= moves[~move]


def _fullest_moments(graph: OpGraph, moves: Sequence[int]) -> dict[Stage, tuple[int, int]]:
    """Return the most tensor bytes in each stage, and the number of the move that reaches them."""
    fullest = dict[Stage, tuple[int, int]]()
    op, stage, most = -1, Stage.FORWARD, 0
    for number, total in _tensor_levels(moves):
        if graph.events[number].op != op:
            op, stage = graph.events[number].op, _stage_at(graph, number)
            most = fullest[stage][0] if stage in fullest else 0
        if total > most:
            most = total
            fullest[stage] = total, number
    return fullest


def _category_breakdowns(
    graph: OpGraph, moves: Sequence[int], numbers: Collection[int]
) -> dict[int, dict[StorageCategory, int]]:
    """Return the bytes of each category that are held after each of the ``numbers`` moves."""
    breakdowns = dict[int, dict[StorageCategory, int]]()
    level = dict[StorageCategory, int]()
    for number, move in enumerate(moves[: max(numbers, default=-1) + 1]):
        if not move:
            continue
        category = graph.events[number if move > 0 else ~move].category
        level[category] = level.get(category, 0) + (move if move > 0 else -moves[~move])
        if number in numbers:
            breakdowns[number] = dict(level)
    return breakdowns


# Share of a GPU that JAX takes (`XLA_PYTHON_CLIENT_MEM_FRACTION`, `XLA_CLIENT_MEM_FRACTION` in newer releases).
TAKEN = 0.75
# Sources of graphs that XLA runs.
DIALECTS = ("stablehlo", "hlo")
XLA_PERSISTENT_CATEGORIES = (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE, StorageCategory.INPUT)


def apply_xla_plan(graph: OpGraph, peak: PeakMemory) -> PeakMemory:
    """Return the peak as XLA has it: the compiler's plan, or else the live bytes."""
    # The plan's temporary memory is divided among categories in the proportions of the live bytes.
    if graph.source not in DIALECTS:
        return peak
    if graph.planned_bytes is None:
        return PeakMemory(peak.allocated_bytes, peak.allocated_bytes, peak.by_category, peak.by_stage)
    standing = {kind: size for kind, size in peak.by_category.items() if kind in XLA_PERSISTENT_CATEGORIES and size}
    passing = {kind: size for kind, size in peak.by_category.items() if kind not in XLA_PERSISTENT_CATEGORIES and size}
    planned = max(graph.planned_bytes - sum(standing.values()), 0)
    alive = sum(passing.values())
    temporary = {kind: int(size * planned / alive) for kind, size in passing.items()} or {
        StorageCategory.TEMPORARY: planned
    }
    return PeakMemory(graph.planned_bytes, graph.planned_bytes, {**standing, **temporary}, peak.by_stage)


def usable_bytes(workload: Workload, device: Device) -> int | None:
    """Return how much of a device's memory a job can use, where that is known."""
    if device.memory_bytes is None or not _is_taken(workload, device):
        return device.memory_bytes
    return int(TAKEN * device.memory_bytes)


def describe_jax_memory(workload: Workload, device: Device) -> str:
    """Return what JAX does with a GPU's memory; nothing for other jobs and devices."""
    if device.memory_bytes is None or not _is_taken(workload, device):
        return ""
    return (
        f"JAX takes {format_bytes(TAKEN * device.memory_bytes)} of the device at its start, as nvidia-smi shows, and "
        "no more (XLA_PYTHON_CLIENT_MEM_FRACTION)"
    )


def _is_taken(workload: Workload, device: Device) -> bool:
    return workload.model.kind is ModelKind.JAX_FUNCTION and device.kind is DeviceKind.GPU
