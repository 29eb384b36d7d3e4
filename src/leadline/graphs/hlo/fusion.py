"""Group the nodes of a program into the kernels that run, each with the values it reads and writes.

``FUSED`` is a compiler's grouping. Chains of element-wise operations, and the reductions within their rows, run without
writing the values between. A value is written if a library kernel, a loop or the caller needs it, or if several kernels
do and recomputing it would read more than its own size. Kernels over the same elements become one if they read the same
tensor or one another.

``EAGER`` is the grouping of a framework without compiler. Each call of the user's program (a layer normalization, a
softmax, an addition) is a kernel and writes its result. Calls are recognized by the scopes that JAX writes. In a text
without scopes, every element-wise operation is a kernel.

In both forms a reshape or a broadcast costs nothing by itself, nor does a transpose that a matrix product reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from leadline.core.graph import Stage
from leadline.graphs.hlo.costs import ALIASES, base_opcode
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.kernel_merge import LIBRARY, FusedKernel, FusionMode, KernelMerger, over_columns
from leadline.graphs.hlo.module import element_count, size_bytes
from leadline.graphs.hlo.stages import plain_scope

RECOMPUTE_FACTOR = 1.25
"""A value is recomputed if its sources have at most this many times its own size."""

MOST_SOURCES = 24
"""Limit of the tensors that one kernel reads. Beyond it, the next value is written."""

ANY_ORDER = frozenset({"dot", "convolution"})
"""Opcodes that read their operands in any order of the dimensions."""

IN_PLACE = "dynamic_update_slice"
"""Opcode that writes its second operand into the memory of its first."""

FREE = frozenset({"constant", "iota", "partition_id", "replica_id"})
"""Opcodes whose values are made on the fly."""

EAGER_VIEWS = frozenset({"transpose", "slice", "broadcast"})
"""Opcodes that an eager framework runs without a kernel."""


def fuse_kernels(program: FlatProgram, stages: list[Stage], form: FusionMode) -> list[FusedKernel]:
    """Return the kernels of a program that no compiler has fused, each after the kernels it reads from."""
    grouping = _Grouping(program, stages, form)
    return grouping.kernels()


def compiled_kernels(program: FlatProgram) -> list[FusedKernel]:
    """Return one kernel per node of a program that a compiler has fused already. Aliases are followed."""
    memory = _memory(program, frozenset())
    kernels = []
    for position, node in enumerate(program.nodes):
        if node.opcode in ALIASES or node.opcode in FREE:
            continue
        reads = list(dict.fromkeys(memory[value] for value in node.inputs))
        kernels.append(FusedKernel([position], reads, list(node.outputs), node.loop))
    return kernels


def _memory(program: FlatProgram, views: frozenset[str], copied: frozenset[int] = frozenset()) -> list[int]:
    """Return for each value the one whose memory it shows. The nodes ``copied`` have their own."""
    memory = list(range(len(program.values)))
    for position, node in enumerate(program.nodes):
        if node.inner is None and (node.opcode in ALIASES or (node.opcode in views and position not in copied)):
            memory[node.outputs[0]] = memory[node.inputs[0]]
    return memory


@dataclass(slots=True)
class _Grouping:
    program: FlatProgram
    stages: list[Stage]
    form: FusionMode
    memory: list[int] = field(default_factory=list)
    views: list[int] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    copied: frozenset[int] = frozenset()
    sources: dict[int, frozenset[int]] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def kernels(self) -> list[FusedKernel]:
        """Decide which values are written, and group the nodes between."""
        eager = self.form is FusionMode.EAGER
        self.memory = _memory(self.program, frozenset())
        self.copied = _copied_transposes(self.program) if eager else frozenset()
        self.views = _memory(self.program, EAGER_VIEWS if eager else frozenset({"transpose"}), self.copied)
        self.calls = _calls(self.program, self.stages) if eager else [""] * len(self.program.nodes)
        for position, node in enumerate(self.program.nodes):
            for value in node.inputs:
                self.readers.setdefault(self.memory[value], []).append(position)
        self._mark_needed()
        if eager:
            self._mark_between_calls()
            self._find_sources()
        else:
            self._find_sources()
            chosen = self._mark_shared()
            self._find_sources()
            self._prune(chosen)
        return self._merge(list(self._roots()))

    def _fuses(self, node: HloNode) -> bool:
        return node.inner is None and base_opcode(node) not in LIBRARY

    def _mark_needed(self) -> None:
        """Mark values that must be in memory: results, loop state, operands of library kernels, sums of columns."""
        keep = [*self.program.outputs, *self.program.carried]
        for node in self.program.nodes:
            if not self._fuses(node):
                base = self.views if node.opcode in ANY_ORDER or self.form is FusionMode.EAGER else self.memory
                keep.extend(base[value] for value in node.inputs)
                keep.extend(node.outputs)
            elif node.opcode == "reduce" and over_columns(self.program, node):
                keep.extend(node.outputs)
            elif node.opcode == IN_PLACE:
                keep.extend((node.inputs[0], node.outputs[0]))
        self.written.update(self.memory[value] for value in keep)
        self.written.update(self.program.arguments)
        for node in self.program.nodes:
            literal = node.opcode == "constant" and "value" not in node.attributes
            if literal and element_count(self.program.values[node.outputs[0]]) > 1:
                self.written.add(node.outputs[0])

    def _mark_between_calls(self) -> None:
        """Mark values that one call of the user's program passes to another."""
        for position, node in enumerate(self.program.nodes):
            if not self._fuses(node) or node.opcode in ALIASES or node.opcode in FREE or self._is_eager_view(position):
                continue
            if position in self.copied:
                self.written.update(node.outputs)
            for value in node.outputs:
                if any(self.calls[reader] != self.calls[position] for reader in self._real_readers(value)):
                    self.written.add(self.memory[value])

    def _products_with_bias(self) -> set[int]:
        """Return the products that only their own call reads, as a linear layer adds its bias."""
        products = set()
        for position, node in enumerate(self.program.nodes):
            if self.form is FusionMode.EAGER and node.opcode in ANY_ORDER and self.stages[position] is Stage.FORWARD:
                readers = list(self._real_readers(node.outputs[0]))
                only_own_call = all(self.calls[reader] == self.calls[position] for reader in readers)
                if readers and only_own_call and not self.calls[position].startswith("#"):
                    products.add(node.outputs[0])
        return products

    def _real_readers(self, value: int) -> Iterator[int]:
        """Yield the nodes that read a value, through views."""
        for position in self.readers.get(self.memory[value], ()):
            node = self.program.nodes[position]
            if node.opcode in ALIASES:
                continue
            if self._is_eager_view(position):
                yield from self._real_readers(node.outputs[0])
            else:
                yield position

    def _is_eager_view(self, position: int) -> bool:
        """Return whether a node is a view in a framework without compiler."""
        return self.program.nodes[position].opcode in EAGER_VIEWS and position not in self.copied

    def _find_sources(self) -> None:
        """Find the values in memory that each value outside memory is computed from."""
        self.sources = {}
        for node in self.program.nodes:
            if not self._fuses(node) or node.opcode in ALIASES:
                continue
            sources: set[int] = set()
            if node.opcode not in FREE:
                for value in node.inputs[1:] if node.opcode == IN_PLACE else node.inputs:
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
        for position in range(len(self.program.nodes) - 1, -1, -1):
            node = self.program.nodes[position]
            if not self._fuses(node) or node.opcode in ALIASES or node.opcode in FREE:
                continue
            for value in node.outputs:
                roots = self._roots_of(value, reach)
                if value in self.written:
                    continue
                reach[value] = roots
                if roots.bit_count() > 1 and self._is_cheaper_to_read(value):
                    self.written.add(value)
                    chosen.append(value)
        return chosen

    def _roots_of(self, value: int, reach: dict[int, int]) -> int:
        """Return the written values that depend on a value, as a set of bits."""
        roots = 0
        for reader in self.readers.get(value, ()):
            for result in self.program.nodes[reader].outputs:
                base = self.memory[result]
                if base == value:
                    continue
                roots |= 1 << base if base in self.written else reach.get(base, 0)
        return roots

    def _is_cheaper_to_read(self, value: int) -> bool:
        """Return whether recomputing a value reads more than the value itself."""
        read = sum(size_bytes(self.program.values[source]) for source in self.sources.get(value, ()))
        return read > RECOMPUTE_FACTOR * size_bytes(self.program.values[value])

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
            current = waiting.pop()
            for reader in self.readers.get(current, ()):
                for result in self.program.nodes[reader].outputs:
                    base = self.memory[result]
                    sources = self.sources.get(base)
                    if sources is not None and value in sources:
                        self.sources[base] = (sources - {value}) | self.sources[value]
                        if base not in self.written:
                            waiting.append(base)

    def _roots(self) -> Iterator[FusedKernel]:
        """Yield a kernel for each library call and each value that a chain writes. A node counts in the first one."""
        visited: set[int] = set()
        for position, node in enumerate(self.program.nodes):
            if not self._fuses(node):
                base = self.views if node.opcode in ANY_ORDER or self.form is FusionMode.EAGER else self.memory
                reads = list(dict.fromkeys(base[value] for value in node.inputs))
                yield FusedKernel([position], reads, list(node.outputs), node.loop, self.calls[position])
                continue
            if node.opcode in ALIASES or (node.opcode == "constant" and "value" not in node.attributes):
                continue
            writes = [value for value in node.outputs if value in self.written]
            if writes:
                nodes = sorted(self._chain(position, visited))
                yield FusedKernel(nodes, sorted(self.sources[writes[0]]), writes, node.loop, self.calls[position])

    def _chain(self, end: int, visited: set[int]) -> Iterator[int]:
        """Yield the nodes behind a written value, up to values in memory."""
        waiting = [end]
        while waiting:
            position = waiting.pop()
            if position in visited:
                continue
            visited.add(position)
            yield position
            node = self.program.nodes[position]
            for value in node.inputs[1:] if node.opcode == IN_PLACE else node.inputs:
                base = self.memory[value]
                maker = self.program.makers[base]
                if base not in self.written and maker >= 0:
                    waiting.append(maker)

    def _merge(self, single: list[FusedKernel]) -> list[FusedKernel]:
        """Merge kernels that run as one: of one call, or over the same elements and reading a tensor in common."""
        joined = KernelMerger(self.program, self.form, self._products_with_bias())
        for kernel in single:
            joined.add(kernel, self.stages[kernel.nodes[-1]] if kernel.nodes else Stage.FORWARD)
        return joined.ordered()


