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
"""What runs as a kernel of its own, and reads its operands from memory."""


class FusionMode(StrEnum):
    """Whose traffic is counted: a compiler's, or that of a framework which runs each call by itself."""

    FUSED = "fused"
    EAGER = "eager"


@dataclass(slots=True)
class FusedKernel:
    """Nodes that run together; ``reads`` and ``writes`` are values in memory, aliases followed to their own.

    ``before`` has the bit of each kernel that must have run.
    """

    nodes: list[int]
    reads: list[int]
    writes: list[int]
    loop: int
    call: str = ""
    before: int = 0


class KernelMerger:
    """Kernels as they are joined; each set keeps what must run before it."""

    def __init__(self, program: FlatProgram, form: FusionMode, biased: set[int]) -> None:
        self.program, self.form, self.biased = program, form, biased
        self.kernels: list[FusedKernel] = []
        self.traits: list[tuple[object, ...]] = []
        self.maker: dict[int, int] = {}
        self.by_read: dict[int, list[int]] = {}

    def add(self, kernel: FusedKernel, stage: Stage) -> None:
        """Join a kernel to the first that takes it, else keep it by itself."""
        kernel.before = self._ancestors(kernel.reads)
        product = next((self.maker[value] for value in kernel.reads if value in self.biased), None)
        if product is not None:
            self._end(product, kernel)
            return
        traits = self._traits(kernel, stage)
        if traits:
            for place in self._candidates(kernel):
                if self.traits[place] == traits and not self._follows(kernel, place):
                    self._join(place, kernel)
                    return
        place = len(self.kernels)
        self.kernels.append(kernel)
        self.traits.append(traits)
        self._note(place, kernel)

    def _traits(self, kernel: FusedKernel, stage: Stage) -> tuple[object, ...]:
        """Return what kernels must have in common to be joined; () for one that never is."""
        nodes = [self.program.nodes[place] for place in kernel.nodes]
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
        found: dict[int, None] = {}
        largest = sorted(kernel.reads, key=lambda value: -element_count(self.program.values[value]))
        for value in largest[:6] if self.form is FusionMode.FUSED else largest:
            if self.form is FusionMode.FUSED and element_count(self.program.values[value]) * 4 < element_count(
                self.program.values[largest[0]]
            ):
                continue
            if value in self.maker:
                found[self.maker[value]] = None
            found.update(dict.fromkeys(self.by_read.get(value, ())))
        return list(found)

    def _follows(self, kernel: FusedKernel, place: int) -> bool:
        """Whether something between a kernel and the one at ``place`` must run before the one and after the other."""
        direct = {self.maker[value] for value in kernel.reads if value in self.maker}
        if place in direct and not self._same_elements(kernel, place):
            return True
        return any(self.kernels[one].before >> place & 1 for one in direct - {place})

    def _same_elements(self, kernel: FusedKernel, place: int) -> bool:
        """Whether what a kernel reads of the one at ``place`` has its own shape: else it waits for the whole of it."""
        size = max(element_count(self.program.values[value]) for value in kernel.writes)
        shared = [value for value in kernel.reads if self.maker.get(value) == place]
        return self.form is FusionMode.EAGER or all(
            element_count(self.program.values[value]) == size for value in shared
        )

    def _ancestors(self, reads: list[int]) -> int:
        found = 0
        for value in reads:
            if value in self.maker:
                place = self.maker[value]
                found |= 1 << place | self.kernels[place].before
        return found

    def _join(self, place: int, kernel: FusedKernel) -> None:
        into = self.kernels[place]
        into.nodes = sorted({*into.nodes, *kernel.nodes})
        into.writes = [*into.writes, *kernel.writes]
        into.reads = [value for value in dict.fromkeys((*into.reads, *kernel.reads)) if value not in into.writes]
        into.before |= kernel.before & ~(1 << place)
        self._note(place, kernel)

    def _end(self, place: int, kernel: FusedKernel) -> None:
        """Let a product write what the rest of its call makes of it."""
        into = self.kernels[place]
        self._join(place, kernel)
        into.writes = kernel.writes
        into.reads = [value for value in into.reads if value not in self.biased or self.maker.get(value) != place]

    def _note(self, place: int, kernel: FusedKernel) -> None:
        for value in kernel.writes:
            self.maker[value] = place
        for value in kernel.reads:
            self.by_read.setdefault(value, []).append(place)

    def ordered(self) -> list[FusedKernel]:
        """Return the kernels each after what it reads, and else in the program's order."""
        waits = [{self.maker[value] for value in one.reads if value in self.maker} - {place}
                 for place, one in enumerate(self.kernels)]  # fmt: skip
        followers: dict[int, list[int]] = {}
        for place, earlier in enumerate(waits):
            for one in earlier:
                followers.setdefault(one, []).append(place)
        ready = [(one.nodes[-1], place) for place, one in enumerate(self.kernels) if not waits[place]]
        heapify(ready)
        found: list[FusedKernel] = []
        while ready:
            place = heappop(ready)[1]
            found.append(self.kernels[place])
            for later in followers.get(place, ()):
                waits[later].discard(place)
                if not waits[later]:
                    heappush(ready, (self.kernels[later].nodes[-1], later))
        return found


def over_columns(program: FlatProgram, node: HloNode) -> bool:
    """Whether a reduction leaves the last dimension: it then runs across rows, and not within one kernel's."""
    rank = len(program.values[node.inputs[0]].shape)
    dims = node.numbers("dimensions")
    rows = [axis for axis in range(rank) if program.values[node.inputs[0]].shape[axis] > 1]
    return bool(dims) and bool(rows) and rows[-1] not in dims
