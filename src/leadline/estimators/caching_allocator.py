"""PyTorch's CUDA caching allocator, as far as it decides how much memory a sequence of tensors takes.

Constants and rules are those of c10/cuda/CUDACachingAllocator.cpp, as PyTorch documents them ("CUDA semantics, memory
management"): sizes rounded to 512 bytes, two pools, best fit, blocks split and merged, segments kept until memory is
short.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from leadline.core.units import MIB

ROUNDING_BYTES = 512
SMALL_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB


class OutOfMemory(Exception):
    """A request does not fit below the limit, whatever is given back."""


@dataclass(slots=True)
class Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours in the same segment."""

    serial: int
    size: int
    large: bool
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


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
    _pools: dict[bool, "_Pool"] = field(default_factory=lambda: {False: _Pool(), True: _Pool()})
    _ends: dict[bool, Block] = field(default_factory=dict)
    _blocks: int = 0

    def allocate(self, size_bytes: int) -> Block:
        """Take a block of at least ``size_bytes``."""
        size = max(ROUNDING_BYTES, -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES)
        large = size > SMALL_BYTES
        block = self._pools[large].best(size)
        if block is not None:
            self._forget(block)
        else:
            block = self._grown(size, large) if self.expandable else self._new_segment(size, large)
        self._split(block, size)
        self.allocated_bytes += block.size
        return block

    def release(self, block: Block) -> None:
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
        if block.after is None and self.expandable:
            self._ends[block.large] = block
        self._remember(block)

    def _new_segment(self, size: int, large: bool) -> Block:
        if not large:
            segment = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
        self._reserve(segment)
        return self._block(segment, large)

    def _grown(self, size: int, large: bool) -> Block:
        """Return a block at the end of a pool's one segment, grown by what the free end lacks."""
        page = LARGE_SEGMENT_BYTES if large else SMALL_SEGMENT_BYTES
        end = self._ends.get(large)
        there = end.size if end is not None and end.free else 0
        more = -(-(size - there) // page) * page
        self._reserve(more)
        if end is not None and end.free:
            self._forget(end)
            end.free, end.size = False, end.size + more
            return end
        block = self._block(more, large)
        block.before = end
        if end is not None:
            end.after = block
        self._ends[large] = block
        return block

    def _reserve(self, size: int) -> None:
        if self.limit_bytes is not None and self.reserved_bytes + size > self.limit_bytes:
            self._flush()
            if self.reserved_bytes + size > self.limit_bytes:
                raise OutOfMemory
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _flush(self) -> None:
        """Give back to the device what no tensor lies in: whole segments, or the free end of one that grows."""
        self.flushes += 1
        for block in [one for pool in self._pools.values() for one in pool.all()]:
            page = LARGE_SEGMENT_BYTES if block.large else SMALL_SEGMENT_BYTES
            if not self.expandable and block.before is None and block.after is None:
                self._forget(block)
                self.reserved_bytes -= block.size
            elif self.expandable and block.after is None and block.size >= page:
                self._forget(block)
                back = block.size // page * page
                self.reserved_bytes -= back
                block.size -= back
                if block.size:
                    self._remember(block)
                else:
                    self._cut_off(block)

    def _cut_off(self, block: Block) -> None:
        """Take the empty last block off a segment that grows."""
        del self._ends[block.large]
        if block.before is not None:
            block.before.after = None
            self._ends[block.large] = block.before

    def _block(self, size: int, large: bool) -> Block:
        self._blocks += 1
        return Block(self._blocks, size, large)

    def _split(self, block: Block, size: int) -> None:
        """Cut what is left over off the block, unless too little is left (512 bytes; 1 MiB in the large pool)."""
        rest = block.size - size
        if rest < ROUNDING_BYTES or (block.large and rest <= SMALL_BYTES and not self.expandable):
            return
        block.size = size
        remainder = self._block(rest, block.large)
        remainder.before, remainder.after = block, block.after
        if remainder.after is not None:
            remainder.after.before = remainder
        elif self.expandable:
            self._ends[block.large] = remainder
        block.after = remainder
        self._remember(remainder)

    def _remember(self, block: Block) -> None:
        block.free = True
        self._pools[block.large].add(block)

    def _forget(self, block: Block) -> None:
        block.free = False
        self._pools[block.large].remove(block)


def _serial(block: Block) -> int:
    return block.serial


class _Pool:
    """Free blocks, by their sizes: a step has few distinct ones, however many blocks, so that each change is quick."""

    __slots__ = ("_by_size", "_sizes")

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._by_size: dict[int, list[Block]] = {}

    def best(self, size: int) -> Block | None:
        """Return the oldest of the smallest blocks that hold ``size`` bytes; ``None`` if none does."""
        place = bisect_left(self._sizes, size)
        if place == len(self._sizes):
            return None
        return self._by_size[self._sizes[place]][0]

    def add(self, block: Block) -> None:
        """Take in a free block."""
        if block.size not in self._by_size:
            insort(self._sizes, block.size)
        insort(self._by_size.setdefault(block.size, []), block, key=_serial)

    def remove(self, block: Block) -> None:
        """Give out a block."""
        alike = self._by_size[block.size]
        del alike[bisect_left(alike, block.serial, key=_serial)]
        if not alike:
            del self._by_size[block.size]
            self._sizes.pop(bisect_left(self._sizes, block.size))

    def all(self) -> list[Block]:
        """Return all free blocks."""
        return [block for alike in self._by_size.values() for block in alike]
