"""Group the nodes of a program into the kernels that run, each with the values it reads and writes.

The grouping is a compiler's. Chains of element-wise operations, and the reductions within their rows, run without
writing the values between. A value is written if a library kernel, a loop or the caller needs it, or if several kernels
do and recomputing it would read more than its own size. Kernels over the same elements become one if they read the same
tensor or one another. A reshape or a broadcast costs nothing by itself, nor does a transpose that a matrix product
reads.
"""

from collections.abc import Iterator
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from msgspec import Struct

from leadline.graphs.hlo.costs import base_opcode
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.module import OPCODES

RECOMPUTE_FACTOR = 1.25
"""A value is recomputed if its sources have at most this many times its own size."""

MOST_SOURCES = 24
"""Limit of the tensors that one kernel reads. Beyond it, the next value is written."""

IN_PLACE = "dynamic_update_slice"
"""Opcode that writes its second operand into the memory of its first."""


class FusedKernel(Struct):
    """Nodes that run together."""

    nodes: list[int]
    reads: list[int]  # values in memory that it reads, with aliases resolved
    writes: list[int]  # values in memory that it writes
    loop: int
    before: int = 0  # kernels that must have run, as a set of bits


def fuse_kernels(program: FlatProgram) -> list[FusedKernel]:
    """Return the kernels of a program that no compiler has fused, each after the kernels it reads from."""
    merger = _KernelMerger(program)
    for kernel in _Grouping(program).kernels():
        merger.add(kernel)
    return merger.ordered()


def compiled_kernels(program: FlatProgram) -> list[FusedKernel]:
    """Return one kernel per node of a program that a compiler has fused already. Aliases are followed."""
    memory = _memory(program, OPCODES["aliases"])
    return [
        FusedKernel([position], _distinct(memory, node.inputs), list(node.outputs), node.loop)
        for position, node in enumerate(program.nodes)
        if node.opcode not in OPCODES["aliases"] and node.opcode not in OPCODES["free"]
    ]


def _memory(program: FlatProgram, views: frozenset[str]) -> list[int]:
    """Return for each value the one whose memory it shows."""
    memory = list(range(len(program.values)))
    for node in program.nodes:
        if node.inner is None and node.opcode in views:
            memory[node.outputs[0]] = memory[node.inputs[0]]
    return memory


def _distinct(memory: list[int], values: tuple[int, ...]) -> list[int]:
    return list(dict.fromkeys(memory[value] for value in values))


def _fuses(node: HloNode) -> bool:
    opcode = base_opcode(node)
    return node.inner is None and opcode not in OPCODES["library"] and opcode not in OPCODES["collectives"]


def _fused_operands(node: HloNode) -> tuple[int, ...]:
    """Return the operands that a chain computes from. An update in place does not read what it changes."""
    return node.inputs[1:] if node.opcode == IN_PLACE else node.inputs


