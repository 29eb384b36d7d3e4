"""Group the nodes of a program into the kernels that run: each a set of values written and a set of values read.

``FUSED`` is what a compiler does: chains of element-wise operations, and the reductions within rows that they hold,
run without writing what is between; a value is written when a library kernel, a loop or the caller needs it, or when
several kernels do and computing it again would read more than itself. Kernels over the same elements that read the same
tensor or one another become one. ``EAGER`` is what a framework without compiler does: each call of the user's program
(a layer normalisation, a softmax, an addition) is a kernel and writes its result. Its calls are known by the scopes
that JAX writes; in a text without scopes every element-wise operation is a kernel.

In both forms a reshape and a broadcast cost nothing by themselves, and neither does a transposition that a matrix
product reads: the product takes either order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from leadline.core.graph import Stage
from leadline.graphs.hlo.costs import ALIASES, base_opcode
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.kernel_merge import LIBRARY, FusedKernel, FusionMode, KernelMerger, over_columns
from leadline.graphs.hlo.module import element_count, size_bytes
from leadline.graphs.hlo.stages import plain_scope

RECOMPUTE = 1.25
"""Times its own size that a value's sources may have, if it is to be computed again rather than written."""

MOST_SOURCES = 24
"""Tensors one kernel reads, beyond which the next value is written."""

ANY_ORDER = frozenset({"dot", "convolution"})
"""What reads its operands in any order of their dimensions."""

IN_PLACE = "dynamic_update_slice"
"""What writes its second operand into the memory of its first."""

FREE = frozenset({"constant", "iota", "partition_id", "replica_id"})
"""What is made on the fly."""

VIEWS_EAGER = frozenset({"transpose", "slice", "broadcast"})
"""What an eager framework returns without a kernel."""


def fuse_kernels(program: FlatProgram, stages: list[Stage], form: FusionMode) -> list[FusedKernel]:
    """Return the kernels of a program that no compiler has fused, each after those whose results it reads."""
    grouping = _Grouping(program, stages, form)
    return grouping.kernels()


def compiled_kernels(program: FlatProgram) -> list[FusedKernel]:
    """Return one kernel for each node of a program that a compiler has fused already; aliases are followed."""
    memory = _memory(program, frozenset())
    found = []
    for place, node in enumerate(program.nodes):
        if node.opcode in ALIASES or node.opcode in FREE:
            continue
        reads = list(dict.fromkeys(memory[value] for value in node.inputs))
        found.append(FusedKernel([place], reads, list(node.outputs), node.loop))
    return found


