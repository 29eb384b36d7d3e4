"""glibc's heap under a step's allocations: what stays resident, and what is fetched afresh from the kernel.

The laws are those of ptmalloc as its manual pages and parameters state them (``man 3 mallopt``): best fit among freed
blocks, which merge with their neighbours; a top that grows and is given back; large blocks mapped on their own only
when neither serves, and a threshold for them that rises with each one freed.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from leadline.core.graph import OpGraph, OpKind, Stage, StorageCategory
from leadline.estimators.onednn import Processor, copies

PAGE = 4096
TOP_PAD = 128 * 1024
MMAP_THRESHOLD_MAX = 32 * 2**20
"""Defaults of a 64-bit glibc."""

MMAP_THRESHOLD = 944 * 1024
"""Where importing PyTorch 2.13 leaves the threshold that starts at 128 KiB, found as the smallest block then mapped
(glibc 2.36). The top is given back at twice the threshold.
"""

TRIM_MINIMUM = 64 * 1024
"""A freed piece smaller than this, merged, never gives the top back (``FASTBIN_CONSOLIDATION_THRESHOLD``)."""

ALIGNMENT_BYTES = 112
"""What a block aligned to 64 bytes takes beside its size: header, alignment, the least remainder."""

SMALLEST = 1024
"""Smaller blocks are served from caches of their own and move nothing."""

USUAL = Processor()

STEPS = 6
"""Steps to run until thresholds and the heap's shape have settled; the last one is reported."""

HISTORIES = 4
PINNED = 0.05
"""Share of a first step's blocks behind which some small object of the program comes to lie for good.

It keeps the top from going back. Which blocks nobody can know, so several histories are run and their mean is reported;
the share was chosen on page faults counted in real steps of 17 models.
"""


