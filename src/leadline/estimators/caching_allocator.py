"""PyTorch's CUDA caching allocator, as far as it decides how much memory a sequence of tensors takes.

Constants and rules are those of c10/cuda/CUDACachingAllocator.cpp, as PyTorch documents them ("CUDA semantics, memory
management"): sizes rounded to 512 bytes, two pools, best fit, blocks split and merged, segments kept until memory is
short.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush

from leadline.core.units import MIB

ROUNDING_BYTES = 512
SMALL_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB

NOWHERE = -1
"""No block: what stands for a neighbour at either end of a segment."""


class OutOfMemory(Exception):
    """A request does not fit below the limit, whatever is given back."""


@dataclass(slots=True)
class _Blocks:
    """All pieces of segments there ever were, by number: sizes, neighbours in the segment, pool, and which are free.

    Columns of plain numbers rather than objects: those the interpreter's collector watches, and the more of them live,
    the more often it walks through them and through the graph beside them.
    """

    size: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    large: list[bool] = field(default_factory=list)
    free: list[bool] = field(default_factory=list)

    def make(self, size: int, before: int, after: int, *, large: bool) -> int:
        """Return the number of a new block, not free; the older of two has the smaller number."""
        self.size.append(size)
        self.before.append(before)
        self.after.append(after)
        self.large.append(large)
        self.free.append(False)
        return len(self.size) - 1


@dataclass(slots=True)
class CachingAllocator:
    """The allocator of one device.

    Requests up to 1 MiB share 2 MiB segments, up to 10 MiB take from 20 MiB segments, larger ones get a segment of
    their own rounded to 2 MiB. With ``expandable`` segments (PYTORCH_ALLOC_CONF=expandable_segments:True) each pool is
    one segment that grows at its end by as many pages of 2 or 20 MiB as a request lacks.

    Where a new segment would go beyond ``limit_bytes``, segments that are wholly free are given back to the device
    first; ``flushes`` counts how often.

    Raises:
        OutOfMemory: by ``allocate``, where that does not help.
    """

    expandable: bool = False
    limit_bytes: int | None = None
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    flushes: int = 0
    _blocks: _Blocks = field(default_factory=_Blocks)
    _pools: tuple["_Pool", "_Pool"] = field(init=False)
    _ends: dict[bool, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pools = _Pool(self._blocks), _Pool(self._blocks)

    def allocate(self, size_bytes: int) -> int:
        """Take a block of at least ``size_bytes`` and return its number."""
        size = -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES or ROUNDING_BYTES
        large = size > SMALL_BYTES
        block = self._pools[large].take(size)
        if block == NOWHERE:
            block = self._grown(size, large=large) if self.expandable else self._new_segment(size, large=large)
        rest = self._blocks.size[block] - size
        if rest > SMALL_BYTES or (rest >= ROUNDING_BYTES and (self.expandable or not large)):
            self._split(block, size, rest, large=large)
        else:
            size += rest
        self.allocated_bytes += size
        return block

    def release(self, block: int) -> None:
        """Give a block back and merge it with its free neighbours."""
        blocks = self._blocks
        sizes, free, large = blocks.size, blocks.free, blocks.large[block]
        pool, size = self._pools[large], sizes[block]
        self.allocated_bytes -= size
        if (before := blocks.before[block]) != NOWHERE and free[before]:
            pool.remove(before)
            size += sizes[before]
            blocks.before[block] = further = blocks.before[before]
            if further != NOWHERE:
                blocks.after[further] = block
        if (after := blocks.after[block]) != NOWHERE and free[after]:
            pool.remove(after)
            size += sizes[after]
            blocks.after[block] = further = blocks.after[after]
            if further != NOWHERE:
                blocks.before[further] = block
            elif self.expandable:
                self._ends[large] = block
        sizes[block] = size
        pool.add(block)

    def _new_segment(self, size: int, *, large: bool) -> int:
        if not large:
            segment = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
        if self._short_of(segment):
            self._flush()
        self._reserve(segment)
        return self._blocks.make(segment, NOWHERE, NOWHERE, large=large)

    def _grown(self, size: int, *, large: bool) -> int:
        """Return a block at the end of a pool's one segment, grown by what the free end lacks."""
        if self._short_of(self._lacking(size, large=large)):
            self._flush()
        more = self._lacking(size, large=large)
        self._reserve(more)
        blocks, end = self._blocks, self._ends.get(large, NOWHERE)
        if end != NOWHERE and blocks.free[end]:
            self._pools[large].remove(end)
            blocks.size[end] += more
            return end
        block = blocks.make(more, end, NOWHERE, large=large)
        if end != NOWHERE:
            blocks.after[end] = block
        self._ends[large] = block
        return block

    def _lacking(self, size: int, *, large: bool) -> int:
        """Return by how many bytes of whole pages a pool's one segment must grow to end in ``size`` free ones."""
        page = LARGE_SEGMENT_BYTES if large else SMALL_SEGMENT_BYTES
        end = self._ends.get(large, NOWHERE)
        there = self._blocks.size[end] if end != NOWHERE and self._blocks.free[end] else 0
        return -(-(size - there) // page) * page

    def _short_of(self, size: int) -> bool:
        return self.limit_bytes is not None and self.reserved_bytes + size > self.limit_bytes

    def _reserve(self, size: int) -> None:
        if self._short_of(size):
            raise OutOfMemory
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _flush(self) -> None:
        """Give back to the device what no tensor lies in: whole segments, or the free end of one that grows."""
        self.flushes += 1
        blocks = self._blocks
        for pool, page in zip(self._pools, (SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES), strict=True):
            for block in pool.all():
                size, alone = blocks.size[block], blocks.before[block] == blocks.after[block] == NOWHERE
                if not self.expandable and alone:
                    pool.remove(block)
                    self.reserved_bytes -= size
                elif self.expandable and blocks.after[block] == NOWHERE and size >= page:
                    pool.remove(block)
                    back = size // page * page
                    self.reserved_bytes -= back
                    blocks.size[block] -= back
                    if size > back:
                        pool.add(block)
                    else:
                        self._cut_off(block)

    def _cut_off(self, block: int) -> None:
        """Take the empty last block off a segment that grows."""
        blocks = self._blocks
        del self._ends[blocks.large[block]]
        if (before := blocks.before[block]) != NOWHERE:
            blocks.after[before] = NOWHERE
            self._ends[blocks.large[block]] = before

    def _split(self, block: int, size: int, rest: int, *, large: bool) -> None:
        """Cut ``rest`` bytes off the block; less than 512 bytes, in the large pool 1 MiB, are left where they are."""
        blocks = self._blocks
        after = blocks.after[block]
        remainder = blocks.make(rest, block, after, large=large)
        blocks.size[block] = size
        blocks.after[block] = remainder
        if after != NOWHERE:
            blocks.before[after] = remainder
        elif self.expandable:
            self._ends[large] = remainder
        self._pools[large].add(remainder)


class _Pool:
    """Free blocks by their sizes, the oldest of each first.

    A block that is merged is only counted off: it is dropped when it comes first among those of its size. Each change
    is thus logarithmic in the number of blocks, and a move within the list of distinct sizes, of which D bytes of
    memory hold √(D ÷ 256) at most, however many tensors a step has.
    """

    __slots__ = ("_blocks", "_by_size", "_counts", "_sizes")

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks = blocks
        self._sizes: list[int] = []
        self._by_size: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Give out the oldest of the smallest blocks that hold ``size`` bytes; ``NOWHERE`` if none does."""
        place = bisect_left(self._sizes, size)
        if place == len(self._sizes):
            return NOWHERE
        found = self._sizes[place]
        alike, free, sizes = self._by_size[found], self._blocks.free, self._blocks.size
        block = heappop(alike)
        while not free[block] or sizes[block] != found:
            block = heappop(alike)
        free[block] = False
        self._count_off(found)
        return block

    def add(self, block: int) -> None:
        """Take in a block, which is free from now."""
        self._blocks.free[block] = True
        size = self._blocks.size[block]
        if size in self._counts:
            self._counts[size] += 1
            heappush(self._by_size[size], block)
        else:
            self._counts[size] = 1
            self._by_size[size] = [block]
            insort(self._sizes, size)

    def remove(self, block: int) -> None:
        """Count a block as free no longer; its size must still be that with which it was taken in."""
        self._blocks.free[block] = False
        self._count_off(self._blocks.size[block])

    def _count_off(self, size: int) -> None:
        left = self._counts[size] - 1
        if left:
            self._counts[size] = left
        else:
            del self._counts[size], self._by_size[size]
            self._sizes.pop(bisect_left(self._sizes, size))

    def all(self) -> list[int]:
        """Return all free blocks."""
        free, sizes = self._blocks.free, self._blocks.size
        return [one for size, alike in self._by_size.items() for one in set(alike) if free[one] and sizes[one] == size]
