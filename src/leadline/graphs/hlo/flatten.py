"""Flatten a module: calls in place, loops entered once with their trips as a count, one branch of each condition."""

import re
from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import islice

from msgspec import Struct, field

from leadline.core.errors import InvalidInput
from leadline.core.graph import TensorSpec
from leadline.graphs.hlo.module import OPCODES, Attribute, Computation, Instruction, Module, WithAttributes
from leadline.graphs.hlo.trip_counts import KnownNumber, count_trips

Tree = int | tuple["Tree", ...]
"""A value's number, or a tuple of trees."""

Names = MutableMapping[str, Tree]

MOST_NESTED_CALLS = 200
MOST_NODES = 300_000
"""Instructions of a program with its calls in place, which calls of calls multiply, and parts of a tuple."""
MOST_NESTED_FUSIONS = 8


class HloNode(Struct, WithAttributes):
    """One instruction in place. Values are numbered."""

    opcode: str
    inputs: tuple[int, ...]  # values it reads
    outputs: tuple[int, ...]  # values it makes
    attributes: dict[str, Attribute]
    scope: str
    count: int  # runs in one step
    loop: int  # number of the loop body it is in, 0 outside of loops
    inner: "FlatProgram | None" = None  # program that a fusion computes
    applied: tuple[str, ...] = ()  # opcodes of the function of a reduction or scatter

    @property
    def is_tensor_literal(self) -> bool:
        """Whether it holds the numbers of a tensor, not one number."""
        return self.opcode == "constant" and "value" not in self.attributes


class FlatProgram(Struct):
    """The nodes in order, and the values they read and write.

    Attributes:
        makers: Node that makes each value, -1 for an argument.
        carried: Values that a loop passes to its next trip or takes from outside. They are in memory in any case.
        near: Values in a TPU's on-chip memory, where they cost no traffic.
        numbers: Known whole numbers, by value.
        aliases: Argument whose memory each result takes.
    """

    values: list[TensorSpec] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    nodes: list[HloNode] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    outputs: list[int] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
    carried: set[int] = field(default_factory=set)
    near: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    loops: int = 0

    def donated(self) -> Iterator[tuple[int, int]]:
        """Yield each argument whose memory a result takes, and the result."""
        for result, argument in self.aliases.items():
            if argument < len(self.arguments) and result < len(self.outputs):
                yield self.arguments[argument], self.outputs[result]

    def operands(self, node: HloNode) -> list[TensorSpec]:
        """Return the shapes and dtypes that a node reads."""
        return [self.values[value] for value in node.inputs]

    def results(self, node: HloNode) -> list[TensorSpec]:
        """Return the shapes and dtypes that a node makes."""
        return [self.values[value] for value in node.outputs]


def flatten(module: Module, source_name: str, computation: Computation | None = None, depth: int = 0) -> FlatProgram:
    """Return the entry of ``module`` as a flat program, or another ``computation`` at a depth of fusions.

    Raises:
        InvalidInput: A called computation does not exist, or an operand is read before it is made.
    """
    entry = computation or module.computations[module.entry]
    program = FlatProgram(labels=entry.labels, aliases={} if computation else module.aliases)
    writer = _ProgramWriter(module, program, source_name, depth=depth)
    names: dict[str, Tree] = {}
    for name, spec in entry.parameters:
        names[name] = writer.new(spec, -1)
        program.arguments.extend(_leaves(names[name]))
    program.outputs = list(_leaves(writer.run(entry, names, 1, 0)))
    return program


def _leaves(tree: Tree) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    else:
        for branch in tree:
            yield from _leaves(branch)