def _memory(program: FlatProgram, views: frozenset[str], copied: frozenset[int] = frozenset()) -> list[int]:
    """Return for each value the one whose memory it shows; the nodes ``copied`` have their own."""
    memory = list(range(len(program.values)))
    for place, node in enumerate(program.nodes):
        if node.inner is None and (node.opcode in ALIASES or (node.opcode in views and place not in copied)):
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
        """Decide which values are written, and group what is between."""
        eager = self.form is FusionMode.EAGER
        self.memory = _memory(self.program, frozenset())
        self.copied = _copied(self.program) if eager else frozenset()
        self.views = _memory(self.program, VIEWS_EAGER if eager else frozenset({"transpose"}), self.copied)
        self.calls = _calls(self.program, self.stages) if eager else [""] * len(self.program.nodes)
        for place, node in enumerate(self.program.nodes):
            for value in node.inputs:
                self.readers.setdefault(self.memory[value], []).append(place)
        self._needed()
        if eager:
            self._between_calls()
            self._follow()
        else:
            self._follow()
            chosen = self._shared()
            self._follow()
            self._prune(chosen)
        return self._merge(list(self._roots()))

    def _fuses(self, node: HloNode) -> bool:
        return node.inner is None and base_opcode(node) not in LIBRARY

    def _needed(self) -> None:
        """Mark what must be in memory: results, what loops carry, what library kernels read and columns' sums."""
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

    def _between_calls(self) -> None:
        """Mark what one call of the user's program hands to another."""
        for place, node in enumerate(self.program.nodes):
            if not self._fuses(node) or node.opcode in ALIASES or node.opcode in FREE or self._shows(place):
                continue
            if place in self.copied:
                self.written.update(node.outputs)
            for value in node.outputs:
                if any(self.calls[reader] != self.calls[place] for reader in self._real_readers(value)):
                    self.written.add(self.memory[value])

    def _biased(self) -> set[int]:
        """Return the products that only the rest of their own call reads, as a linear layer adds its bias."""
        found = set()
        for place, node in enumerate(self.program.nodes):
            if self.form is FusionMode.EAGER and node.opcode in ANY_ORDER and self.stages[place] is Stage.FORWARD:
                readers = list(self._real_readers(node.outputs[0]))
                alone = all(self.calls[reader] == self.calls[place] for reader in readers)
                if readers and alone and not self.calls[place].startswith("#"):
                    found.add(node.outputs[0])
        return found

    def _real_readers(self, value: int) -> Iterator[int]:
        """Yield the nodes that read a value, through views."""
        for place in self.readers.get(self.memory[value], ()):
            node = self.program.nodes[place]
            if node.opcode in ALIASES:
                continue
            if self._shows(place):
                yield from self._real_readers(node.outputs[0])
            else:
                yield place

    def _shows(self, place: int) -> bool:
        """Whether a node is a view in a framework without compiler."""
        return self.program.nodes[place].opcode in VIEWS_EAGER and place not in self.copied

    def _follow(self) -> None:
        """Find for each value that is not in memory the ones in memory that it is computed from."""
        self.sources = {}
        for node in self.program.nodes:
            if not self._fuses(node) or node.opcode in ALIASES:
                continue
            found: set[int] = set()
            if node.opcode not in FREE:
                for value in node.inputs[1:] if node.opcode == IN_PLACE else node.inputs:
                    base = self.memory[value]
                    found.update((base,) if base in self.written else self.sources.get(base, ()))
            for value in node.outputs:
                self.sources[value] = frozenset(found)
                if len(found) > MOST_SOURCES:
                    self.written.add(value)

    def _shared(self) -> list[int]:
        """Mark values that several kernels need and that are cheaper to read than to compute again."""
        reach: dict[int, int] = {}
        chosen: list[int] = []
        for place in range(len(self.program.nodes) - 1, -1, -1):
            node = self.program.nodes[place]
            if not self._fuses(node) or node.opcode in ALIASES or node.opcode in FREE:
                continue
            for value in node.outputs:
                roots = self._roots_of(value, reach)
                if value in self.written:
                    continue
                reach[value] = roots
                if roots.bit_count() > 1 and self._dear(value):
                    self.written.add(value)
                    chosen.append(value)
        return chosen

    def _roots_of(self, value: int, reach: dict[int, int]) -> int:
        """Return the written values that a value helps to compute, as a set of bits."""
        roots = 0
        for reader in self.readers.get(value, ()):
            for result in self.program.nodes[reader].outputs:
                base = self.memory[result]
                if base == value:
                    continue
                roots |= 1 << base if base in self.written else reach.get(base, 0)
        return roots

    def _dear(self, value: int) -> bool:
        """Whether computing a value again reads more than the value itself."""
        read = sum(size_bytes(self.program.values[one]) for one in self.sources.get(value, ()))
        return read > RECOMPUTE * size_bytes(self.program.values[value])

    def _prune(self, chosen: list[int]) -> None:
        """Compute again after all what has become cheap by what else is written."""
        for value in reversed(chosen):
            if not self._dear(value):
                self.written.discard(value)
                self._spread(value)

    def _spread(self, value: int) -> None:
        """Put the sources of a value that is no longer written in its place, where it was one."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            for reader in self.readers.get(one, ()):
                for result in self.program.nodes[reader].outputs:
                    base = self.memory[result]
                    known = self.sources.get(base)
                    if known is not None and value in known:
                        self.sources[base] = (known - {value}) | self.sources[value]
                        if base not in self.written:
                            waiting.append(base)

    def _roots(self) -> Iterator[FusedKernel]:
        """Yield a kernel for each library call and for each value that a chain writes; a node counts in the first."""
        taken: set[int] = set()
        for place, node in enumerate(self.program.nodes):
            if not self._fuses(node):
                base = self.views if node.opcode in ANY_ORDER or self.form is FusionMode.EAGER else self.memory
                reads = list(dict.fromkeys(base[value] for value in node.inputs))
                yield FusedKernel([place], reads, list(node.outputs), node.loop, self.calls[place])
                continue
            if node.opcode in ALIASES or (node.opcode == "constant" and "value" not in node.attributes):
                continue
            writes = [value for value in node.outputs if value in self.written]
            if writes:
                nodes = sorted(self._chain(place, taken))
                yield FusedKernel(nodes, sorted(self.sources[writes[0]]), writes, node.loop, self.calls[place])

    def _chain(self, place: int, taken: set[int]) -> Iterator[int]:
        """Yield the nodes behind a written value, up to what is in memory."""
        waiting = [place]
        while waiting:
            one = waiting.pop()
            if one in taken:
                continue
            taken.add(one)
            yield one
            node = self.program.nodes[one]
            for value in node.inputs[1:] if node.opcode == IN_PLACE else node.inputs:
                base = self.memory[value]
                maker = self.program.makers[base]
                if base not in self.written and maker >= 0:
                    waiting.append(maker)

    def _merge(self, single: list[FusedKernel]) -> list[FusedKernel]:
        """Join kernels that run as one: of one call, or over the same elements and reading a tensor in common."""
        joined = KernelMerger(self.program, self.form, self._biased())
        for kernel in single:
            joined.add(kernel, self.stages[kernel.nodes[-1]] if kernel.nodes else Stage.FORWARD)
        return joined.ordered()


def _copied(program: FlatProgram) -> frozenset[int]:
    """Return the transpositions that a framework without compiler cannot leave a view.

    A product of several batch dimensions, and a reshape that joins dimensions, want their elements in order; the
    product takes its last two dimensions swapped all the same.
    """
    readers: dict[int, list[HloNode]] = {}
    for node in program.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    found = set()
    for place, node in enumerate(program.nodes):
        order = node.numbers("dimensions")
        if node.opcode != "transpose" or order[:-2] == tuple(range(len(order) - 2)):
            continue
        for one in readers.get(node.outputs[0], ()):
            batched = one.opcode == "dot" and len(one.numbers("lhs_batch")) > 1
            if batched or (one.opcode == "reshape" and _joins(program, one)):
                found.add(place)
    return frozenset(found)


def _joins(program: FlatProgram, node: HloNode) -> bool:
    """Whether a reshape does more than add or drop dimensions of one."""
    before, after = (program.values[value].shape for value in (node.inputs[0], node.outputs[0]))
    return [size for size in before if size > 1] != [size for size in after if size > 1]


def _calls(program: FlatProgram, stages: list[Stage]) -> list[str]:
    """Return for each node the call it belongs to: the expression of the user's own code that it comes from.

    Where the text names no places, it is the outermost scope around it that holds no library kernel, and a node in a
    scope that does hold one is a call of its own. The update of one weight is one call.
    """
    busy: set[str] = set()
    for node in program.nodes:
        if base_opcode(node) in LIBRARY or node.inner is not None:
            words = plain_scope(node.scope).split("/")
            busy.update("/".join(words[:length]) for length in range(len(words) + 1))
    found = []
    for place, node in enumerate(program.nodes):
        if stages[place] is Stage.OPTIMIZER and base_opcode(node) not in LIBRARY:
            found.append("update")
        elif node.origin:
            found.append(node.origin)
        else:
            words = plain_scope(node.scope).split("/")
            paths = ("/".join(words[:length]) for length in range(1, len(words) + 1))
            found.append(next((path for path in paths if path not in busy), "") or f"#{place}")
    return found