def _copied_transposes(program: FlatProgram) -> frozenset[int]:
    """Return the transposes that a framework without compiler must copy.

    A product over several batch dimensions, or a reshape that joins dimensions, needs its elements in order. The last
    two dimensions of a product may be swapped.
    """
    readers: dict[int, list[HloNode]] = {}
    for node in program.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    positions = set()
    for position, node in enumerate(program.nodes):
        order = node.numbers("dimensions")
        if node.opcode != "transpose" or order[:-2] == tuple(range(len(order) - 2)):
            continue
        for reader in readers.get(node.outputs[0], ()):
            batched = reader.opcode == "dot" and len(reader.numbers("lhs_batch")) > 1
            if batched or (reader.opcode == "reshape" and _joins_dimensions(program, reader)):
                positions.add(position)
    return frozenset(positions)


def _joins_dimensions(program: FlatProgram, node: HloNode) -> bool:
    """Return whether a reshape does more than add or drop dimensions of size one."""
    before, after = (program.values[value].shape for value in (node.inputs[0], node.outputs[0]))
    return [size for size in before if size > 1] != [size for size in after if size > 1]


def _calls(program: FlatProgram, stages: list[Stage]) -> list[str]:
    """Return the call of each node: the expression of the user's own code that it comes from.

    In a text without such places, a call is the outermost scope that holds no library kernel. A node in a scope with a
    library kernel is a call of its own. The update of all weights is one call.
    """
    busy: set[str] = set()
    for node in program.nodes:
        if base_opcode(node) in LIBRARY or node.inner is not None:
            words = plain_scope(node.scope).split("/")
            busy.update("/".join(words[:length]) for length in range(len(words) + 1))
    calls = []
    for position, node in enumerate(program.nodes):
        if stages[position] is Stage.OPTIMIZER and base_opcode(node) not in LIBRARY:
            calls.append("update")
        elif node.origin:
            calls.append(node.origin)
        else:
            words = plain_scope(node.scope).split("/")
            paths = ("/".join(words[:length]) for length in range(1, len(words) + 1))
            calls.append(next((path for path in paths if path not in busy), "") or f"#{position}")
    return calls
