"""glibc's heap during a step: resident memory, and pages faulted in from the kernel.

The rules are those of ptmalloc's manual page (``man 3 mallopt``). Freed blocks are reused by best fit and merge with
their neighbours. The top of the heap grows and is trimmed. Large blocks are mapped only when neither serves. The
mapping threshold rises with each mapped block that is freed.
"""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from statistics import fmean

from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, OpKind, Stage, StorageCategory
from leadline.estimators.memory.allocator import NOWHERE, FreeBlocks, round_up
from leadline.estimators.memory.onednn import Processor, operand_copies

PAGE = 4096
TOP_PAD = 128 * 1024
MMAP_THRESHOLD_MAX = 32 * 2**20  # defaults of a 64-bit glibc
# Mapping threshold after importing PyTorch 2.13 (it starts at 128 KiB), measured as the smallest block then mapped with
# glibc 2.36. It is 1.2 MB with PyTorch 2.14, and more with a script's other imports, which a trace measures. The top is
# trimmed at twice the threshold.
MMAP_THRESHOLD = 944 * 1024

# A freed piece smaller than this, merged, never gives the top back (`FASTBIN_CONSOLIDATION_THRESHOLD`).
TRIM_MINIMUM = 64 * 1024

ALIGNMENT_BYTES = 112  # overhead of a block aligned to 64 bytes: header, alignment, the least remainder
COPYING = (OpKind.CONV, OpKind.RNN)  # kinds of ops that oneDNN copies operands of
OP_PLACES = 2.0**20  # distance between ops in places of the blocks that they allocate
SMALLEST = 1024  # smaller blocks are served from caches of their own and move nothing
NOT_HELD = 1  # marks a block without an address: no address is odd
USUAL = Processor()

STEPS = 6  # steps to run until thresholds and the heap's shape have settled; the last one is reported
SETTLING = 3  # steps after which small objects reuse the places of the step before
HISTORIES = 4
# So many moves of blocks, over all histories, are enough for chance to even out: a longer step needs fewer histories.
# With four of them steps of 5,000 moves are foretold within a hundredth or so of what 16 give.
MOVES = 80_000

# Share of freed blocks that a small object blocks, in the steps before they settle. The overhead of an aligned block
# leaves small free pieces, and small objects take them. They outlive it, and the rest is too small for the next block
# of its size. In a separate process, the same blocks with one object each make the heap grow as much as real steps do;
# without objects it grows as little as predicted for none. The share is the best of 0.03, 0.04, 0.05 on the 97 points
# of `leadline bench memory`.
STOLEN = 0.05
# Share of a first step's blocks that a permanent small object follows, which keeps the top from being trimmed. Which
# blocks is random, so the mean of several histories is reported. The share was chosen on page faults of real steps of
# 17 models.
PINNED = 0.05


@dataclass(slots=True)
class _Heap:
    """One arena: freed blocks by address and size, the top, and mapped blocks."""

    threshold: int = MMAP_THRESHOLD
    top: int = 0
    end: int = TOP_PAD
    touched: int = 0
    mapped: int = 0
    fresh: int = 0
    peak: int = 0
    free: FreeBlocks = field(default_factory=FreeBlocks)
    free_by_end: dict[int, int] = field(default_factory=dict)
    pinned: float = PINNED
    stolen: float = 0.0
    chance: Random = field(default_factory=Random)

    def take(self, size: int) -> int:
        """Allocate and touch a block of ``size`` bytes, overhead included; return the address, negative if mapped."""
        if (address := self.free.best(size)) != NOWHERE:
            available = self._remove_free(address)
            if available > size:
                self._add_free(address + size, available - size)
            return self._touch(address, size)
        if self.end - self.top < size + 32:
            if size >= self.threshold:
                size = round_up(size + PAGE, PAGE)
                self.mapped += size
                self.fresh += size
                self.peak = max(self.peak, self.touched + self.mapped)
                return -size
            self.end = self.top + round_up(size + TOP_PAD + 32, PAGE)
        address = self._touch(self.top, size)
        self.top += size
        if self.pinned and self.chance.random() < self.pinned:
            self.top = self._touch(self.top, ALIGNMENT_BYTES) + ALIGNMENT_BYTES
        return address

    def give(self, address: int, size: int) -> None:
        """Free a block."""
        # A mapped block raises the thresholds. Others merge with neighbours, and a large top returns to the kernel.
        if address < 0:
            self.mapped += address
            if self.threshold < -address <= MMAP_THRESHOLD_MAX:
                self.threshold = -address
            return
        if self.stolen and self.chance.random() < self.stolen:
            size -= ALIGNMENT_BYTES
        if address in self.free_by_end:
            before = self.free_by_end[address]
            size += self._remove_free(before)
            address = before
        if address + size in self.free.sizes:
            size += self._remove_free(address + size)
        if address + size == self.top:
            self.top = address
        else:
            self._add_free(address, size)
        if size >= TRIM_MINIMUM and self.end - self.top >= 2 * self.threshold:
            self.end -= max(self.end - self.top - TOP_PAD - 33, 0) // PAGE * PAGE
            self.touched = min(self.touched, self.end)

    def _touch(self, address: int, size: int) -> int:
        end = address + size
        if end > self.touched:
            self.fresh += end - max(self.touched, address)
            self.touched = end
            self.peak = max(self.peak, end + self.mapped)
        return address

    def _add_free(self, address: int, size: int) -> None:
        self.free.add(address, size)
        self.free_by_end[address + size] = address

    def _remove_free(self, address: int) -> int:
        size = self.free.remove(address)
        del self.free_by_end[address + size]
        return size


