"""Join kernels that a compiler or a framework runs as one."""

from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush

from leadline.core.graph import Stage
from leadline.graphs.hlo.costs import base_opcode
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.module import element_count

LIBRARY = frozenset({
    "dot", "convolution", "gather", "scatter", "sort", "custom_call", "fft", "rng_bit_generator", "rng", "cholesky",
    "triangular_solve", "reduce_window", "select_and_scatter", "all_reduce", "all_gather",
    "reduce_scatter", "all_to_all", "collective_permute", "collective_broadcast", "ragged_all_to_all", "topk", "infeed",
    "outfeed", "send", "recv", "fusion", "copy", "copy_start", "dynamic_gather", "map", "batch_norm_training",
    "batch_norm_grad", "batch_norm_inference",
})  # fmt: skip
"""Opcodes that run as kernels of their own, and read their operands from memory."""


class FusionMode(StrEnum):
    """The system whose traffic is counted: a compiler, or a framework that runs each call by itself."""

    FUSED = "fused"
    EAGER = "eager"


@dataclass(slots=True)
class FusedKernel:
    """Nodes that run together.

    Attributes:
        reads: Values in memory that it reads, with aliases resolved.
        writes: Values in memory that it writes.
        call: Call of the user's program that it belongs to.
        before: Kernels that must have run, as a set of bits.
    """

    nodes: list[int]
    reads: list[int]
    writes: list[int]
    loop: int
    call: str = ""
    before: int = 0


class KernelMerger:
    """Merges kernels one after the other, and tracks which ones must run first."""

    def __init__(self, program: FlatProgram, form: FusionMode, biased: set[int]) -> None:
        self.program, self.form, self.biased = program, form, biased
        self.kernels: list[FusedKernel] = []
        self.traits: list[tuple[object, ...]] = []
        self.maker: dict[int, int] = {}
        self.by_read: dict[int, list[int]] = {}

    def add(self, kernel: FusedKernel, stage: Stage) -> None:
        """Merge a kernel into the first one that fits, else add it by itself."""
        kernel.before = self._ancestors(kernel.reads)
        product = next((self.maker[value] for value in kernel.reads if value in self.biased), None)
        if product is not None:
            self._extend_product(product, kernel)
            return
        traits = self._traits(kernel, stage)
        if traits:
            for position in self._candidates(kernel):
                if self.traits[position] == traits and not self._is_separated(kernel, position):
                    self._join(position, kernel)
                    return
        position = len(self.kernels)
        self.kernels.append(kernel)
        self.traits.append(traits)
        self._index(position, kernel)

    def _traits(self, kernel: FusedKernel, stage: Stage) -> tuple[object, ...]:
        """Return the properties that merged kernels have in common, or () for a kernel that is never merged."""
        nodes = [self.program.nodes[position] for position in kernel.nodes]
        if any(base_opcode(node) in LIBRARY or node.inner is not None for node in nodes) or not kernel.reads:
            return ()
        if self.form is FusionMode.EAGER:
            return () if kernel.call.startswith("#") else (kernel.call, stage, kernel.loop)
        most = max(
            element_count(self.program.values[value]) for node in nodes for value in (*node.inputs, *node.outputs)
        )
        reductions = {over_columns(self.program, node) for node in nodes if node.opcode == "reduce"}
        return (most, kernel.loop, True in reductions)

    def _candidates(self, kernel: FusedKernel) -> list[int]:
        candidates: dict[int, None] = {}
        largest = sorted(kernel.reads, key=lambda value: -element_count(self.program.values[value]))
        for value in largest[:6] if self.form is FusionMode.FUSED else largest:
            if self.form is FusionMode.FUSED and element_count(self.program.values[value]) * 4 < element_count(
                self.program.values[largest[0]]
            ):
                continue
            if value in self.maker:
                candidates[self.maker[value]] = None
            candidates.update(dict.fromkeys(self.by_read.get(value, ())))
        return list(candidates)

    def _is_separated(self, kernel: FusedKernel, position: int) -> bool:
        """Return whether a third kernel must run between a kernel and the one at ``position``."""
        direct = {self.maker[value] for value in kernel.reads if value in self.maker}
        if position in direct and not self._same_elements(kernel, position):
            return True
        return any(self.kernels[maker].before >> position & 1 for maker in direct - {position})

    def _same_elements(self, kernel: FusedKernel, position: int) -> bool:
        """Return whether the values read from the kernel at ``position`` have its shape; else it needs all of them."""
        size = max(element_count(self.program.values[value]) for value in kernel.writes)
        shared = [value for value in kernel.reads if self.maker.get(value) == position]
        return self.form is FusionMode.EAGER or all(
            element_count(self.program.values[value]) == size for value in shared
        )

    def _ancestors(self, reads: list[int]) -> int:
        ancestors = 0
        for value in reads:
            if value in self.maker:
                position = self.maker[value]
                ancestors |= 1 << position | self.kernels[position].before
        return ancestors

    def _join(self, position: int, kernel: FusedKernel) -> None:
        target = self.kernels[position]
        target.nodes = sorted({*target.nodes, *kernel.nodes})
        target.writes = [*target.writes, *kernel.writes]
        target.reads = [value for value in dict.fromkeys((*target.reads, *kernel.reads)) if value not in target.writes]
        target.before |= kernel.before & ~(1 << position)
        self._index(position, kernel)

    def _extend_product(self, position: int, kernel: FusedKernel) -> None:
        """Let a product write the result that the other nodes of its call make of it."""
        target = self.kernels[position]
        self._join(position, kernel)
        target.writes = kernel.writes
        target.reads = [
            value for value in target.reads if value not in self.biased or self.maker.get(value) != position
        ]

    def _index(self, position: int, kernel: FusedKernel) -> None:
        for value in kernel.writes:
            self.maker[value] = position
        for value in kernel.reads:
            self.by_read.setdefault(value, []).append(position)

    def ordered(self) -> list[FusedKernel]:
        """Return the kernels, each after those it reads from, else in the program's order."""
        waits = [{self.maker[value] for value in kernel.reads if value in self.maker} - {position}
                 for position, kernel in enumerate(self.kernels)]  # fmt: skip
        followers: dict[int, list[int]] = {}
        for position, earlier in enumerate(waits):
            for kernel in earlier:
                followers.setdefault(kernel, []).append(position)
        ready = [(kernel.nodes[-1], position) for position, kernel in enumerate(self.kernels) if not waits[position]]
        heapify(ready)
        kernels: list[FusedKernel] = []
        while ready:
            position = heappop(ready)[1]
            kernels.append(self.kernels[position])
            for later in followers.get(position, ()):
                waits[later].discard(position)
                if not waits[later]:
                    heappush(ready, (self.kernels[later].nodes[-1], later))
        return kernels


def over_columns(program: FlatProgram, node: HloNode) -> bool:
    """Return whether a reduction keeps the last dimension. It then runs across rows, not within one."""
    rank = len(program.values[node.inputs[0]].shape)
    dims = node.numbers("dimensions")
    rows = [axis for axis in range(rank) if program.values[node.inputs[0]].shape[axis] > 1]
    return bool(dims) and bool(rows) and rows[-1] not in dims