class _Grouping:
    """The values that are written, and the nodes between them."""

    def __init__(self, program: FlatProgram) -> None:
        self.program = program
        self.written: set[int] = set()
        self.sources: dict[int, frozenset[int]] = {}
        self.readers: dict[int, list[int]] = {}
        self.memory = _memory(self.program, OPCODES["aliases"])
        self.views = _memory(self.program, OPCODES["aliases"] | {"transpose"})
        for position, node in enumerate(self.program.nodes):
            for value in node.inputs:
                self.readers.setdefault(self.memory[value], []).append(position)

    def kernels(self) -> Iterator[FusedKernel]:
        """Decide which values are written, and group the nodes between."""
        self._mark_needed()
        self._find_sources()
        chosen = self._mark_shared()
        self._find_sources()
        self._prune(chosen)
        return self._roots()

    def _operand_memory(self, node: HloNode) -> list[int]:
        return self.views if node.opcode in OPCODES["any_order"] else self.memory

    def _mark_needed(self) -> None:
        """Mark values that must be in memory: results, loop state, operands of library kernels, sums of columns."""
        keep = [*self.program.outputs, *self.program.carried]
        for node in self.program.nodes:
            if not _fuses(node):
                base = self._operand_memory(node)
                keep.extend(base[value] for value in node.inputs)
                keep.extend(node.outputs)
            elif node.opcode == "reduce" and _over_columns(self.program, node):
                keep.extend(node.outputs)
            elif node.opcode == IN_PLACE:
                keep.extend((node.inputs[0], node.outputs[0]))
        self.written.update(self.memory[value] for value in keep)
        self.written.update(self.program.arguments)
        for node in self.program.nodes:
            if node.is_tensor_literal and self.program.values[node.outputs[0]].elements > 1:
                self.written.add(node.outputs[0])

    def _find_sources(self) -> None:
        """Find the values in memory that each value outside memory is computed from."""
        self.sources = {}
        for node in self.program.nodes:
            if not _fuses(node) or node.opcode in OPCODES["aliases"]:
                continue
            sources: set[int] = set()
            for value in () if node.opcode in OPCODES["free"] else _fused_operands(node):
                base = self.memory[value]
                sources.update((base,) if base in self.written else self.sources.get(base, ()))
            for value in node.outputs:
                self.sources[value] = frozenset(sources)
                if len(sources) > MOST_SOURCES:
                    self.written.add(value)

    def _mark_shared(self) -> list[int]:
        """Mark values that several kernels need and that are cheaper to read than to recompute."""
        reach: dict[int, int] = {}
        chosen: list[int] = []
        for node in reversed(self.program.nodes):
            if not _fuses(node) or node.opcode in OPCODES["aliases"] or node.opcode in OPCODES["free"]:
                continue
            for value in node.outputs:
                if value in self.written:
                    continue
                reach[value] = self._roots_of(value, reach)
                if reach[value].bit_count() > 1 and self._is_cheaper_to_read(value):
                    self.written.add(value)
                    chosen.append(value)
        return chosen

    def _roots_of(self, value: int, reach: dict[int, int]) -> int:
        """Return the written values that depend on a value, as a set of bits."""
        roots = 0
        for base in self._results_from(value):
            if base != value:
                roots |= 1 << base if base in self.written else reach.get(base, 0)
        return roots

    def _results_from(self, value: int) -> Iterator[int]:
        """Yield the results of the nodes that read a value."""
        for reader in self.readers.get(value, ()):
            yield from (self.memory[result] for result in self.program.nodes[reader].outputs)

    def _is_cheaper_to_read(self, value: int) -> bool:
        """Return whether recomputing a value reads more than the value itself."""
        read = sum(self.program.values[source].size_bytes for source in self.sources.get(value, ()))
        return read > RECOMPUTE_FACTOR * self.program.values[value].size_bytes

    def _prune(self, chosen: list[int]) -> None:
        """Unmark values that have become cheap to recompute because of other written values."""
        for value in reversed(chosen):
            if not self._is_cheaper_to_read(value):
                self.written.discard(value)
                self._replace_source(value)

    def _replace_source(self, value: int) -> None:
        """Replace a value that is no longer written by its own sources, wherever it was a source."""
        waiting = [value]
        while waiting:
            for base in self._results_from(waiting.pop()):
                sources = self.sources.get(base)
                if sources is not None and value in sources:
                    self.sources[base] = (sources - {value}) | self.sources[value]
                    if base not in self.written:
                        waiting.append(base)

    def _roots(self) -> Iterator[FusedKernel]:
        """Yield a kernel for each library call and each value that a chain writes. A node counts in the first one."""
        visited: set[int] = set()
        for position, node in enumerate(self.program.nodes):
            if not _fuses(node):
                reads = _distinct(self._operand_memory(node), node.inputs)
                yield FusedKernel([position], reads, list(node.outputs), node.loop)
                continue
            writes = [value for value in node.outputs if value in self.written]
            if writes and node.opcode not in OPCODES["aliases"] and not node.is_tensor_literal:
                nodes = sorted(self._chain(position, visited))
                yield FusedKernel(nodes, sorted(self.sources[writes[0]]), writes, node.loop)

    def _chain(self, end: int, visited: set[int]) -> Iterator[int]:
        """Yield the nodes behind a written value, up to values in memory."""
        waiting = [end]
        while waiting:
            position = waiting.pop()
            if position in visited:
                continue
            visited.add(position)
            yield position
            for value in _fused_operands(self.program.nodes[position]):
                base = self.memory[value]
                maker = self.program.makers[base]
                if base not in self.written and maker >= 0:
                    waiting.append(maker)