class _ProgramWriter(Struct):
    """Writes the nodes of computations into a program."""

    module: Module
    program: FlatProgram
    source_name: str
    inners: dict[str, FlatProgram] = field(default_factory=dict)
    depth: int = 0
    around: list[str] = field(default_factory=list)

    def new(self, spec: TensorSpec, maker: int) -> int:
        self.program.values.append(spec)
        self.program.makers.append(maker)
        return len(self.program.values) - 1

    def run(self, computation: Computation, names: Names, count: int, loop: int, around: str = "") -> Tree:
        """Write a computation's nodes and return its results. ``around`` is the scope of the call."""
        self.around.append(around)
        if len(self.around) > MOST_NESTED_CALLS:
            raise InvalidInput(
                f"{self.source_name}: {computation.name} calls itself, unlike any XLA module; export it again"
            )
        for instruction in computation.instructions:
            if instruction.opcode != "parameter":
                try:
                    names[instruction.name] = self._write(instruction, names, count, loop)
                except (LookupError, ValueError) as error:
                    raise InvalidInput(
                        f"{self.source_name}: the operands of {instruction.name} ({instruction.opcode}) do not fit: "
                        "export the whole text again"
                    ) from error
        self.around.pop()
        returned = tuple(self._read(name, names) for name in computation.returned)
        return returned[0] if len(returned) == 1 else returned

    def _read(self, name: str, names: Names) -> Tree:
        base, _, index = name.partition("#")
        tree = names.get(base)
        if tree is None:
            raise InvalidInput(f"{self.source_name}: {base} is read before it is made: export the whole module again")
        return tree[int(index)] if index and isinstance(tree, tuple) else tree

    def _called(self, name: str) -> Computation:
        if name not in self.module.computations:
            raise InvalidInput(f"{self.source_name}: {name} is called but missing: export the whole module")
        return self.module.computations[name]

    def _write(self, instruction: Instruction, names: Names, count: int, loop: int) -> Tree:
        operands = [self._read(name, names) for name in instruction.operands]
        opcode = instruction.opcode
        tree: Tree
        if opcode == "tuple":
            tree = tuple(operands)
            if sum(1 for _ in islice(_leaves(tree), MOST_NODES + 1)) > MOST_NODES:
                raise InvalidInput(f"{self.source_name}: {instruction.name} has more than {MOST_NODES:,} parts")
        elif opcode == "get_tuple_element":
            tree, index = operands[0], instruction.number("index", 0)
            tree = tree[index] if isinstance(tree, tuple) and index < len(tree) else tree
        elif opcode in OPCODES["pass_through"] or instruction.attributes.get("target") in OPCODES["annotation_calls"]:
            tree = operands[0] if len(operands) == 1 else tuple(operands)
        elif opcode.endswith("_done") or opcode == "async_update":
            tree = self._async_result(instruction, operands[0])
        elif opcode in ("call", "async_start") and instruction.called:
            inside = self._called(instruction.called[0])
            function = re.sub(r"_\d+$", "", inside.name)
            tree = self._call(inside, operands, names, count, loop, f"{self._around(instruction)}/jit({function})")
        elif opcode == "while":
            tree = self._loop(instruction, operands, names, count)
        elif opcode == "conditional":
            tree = self._conditional(instruction, operands, names, count, loop)
        else:
            tree = self._node(instruction, operands, count, loop)
        return tree

    def _node(self, instruction: Instruction, operands: list[Tree], count: int, loop: int) -> Tree:
        inputs = tuple(leaf for tree in operands for leaf in _leaves(tree))
        position = len(self.program.nodes)
        if position >= MOST_NODES:
            raise InvalidInput(f"{self.source_name} has more than {MOST_NODES:,} instructions in place")
        outputs = tuple(self.new(spec, position) for spec in instruction.results)
        near = instruction.attributes.get("near", ())
        self.program.near.update(outputs[index] for index in (near if isinstance(near, tuple) else ()))
        scope = self._scope(instruction)
        node = HloNode(instruction.opcode, inputs, outputs, instruction.attributes, scope, count, loop)
        if instruction.opcode == "fusion":
            node.inner = self._inner(instruction.called[0])
        elif instruction.called:
            node.applied = tuple(line.opcode for line in self._called(instruction.called[0]).instructions)
        self.program.nodes.append(node)
        for value in inputs:
            maker = self.program.makers[value]
            if (self.program.nodes[maker].loop if maker >= 0 else 0) != loop:
                self.program.carried.add(value)
        self._follow_number(instruction, inputs, outputs)
        return outputs if instruction.nested or len(outputs) != 1 else outputs[0]

    def _inner(self, name: str) -> FlatProgram:
        if name not in self.inners:
            if self.depth >= MOST_NESTED_FUSIONS:
                raise InvalidInput(
                    f"{self.source_name}: fusions are nested deeper than {MOST_NESTED_FUSIONS} in {name}"
                )
            self.inners[name] = flatten(self.module, self.source_name, self._called(name), self.depth + 1)
        return self.inners[name]

    def _follow_number(self, instruction: Instruction, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        """Track whole numbers that may decide the trips of a later loop."""
        value = instruction.attributes.get("value") if instruction.opcode == "constant" else None
        if isinstance(value, int) and not instruction.results[0].shape:
            self.program.numbers[outputs[0]] = value
        elif instruction.opcode in ("convert", "copy", "reshape", "bitcast") and inputs[0] in self.program.numbers:
            self.program.numbers[outputs[0]] = self.program.numbers[inputs[0]]

    def _scope(self, instruction: Instruction) -> str:
        """Return the scope of an instruction. MLIR gives part of it at the function or loop around."""
        around = self.around[-1]
        if not around or not instruction.scope or instruction.scope.startswith(around.partition("/")[0]):
            return instruction.scope
        return f"{around}/{instruction.scope}"

    def _around(self, instruction: Instruction) -> str:
        """Return the scope of an instruction without its last word, the primitive."""
        return self._scope(instruction).rpartition("/")[0]

    def _call(
        self, inside: Computation, operands: Sequence[Tree], outer: Names, count: int, loop: int, around: str
    ) -> Tree:
        """Write a computation in place. A region of MLIR sees the names around it, a function does not."""
        names: Names = ChainMap({}, outer) if inside.name.startswith("region.") else {}
        names.update((name, tree) for (name, _), tree in zip(inside.parameters, operands, strict=False))
        return self.run(inside, names, count, loop, around.strip("/"))

    def _loop(self, instruction: Instruction, operands: list[Tree], names: Names, count: int) -> Tree:
        """Enter the body once. Its values stand for any trip, and its nodes count as often as it runs."""
        state = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else tuple(operands)
        start = [self._number(tree) for tree in state]
        trips = count_trips(
            self.module, instruction, start, lambda name: self._number(names.get(name.partition("#")[0], ()))
        )
        if trips is None:
            self.program.notes.append(
                f"the number of runs of the loop {instruction.scope.rpartition('/while')[0] or instruction.name} "
                "depends on data: it is counted once"
            )
            trips = 1
        self.program.loops += 1
        loop = self.program.loops
        body = self._called(instruction.called[1])
        self.program.carried.update(leaf for tree in operands for leaf in _leaves(tree))
        results = self._call(body, operands, names, count * max(trips, 0), loop, self._around(instruction))
        self.program.carried.update(_leaves(results))
        return results

    def _number(self, tree: Tree) -> KnownNumber:
        if isinstance(tree, int):
            return self.program.numbers.get(tree)
        return tuple(self._number(branch) for branch in tree)

    def _conditional(self, instruction: Instruction, operands: list[Tree], names: Names, count: int, loop: int) -> Tree:
        """Write the branch that computes the most, as data decides which one runs."""
        branches = [self._called(name) for name in instruction.called]
        weights = [self._weight(branch, {}) for branch in branches]
        largest = weights.index(max(weights))
        branch_operands = [operands[1 + largest]] if len(operands) == 1 + len(branches) else operands[1:]
        note = "the branch of a condition depends on data: the largest is counted"
        if note not in self.program.notes:
            self.program.notes.append(note)
        return self._call(branches[largest], branch_operands, names, count, loop, self._around(instruction))

    def _weight(self, computation: Computation, weights: dict[str, int]) -> int:
        """Return a measure of a computation's work: elements made, those of a product times a thousand."""
        if computation.name in weights:
            return weights[computation.name]
        total = 0
        for instruction in computation.instructions:
            elements = sum(spec.elements for spec in instruction.results)
            total += elements * (1000 if instruction.opcode in ("dot", "convolution", "custom_call") else 1)
            if instruction.opcode not in ("reduce", "scatter"):
                total += sum(self._weight(self._called(name), weights) for name in instruction.called)
        weights[computation.name] = total
        return total

    def _async_result(self, instruction: Instruction, tree: Tree) -> Tree:
        """Return the result among the values of an asynchronous start: the last one of the right type."""
        if len(instruction.results) != 1:
            return tree
        leaves = list(_leaves(tree))
        fitting = [leaf for leaf in leaves if self.program.values[leaf] == instruction.results[0]]
        return fitting[-1] if fitting and instruction.opcode != "copy_done" else (fitting or leaves)[0]
