"""glibc's heap under a step's allocations: what stays resident, and what is fetched afresh from the kernel.

The laws are those of ptmalloc as its manual pages and parameters state them (``man 3 mallopt``): best fit among freed
blocks, which merge with their neighbours; a top that grows and is given back; large blocks mapped on their own only
when neither serves, and a threshold for them that rises with each one freed.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory

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


def fresh_bytes(graph: OpGraph) -> float:
    """Return the bytes that one settled step takes fresh from the kernel, each page of them faulted in."""
    return fmean(fresh for _, fresh in _histories(graph))


def resident_peak_bytes(graph: OpGraph) -> float:
    """Return the peak of the heap, mapped blocks included, over the first steps."""
    return fmean(peak for peak, _ in _histories(graph))


def _histories(graph: OpGraph) -> list[tuple[int, int]]:
    script = _script(graph)
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


def _script(graph: OpGraph) -> list[tuple[int, int]]:
    """Return (storage, bytes) in the order of a step, with what kernels take and give back themselves."""
    first_update = next((n for n, op in enumerate(graph.ops) if op.stage is Stage.OPTIMIZER), len(graph.ops))
    state = [e for e in graph.events if e.op == 0 and e.category is StorageCategory.OPTIMIZER_STATE]
    early = {e.storage for e in state}
    timeline = [(e.op, 1, e.storage, e.size_bytes) for e in graph.events if e.op > 0 or e.storage not in early]
    timeline += [(first_update, 1, e.storage, e.size_bytes) for e in state]
    for number, op in enumerate(graph.ops):
        if op.kind is OpKind.CONV:
            timeline += _reorders(number, op)
    return [
        (storage, size) for _, _, storage, size in sorted(timeline, key=lambda one: one[:2]) if abs(size) >= SMALLEST
    ]


def _reorders(number: int, op: Op) -> list[tuple[int, int, int, int]]:
    """Return what a convolution takes beside its result: oneDNN copies the operands into a layout of its own.

    The operands' copies are given back before the result is taken, the result's copy after. Their storages are
    negative numbers, which no traced storage has.
    """
    inputs = sorted((4 * math.prod(spec.shape) for spec in op.inputs), reverse=True)[:2]
    result = sum(4 * math.prod(spec.shape) for spec in op.outputs[:1])
    names = [-3 * number - 1, -3 * number - 2, -3 * number - 3]
    sizes = [*inputs, *[0] * (2 - len(inputs)), result]
    taken = [(number, 0, name, size) for name, size in zip(names, sizes, strict=True)]
    given = [(number, 0, name, -size) for name, size in zip(names[:2], sizes[:2], strict=True)]
    return [*taken, *given, (number, 2, names[2], -result)]


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