class _KernelMerger:
    """Merges kernels over the same elements that read a tensor in common, and tracks which ones must run first."""

    def __init__(self, program: FlatProgram) -> None:
        self.program = program
        self.kernels: list[FusedKernel] = []
        self.traits: list[tuple[object, ...]] = []
        self.maker: dict[int, int] = {}
        self.by_read: dict[int, list[int]] = {}

    def add(self, kernel: FusedKernel) -> None:
        """Merge a kernel into the first one that fits, else add it by itself."""
        for maker in self._makers(kernel):
            kernel.before |= 1 << maker | self.kernels[maker].before
        traits = self._traits(kernel)
        candidates = self._candidates(kernel) if traits else ()
        position = next((place for place in candidates if self._fits(kernel, traits, place)), None)
        if position is None:
            position = len(self.kernels)
            self.kernels.append(kernel)
            self.traits.append(traits)
        else:
            self._join(position, kernel)
        self.maker.update(dict.fromkeys(kernel.writes, position))
        for value in kernel.reads:
            self.by_read.setdefault(value, []).append(position)

    def _makers(self, kernel: FusedKernel) -> set[int]:
        return {self.maker[value] for value in kernel.reads if value in self.maker}

    def _traits(self, kernel: FusedKernel) -> tuple[object, ...]:
        """Return the properties that merged kernels have in common, or () for a kernel that is never merged."""
        nodes = [self.program.nodes[position] for position in kernel.nodes]
        if not kernel.reads or not all(_fuses(node) for node in nodes):
            return ()
        most = max(self.program.values[value].elements for node in nodes for value in (*node.inputs, *node.outputs))
        over_columns = any(node.opcode == "reduce" and _over_columns(self.program, node) for node in nodes)
        return (most, kernel.loop, over_columns)

    def _candidates(self, kernel: FusedKernel) -> dict[int, None]:
        """Return the kernels that make or read one of a kernel's largest operands, in order."""
        candidates: dict[int, None] = {}
        largest = sorted(kernel.reads, key=lambda value: -self.program.values[value].elements)[:6]
        for value in largest:
            if self.program.values[value].elements * 4 >= self.program.values[largest[0]].elements:
                if value in self.maker:
                    candidates[self.maker[value]] = None
                candidates.update(dict.fromkeys(self.by_read.get(value, ())))
        return candidates

    def _fits(self, kernel: FusedKernel, traits: tuple[object, ...], position: int) -> bool:
        """Return whether a kernel can join the one at ``position``.

        It cannot if it needs all of a value that the latter writes, or if a third kernel must run between the two.
        """
        if self.traits[position] != traits:
            return False
        size = max(self.program.values[value].elements for value in kernel.writes)
        made = (value for value in kernel.reads if self.maker.get(value) == position)
        if any(self.program.values[value].elements != size for value in made):
            return False
        return not any(self.kernels[maker].before >> position & 1 for maker in self._makers(kernel) - {position})

    def _join(self, position: int, kernel: FusedKernel) -> None:
        target = self.kernels[position]
        target.nodes = sorted({*target.nodes, *kernel.nodes})
        target.writes = [*target.writes, *kernel.writes]
        target.reads = [value for value in dict.fromkeys((*target.reads, *kernel.reads)) if value not in target.writes]
        target.before |= kernel.before & ~(1 << position)

    def ordered(self) -> list[FusedKernel]:
        """Return the kernels, each after those it reads from, else in the program's order."""
        makers = enumerate(map(self._makers, self.kernels))
        order = TopologicalSorter({position: earlier - {position} for position, earlier in makers})
        order.prepare()
        ready: list[tuple[int, int]] = []
        kernels: list[FusedKernel] = []
        while order.is_active():
            for position in order.get_ready():
                heappush(ready, (self.kernels[position].nodes[-1], position))
            first = heappop(ready)[1]
            kernels.append(self.kernels[first])
            order.done(first)
        return kernels


def _over_columns(program: FlatProgram, node: HloNode) -> bool:
    """Return whether a reduction keeps the last dimension. It then runs across rows, not within one."""
    dims = node.numbers("dimensions")
    rows = [axis for axis, size in enumerate(program.values[node.inputs[0]].shape) if size > 1]
    return bool(dims) and bool(rows) and rows[-1] not in dims