@dataclass(slots=True)
class _Heap:
    """Addresses and sizes of one arena: freed blocks by address and by size, a top, and mapped blocks beside it."""

    threshold: int = MMAP_THRESHOLD
    trim: int = 2 * MMAP_THRESHOLD
    top: int = 0
    end: int = TOP_PAD
    touched: int = 0
    mapped: int = 0
    fresh: int = 0
    peak: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)
    free_by_end: dict[int, int] = field(default_factory=dict)
    free_by_size: list[tuple[int, int]] = field(default_factory=list)
    pinned: float = PINNED
    chance: Random = field(default_factory=Random)

    def take(self, size: int) -> int:
        """Allocate ``size`` bytes, write them all, and return their address; a mapped block's is negative."""
        size = -(-size // 16) * 16 + ALIGNMENT_BYTES
        at = bisect_left(self.free_by_size, (size, -1))
        if at < len(self.free_by_size):
            found, address = self.free_by_size[at]
            self._forget(address)
            self._keep(address + size, found - size)
            return self._use(address, size)
        if self.end - self.top < size + 32:
            if size >= self.threshold:
                size = _pages(size + PAGE)
                self.mapped += size
                self.fresh += size
                self._mark()
                return -size
            self.end = self.top + _pages(size + TOP_PAD + 32)
        address, self.top = self.top, self.top + size
        if self.pinned and self.chance.random() < self.pinned:
            self._use(self.top, ALIGNMENT_BYTES)
            self.top += ALIGNMENT_BYTES
        return self._use(address, size)

    def give(self, address: int) -> None:
        """Free a block: a mapped one raises the thresholds; others merge, and a large top goes back to the kernel."""
        if address < 0:
            self.mapped += address
            if self.threshold < -address <= MMAP_THRESHOLD_MAX:
                self.threshold, self.trim = -address, -2 * address
            return
        size = self.sizes.pop(address)
        if address in self.free_by_end:
            before = self.free_by_end[address]
            size += self._forget(before)
            address = before
        if address + size in self.free:
            size += self._forget(address + size)
        if address + size == self.top:
            self.top = address
        else:
            self._keep(address, size)
        if size >= TRIM_MINIMUM and self.end - self.top >= self.trim:
            self.end -= max(self.end - self.top - TOP_PAD - 33, 0) // PAGE * PAGE
            self.touched = min(self.touched, self.end)

    def _use(self, address: int, size: int) -> int:
        self.sizes[address] = size
        self.fresh += max(address + size - max(self.touched, address), 0)
        self.touched = max(self.touched, address + size)
        self._mark()
        return address

    def _keep(self, address: int, size: int) -> None:
        if size > 0:
            self.free[address] = size
            self.free_by_end[address + size] = address
            insort(self.free_by_size, (size, address))

    def _forget(self, address: int) -> int:
        size = self.free.pop(address)
        del self.free_by_end[address + size]
        self.free_by_size.pop(bisect_left(self.free_by_size, (size, address)))
        return size

    def _mark(self) -> None:
        self.peak = max(self.peak, self.touched + self.mapped)


def fresh_bytes(graph: OpGraph, processor: Processor = USUAL) -> float:
    """Return the bytes that one settled step takes fresh from the kernel, each page of them faulted in."""
    return fmean(fresh for _, fresh in _histories(graph, processor))


def resident_peak_bytes(graph: OpGraph, processor: Processor = USUAL) -> float:
    """Return the peak of the heap, mapped blocks included, over the first steps."""
    return fmean(peak for peak, _ in _histories(graph, processor))


def _histories(graph: OpGraph, processor: Processor) -> list[tuple[int, int]]:
    script = _script(graph, processor)
    return [_run(graph, script, Random(seed)) for seed in range(HISTORIES)]  # noqa: S311 - chance, not secrecy


def _run(graph: OpGraph, script: list[tuple[int, int]], chance: Random) -> tuple[int, int]:
    """Return peak and last step's fresh bytes of a job's first steps.

    Optimizer state appears at the end of the first step; what a step leaves behind that it did not find, its
    gradients, is freed when the next one begins.
    """
    heap, held = _Heap(chance=chance), dict[int, int]()
    kept = {e.storage for e in graph.events if e.op == 0 and e.size_bytes > 0}
    kept -= {e.storage for e in graph.events if e.size_bytes < 0}
    passing = {e.storage for e in graph.events if e.size_bytes < 0}
    for _ in range(STEPS):
        heap.fresh = 0
        for storage in [one for one in held if one not in kept and one not in passing]:
            heap.give(held.pop(storage))
        for storage, size in script:
            if size > 0 and storage not in held:
                held[storage] = heap.take(size)
            elif size < 0 and storage in held:
                heap.give(held.pop(storage))
        heap.pinned = 0.0
    return heap.peak, heap.fresh


def live_peak_bytes(graph: OpGraph, processor: Processor = USUAL) -> int:
    """Return the peak of what a step on a CPU holds at once: its tensors, and the copies its convolutions make."""
    level = highest = 0
    for _, _, _, size in _timeline(graph, processor):
        level += size
        highest = max(highest, level)
    return highest


def _script(graph: OpGraph, processor: Processor) -> list[tuple[int, int]]:
    """Return (storage, bytes) in the order of a job's first step, in which the optimizer's state comes last."""
    first_update = next((n for n, op in enumerate(graph.ops) if op.stage is Stage.OPTIMIZER), len(graph.ops))
    state = {e.storage for e in graph.events if e.op == 0 and e.category is StorageCategory.OPTIMIZER_STATE}
    timeline = [
        (first_update, 1.0, storage, size) if op == 0 and storage in state else (op, place, storage, size)
        for op, place, storage, size in _timeline(graph, processor)
    ]
    ordered = sorted(timeline, key=lambda one: one[:2])
    return [(storage, size) for _, _, storage, size in ordered if abs(size) >= SMALLEST]


def _timeline(graph: OpGraph, processor: Processor) -> list[tuple[int, float, int, int]]:
    """Return (op, place within it, storage, bytes) in order: the traced events, and what convolutions copy.

    An op's own results come at place 1, 2 and so on, what it gives back after them. Storages of copies are negative
    numbers, which no traced storage has.
    """
    timeline: list[tuple[int, float, int, int]] = []
    taken: dict[int, int] = {}
    for event in graph.events:
        taken[event.op] = taken.get(event.op, 0) + (event.op > 0 and event.size_bytes > 0)
        timeline.append((event.op, float(taken[event.op]), event.storage, event.size_bytes))
    for number, op in enumerate(graph.ops):
        if op.kind is OpKind.CONV:
            first = -8 * (number + 1)
            timeline += [(number, place, first + name, size) for place, name, size in copies(op, processor) if size]
    return sorted(timeline, key=lambda one: one[:2])


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
