"""glibc's heap under a step's allocations: what stays resident, and what is fetched afresh from the kernel."""

import heapq
from dataclasses import dataclass, field

from leadline.core.graph import OpGraph

MMAP_THRESHOLD = 128 * 1024
MMAP_THRESHOLD_MAX = 32 * 2**20
"""``M_MMAP_THRESHOLD`` and ``DEFAULT_MMAP_THRESHOLD_MAX`` of a 64-bit glibc (``man 3 mallopt``)."""

STEPS = 3
"""Steps to run until thresholds and the heap's top have settled; the last one is reported."""


@dataclass(slots=True)
class _Heap:
    """Sizes only: a free list by best fit, a top that grows and is trimmed, and mapped blocks beside it."""

    threshold: int = MMAP_THRESHOLD
    free: list[int] = field(default_factory=list)
    used: int = 0
    mapped: int = 0
    fresh: int = 0
    peak: int = 0

    def take(self, size: int) -> bool:
        """Allocate; return whether the block was mapped on its own."""
        if size >= self.threshold:
            self.mapped += size
            self.fresh += size
            self._mark()
            return True
        fit = min((block for block in self.free if block >= size), default=None)
        if fit is None:
            self._grow(size)
        else:
            self.free.remove(fit)
            if fit - size >= 4096:
                self.free.append(fit - size)
        self.used += size
        self._mark()
        return False

    def _grow(self, size: int) -> None:
        """Merge the largest free block with new memory, as the top of a heap does."""
        largest = max(self.free, default=0)
        if largest:
            self.free.remove(largest)
        self.fresh += size - largest

    def give(self, size: int, *, mapped: bool) -> None:
        """Free; a mapped block raises the threshold, a large free top goes back to the kernel."""
        if mapped:
            self.mapped -= size
            if self.threshold <= size <= MMAP_THRESHOLD_MAX:
                self.threshold = size + 1
            return
        self.used -= size
        self.free.append(size)
        if len(self.free) > 64:
            small, other = heapq.nsmallest(2, self.free)
            self.free.remove(small)
            self.free.remove(other)
            self.free.append(small + other)
        total = sum(self.free)
        if total > 2 * self.threshold and self.used < total // 8:
            self.free = [2 * self.threshold]

    def _mark(self) -> None:
        self.peak = max(self.peak, self.used + sum(self.free) + self.mapped)


def fresh_bytes(graph: OpGraph) -> float:
    """Return the bytes that one settled step takes fresh from the kernel, each paying a page fault."""
    return float(_run(graph)[1])


def resident_peak_bytes(graph: OpGraph) -> float:
    """Return the peak of the heap, mapped blocks included, over the first steps."""
    return float(_run(graph)[0])


def _run(graph: OpGraph) -> tuple[int, int]:
    heap = _Heap()
    held: dict[int, tuple[int, bool]] = {}
    fresh = 0
    given = {event.storage for event in graph.events if event.size_bytes < 0}
    for step in range(STEPS):
        heap.fresh = 0
        for event in graph.events:
            if event.size_bytes > 0 and event.storage not in held and (step == 0 or event.storage in given):
                held[event.storage] = (event.size_bytes, heap.take(event.size_bytes))
            elif event.size_bytes < 0 and event.storage in held:
                size, mapped = held.pop(event.storage)
                heap.give(size, mapped=mapped)
        fresh = heap.fresh
    return heap.peak, fresh
