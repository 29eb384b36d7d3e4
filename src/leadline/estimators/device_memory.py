"""Peak device memory of one step: its storage events through a model of PyTorch's caching allocator."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from leadline.core.graph import OpGraph, StorageCategory
from leadline.core.units import MIB

ROUNDING_BYTES = 512
SMALL_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB

CONTEXT_BYTES = 500 * MIB
"""Device memory of the driver's context and the libraries' kernels; 300 to 700 MiB on data-centre GPUs."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak of one step in bytes: what tensors hold, what the allocator has taken, and the peak by category."""

    allocated_bytes: int
    reserved_bytes: int
    by_category: dict[StorageCategory, int]


@dataclass(slots=True)
class _Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours in the same segment."""

    serial: int
    size: int
    large: bool
    free: bool = False
    before: "_Block | None" = None
    after: "_Block | None" = None


@dataclass(slots=True)
class CachingAllocator:
    """PyTorch's CUDA caching allocator: best fit in two pools, blocks split and merged, segments kept.

    Sizes are rounded to 512 bytes; requests up to 1 MiB share 2 MiB segments, up to 10 MiB take from 20 MiB segments,
    larger ones get a segment of their own rounded to 2 MiB (c10/cuda/CUDACachingAllocator, documented constants).
    """

    reserved_bytes: int = 0
    allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    _pools: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {False: [], True: []})
    _free: dict[int, _Block] = field(default_factory=dict)
    _blocks: int = 0

    def allocate(self, size_bytes: int) -> _Block:
        """Take a block of at least ``size_bytes``."""
        size = max(ROUNDING_BYTES, -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES)
        large = size > SMALL_BYTES
        pool = self._pools[large]
        place = bisect_left(pool, (size, 0))
        if place < len(pool):
            block = self._free.pop(pool.pop(place)[1])
            block.free = False
        else:
            block = self._new_segment(size, large)
        self._split(block, size)
        self.allocated_bytes += block.size
        return block

    def release(self, block: _Block) -> None:
        """Give a block back and merge it with its free neighbours."""
        self.allocated_bytes -= block.size
        if (before := block.before) is not None and before.free:
            self._forget(before)
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if (after := block.after) is not None and after.free:
            self._forget(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._remember(block)

    def _new_segment(self, size: int, large: bool) -> _Block:
        if not large:
            segment = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return self._block(segment, large)

    def _block(self, size: int, large: bool) -> _Block:
        self._blocks += 1
        return _Block(self._blocks, size, large)

    def _split(self, block: _Block, size: int) -> None:
        """Cut what is left over off the block, unless too little is left (512 bytes; 1 MiB in the large pool)."""
        rest = block.size - size
        if rest < ROUNDING_BYTES or (block.large and rest <= SMALL_BYTES):
            return
        block.size = size
        remainder = self._block(rest, block.large)
        remainder.before, remainder.after = block, block.after
        if remainder.after is not None:
            remainder.after.before = remainder
        block.after = remainder
        self._remember(remainder)

    def _remember(self, block: _Block) -> None:
        block.free = True
        self._free[block.serial] = block
        insort(self._pools[block.large], (block.size, block.serial))

    def _forget(self, block: _Block) -> None:
        pool = self._pools[block.large]
        pool.pop(bisect_left(pool, (block.size, block.serial)))
        del self._free[block.serial]


def peak_memory(graph: OpGraph) -> PeakMemory:
    """Play the storage events of ``graph`` through the allocator; time is n·log n in the number of events."""
    allocator = CachingAllocator()
    held: dict[int, _Block] = {}
    live: dict[StorageCategory, int] = {}
    sizes: dict[int, tuple[int, StorageCategory]] = {}
    total = peak = 0
    at_peak: dict[StorageCategory, int] = {}
    for event in graph.events:
        if event.size_bytes > 0:
            held[event.storage] = allocator.allocate(event.size_bytes)
            sizes[event.storage] = (event.size_bytes, event.category)
            total += event.size_bytes
            live[event.category] = live.get(event.category, 0) + event.size_bytes
            if total > peak:
                peak, at_peak = total, dict(live)
        elif event.storage in held:
            allocator.release(held.pop(event.storage))
            size, category = sizes.pop(event.storage)
            total -= size
            live[category] -= size
    return PeakMemory(peak, max(allocator.peak_reserved_bytes, peak), at_peak)
