"""PyTorch's CUDA caching allocator, as far as it decides the memory of a sequence of tensors.

Constants and rules are those of c10/cuda/CUDACachingAllocator.cpp, as PyTorch documents them ("CUDA semantics, memory
management"): sizes rounded to 512 bytes, two pools, best fit, blocks split and merged, segments kept until memory is
short.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush

from leadline.core.units import MIB

NOWHERE = -1  # no piece: no name is negative


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple that is not below ``size``."""
    return -(-size // multiple) * multiple


@dataclass(slots=True)
class FreeBlocks:
    """Free blocks by name (an address, or a creation number) and size in bytes.

    A removed block is only counted off. Its name leaves the heap when it comes first among those of its size. A
    change is logarithmic in the blocks. D bytes in blocks of u-byte units have at most √(2·D ÷ u) distinct sizes.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    _distinct: list[int] = field(default_factory=list)
    _by_size: dict[int, list[int]] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    def best(self, size: int) -> int:
        """Return the first of the smallest pieces of ``size`` bytes or more; ``NOWHERE`` if there is none."""
        place = bisect_left(self._distinct, size)
        if place == len(self._distinct):
            return NOWHERE
        smallest = self._distinct[place]
        alike, sizes = self._by_size[smallest], self.sizes
        while sizes.get(alike[0]) != smallest:
            heappop(alike)
        return alike[0]

    def add(self, name: int, size: int) -> None:
        """Add a block."""
        self.sizes[name] = size
        if size in self._counts:
            self._counts[size] += 1
            heappush(self._by_size[size], name)
        else:
            self._counts[size] = 1
            self._by_size[size] = [name]
            insort(self._distinct, size)

    def remove(self, name: int) -> int:
        """Remove a block and return its size."""
        size = self.sizes.pop(name)
        remaining = self._counts[size] - 1
        if remaining:
            self._counts[size] = remaining
        else:
            del self._counts[size], self._by_size[size]
            self._distinct.pop(bisect_left(self._distinct, size))
        return size


ROUNDING_BYTES = 512
SMALL_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB


class OutOfMemory(Exception):
    """A request does not fit below the limit, whatever is given back."""


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
    # Segment blocks by number: sizes, neighbours in the segment (or ``NOWHERE``), and pools. The columns hold plain
    # numbers, not objects. The garbage collector tracks objects, and the more of them live the more often it walks
    # through them and the graph.
    _size: list[int] = field(default_factory=list)
    _before: list[int] = field(default_factory=list)
    _after: list[int] = field(default_factory=list)
    _large: list[bool] = field(default_factory=list)
    _pools: tuple[FreeBlocks, FreeBlocks] = field(default_factory=lambda: (FreeBlocks(), FreeBlocks()))
    _ends: dict[bool, int] = field(default_factory=dict)

    def allocate(self, size_bytes: int) -> int:
        """Take a block of at least ``size_bytes`` and return its number."""
        size = round_up(size_bytes, ROUNDING_BYTES) or ROUNDING_BYTES
        large = size > SMALL_BYTES
        pool = self._pools[large]
        block = pool.best(size)
        if block != NOWHERE:
            pool.remove(block)
        else:
            block = self._grow(size, large=large) if self.expandable else self._new_segment(size, large=large)
        excess = self._size[block] - size
        if excess > SMALL_BYTES or (excess >= ROUNDING_BYTES and (self.expandable or not large)):
            self._split(block, size, excess, large=large)
        else:
            size += excess
        self.allocated_bytes += size
        return block

    def release(self, block: int) -> None:
        """Give a block back and merge it with its free neighbours."""
        large, size = self._large[block], self._size[block]
        pool = self._pools[large]
        self.allocated_bytes -= size
        if (before := self._before[block]) in pool.sizes:
            size += pool.remove(before)
            self._before[block] = further = self._before[before]
            if further != NOWHERE:
                self._after[further] = block
        if (after := self._after[block]) in pool.sizes:
            size += pool.remove(after)
            self._after[block] = further = self._after[after]
            if further != NOWHERE:
                self._before[further] = block
            elif self.expandable:
                self._ends[large] = block
        self._size[block] = size
        pool.add(block, size)

    def _make_block(self, size: int, before: int, after: int, *, large: bool) -> int:
        """Return the number of a new block; the older of two has the smaller number."""
        self._size.append(size)
        self._before.append(before)
        self._after.append(after)
        self._large.append(large)
        return len(self._size) - 1

    def _new_segment(self, size: int, *, large: bool) -> int:
        if not large:
            segment = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = round_up(size, LARGE_ROUNDING_BYTES)
        if self._exceeds_limit(segment):
            self._flush()
        self._reserve(segment)
        return self._make_block(segment, NOWHERE, NOWHERE, large=large)

    def _grow(self, size: int, *, large: bool) -> int:
        """Return a block at the end of a pool's one segment, grown by what the free end lacks."""
        if self._exceeds_limit(self._missing_bytes(size, large=large)):
            self._flush()
        more = self._missing_bytes(size, large=large)
        self._reserve(more)
        end = self._ends.get(large, NOWHERE)
        if end in self._pools[large].sizes:
            self._size[end] = self._pools[large].remove(end) + more
            return end
        block = self._make_block(more, end, NOWHERE, large=large)
        if end != NOWHERE:
            self._after[end] = block
        self._ends[large] = block
        return block

    def _missing_bytes(self, size: int, *, large: bool) -> int:
        """Return by how many bytes of whole pages a pool's one segment must grow to end in ``size`` free ones."""
        page = LARGE_SEGMENT_BYTES if large else SMALL_SEGMENT_BYTES
        end = self._ends.get(large, NOWHERE)
        return round_up(size - self._pools[large].sizes.get(end, 0), page)

    def _exceeds_limit(self, size: int) -> bool:
        return self.limit_bytes is not None and self.reserved_bytes + size > self.limit_bytes

    def _reserve(self, size: int) -> None:
        if self._exceeds_limit(size):
            raise OutOfMemory
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _flush(self) -> None:
        """Return unused memory to the device: free segments, or the free end of a growing one."""
        self.flushes += 1
        for pool, page in zip(self._pools, (SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES), strict=True):
            for block, size in list(pool.sizes.items()):
                alone = self._before[block] == self._after[block] == NOWHERE
                if not self.expandable and alone:
                    pool.remove(block)
                    self.reserved_bytes -= size
                elif self.expandable and self._after[block] == NOWHERE and size >= page:
                    pool.remove(block)
                    back = size // page * page
                    self.reserved_bytes -= back
                    self._size[block] -= back
                    if size > back:
                        pool.add(block, size - back)
                    else:
                        self._trim_segment(block)

    def _trim_segment(self, block: int) -> None:
        del self._ends[self._large[block]]
        if (before := self._before[block]) != NOWHERE:
            self._after[before] = NOWHERE
            self._ends[self._large[block]] = before

    def _split(self, block: int, size: int, excess: int, *, large: bool) -> None:
        """Split ``excess`` bytes off the block."""
        # Less than 512 bytes, or 1 MiB in the large pool, stay with the block.
        after = self._after[block]
        remainder = self._make_block(excess, block, after, large=large)
        self._size[block] = size
        self._after[block] = remainder
        if after != NOWHERE:
            self._before[after] = remainder
        elif self.expandable:
            self._ends[large] = remainder
        self._pools[large].add(remainder, excess)