def fresh_bytes(graph: OpGraph, processor: Processor = USUAL, mapped_from: int | None = None) -> float:
    """Return the bytes that one settled step faults in from the kernel.

    Its small objects reuse the places of the step before (``SETTLING``). ``mapped_from`` is the smallest block that is
    mapped when the job begins, in bytes.
    """
    return fmean(fresh for _, fresh in _histories(graph, processor, mapped_from, stolen=0.0))


def resident_peak_bytes(graph: OpGraph, processor: Processor = USUAL, mapped_from: int | None = None) -> float:
    """Return the peak of the heap, mapped blocks included, over the first steps."""
    return fmean(peak for peak, _ in _histories(graph, processor, mapped_from, stolen=STOLEN))


def _histories(
    graph: OpGraph, processor: Processor, mapped_from: int | None, *, stolen: float
) -> list[tuple[int, int]]:
    script = _script(graph, processor)
    histories = max(min(HISTORIES, MOVES // max(len(script.moves), 1)), 1)
    chances = (Random(seed) for seed in range(histories))  # noqa: S311 - chance, not secrecy
    return [_run(script, _Heap(mapped_from or MMAP_THRESHOLD, stolen=stolen, chance=chance)) for chance in chances]


class _Script(Frozen):
    """One step's moves over numbered blocks: ``n`` allocates block n, ``~n`` frees it."""

    sizes: "array[int]"
    moves: "array[int]"
    left_behind: "array[int]"  # blocks that outlive the step, such as gradients: freed when the next one begins


def _run(script: _Script, heap: _Heap) -> tuple[int, int]:
    """Return peak and last step's fresh bytes of a job's first steps."""
    # Optimizer state appears at the end of the first step. Where chance has no part in it, a step that finds the heap
    # as the one before it did goes like that one, and so do all that follow.
    sizes, addresses = script.sizes, array("q", [NOT_HELD]) * len(script.sizes)
    before: tuple[object, ...] = ()
    for number in range(STEPS):
        heap.fresh = 0
        if number == SETTLING:
            heap.stolen = 0.0
        for block in script.left_behind:
            if (address := addresses[block]) != NOT_HELD:
                heap.give(address, sizes[block])
                addresses[block] = NOT_HELD
        for move in script.moves:
            if move >= 0:
                if addresses[move] == NOT_HELD:
                    addresses[move] = heap.take(sizes[move])
            elif (address := addresses[~move]) != NOT_HELD:
                heap.give(address, sizes[~move])
                addresses[~move] = NOT_HELD
        heap.pinned = 0.0
        # All state that decides the future of the heap.
        after = (
            heap.threshold, heap.top, heap.end, heap.touched, heap.mapped, dict(heap.free.sizes),
            addresses[:],
        )  # fmt: skip
        if after == before and not heap.stolen:
            break
        before = after
    return heap.peak, heap.fresh


def live_peak_bytes(graph: OpGraph, processor: Processor = USUAL) -> int:
    """Return the peak of what a step on a CPU holds at once: its tensors, and oneDNN's copies."""
    return max(accumulate(_timeline(graph, processor)[1]), default=0)


def _script(graph: OpGraph, processor: Processor) -> _Script:
    """Return the moves in the order of a job's first step, in which the optimizer's state comes last."""
    state = {e.storage for e in graph.events if e.op == 0 and e.category is StorageCategory.OPTIMIZER_STATE}
    sizes, moves, blocks = array("q"), array("q"), dict[int, int]()
    for storage, size in zip(*_timeline(graph, processor, late=state), strict=True):
        if size >= SMALLEST and storage not in blocks:
            blocks[storage] = len(sizes)
            moves.append(len(sizes))
            sizes.append(round_up(size, 16) + ALIGNMENT_BYTES)
        elif size <= -SMALLEST and storage in blocks:
            moves.append(~blocks.pop(storage))
    standing = {e.storage for e in graph.events if e.op == 0 and e.size_bytes > 0}
    return _Script(sizes, moves, array("q", (block for storage, block in blocks.items() if storage not in standing)))


def _timeline(
    graph: OpGraph, processor: Processor, *, late: Collection[int] = ()
) -> tuple[Sequence[int], Sequence[int]]:
    """Return storages and bytes in order, negative when freed: traced events and oneDNN's copies."""
    # An op's own results come at place 1, 2 and so on within it, frees after them. `late` storages appear with the
    # first optimizer update instead of at the start. Copies have negative storage numbers, which no traced storage has.
    update = next((n for n, op in enumerate(graph.ops) if op.stage is Stage.OPTIMIZER), len(graph.ops))
    times, storages, sizes = list[float](), list[int](), list[int]()
    results = dict[int, int]()
    for event in graph.events:
        at, size = event.op, event.size_bytes
        place = results[at] = results.get(at, 0) + (at > 0 and size > 0)
        times.append(update * OP_PLACES + 1 if not at and event.storage in late else at * OP_PLACES + place)
        storages.append(event.storage)
        sizes.append(size)
    for number, op in enumerate(graph.ops):
        if op.kind in COPYING:
            for within, name, size in operand_copies(op, processor):
                times.append(number * OP_PLACES + within)
                storages.append(name - 8 * (number + 1))
                sizes.append(size)
    order = sorted(range(len(times)), key=times.__getitem__)
    return [storages[position] for position in order], [sizes[position] for position in order]
