"""Lay a module out flat: calls in place, loops entered once with their trips as a count, one branch of each choice."""

import re
from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field

from leadline.core.errors import InvalidInput
from leadline.core.graph import TensorSpec
from leadline.graphs.hlo.module import Attribute, Computation, Instruction, Module, WithAttributes, element_count
from leadline.graphs.hlo.trip_counts import KnownNumber, count_trips

Tree = int | tuple["Tree", ...]
"""A value's number, or a tuple of trees."""

PASSED_ON = frozenset({"optimization_barrier", "after_all", "add_dependency", "domain"})
MARKS = frozenset({
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
    "xla.sdy.FuncResultSharding",
})  # fmt: skip
"""Custom calls that say something of their operand, and do nothing."""

DEEPEST = 200


@dataclass(slots=True)
class HloNode(WithAttributes):
    """One instruction in place; numbers stand for values. ``loop`` tells apart the bodies that nodes stand in.

    ``inner`` is what a fusion computes, ``applied`` the opcodes of a reduction's or a scatter's own function.
    """

    opcode: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Attribute]
    scope: str
    count: int
    loop: int
    inner: "FlatProgram | None" = None
    applied: tuple[str, ...] = ()
    origin: str = ""


@dataclass(slots=True)
class FlatProgram:
    """The nodes in order, the values they read and write, and what is known of them.

    ``makers`` are the nodes that make each value, -1 for an argument. ``carried`` holds the values that a loop hands to
    its next trip or takes from outside: they exist in memory whatever is fused.
    ``near`` are those that a TPU keeps in the memory beside its units, where they cost no traffic.
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


def flatten(module: Module, what: str) -> FlatProgram:
    """Return the entry of ``module`` as a flat program.

    Raises:
        InvalidInput: a computation that is called does not exist, or an operand is read before it is made.
    """
    return _flat(module, module.computations[module.entry], what, module.aliases)


def _flat(module: Module, entry: Computation, what: str, aliases: dict[int, int]) -> FlatProgram:
    program = FlatProgram(labels=entry.labels, aliases=aliases)
    layer = _ProgramWriter(module, program, what)
    names: dict[str, Tree] = {}
    for name, spec in entry.parameters:
        names[name] = layer.new(spec, -1)
        program.arguments.extend(_leaves(names[name]))
    program.outputs = list(_leaves(layer.run(entry, names, 1, 0)))
    return program


def _leaves(tree: Tree) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    else:
        for one in tree:
            yield from _leaves(one)


@dataclass(slots=True)
class _ProgramWriter:
    """Writes the nodes of computations into a program."""

    module: Module
    program: FlatProgram
    what: str
    inners: dict[str, FlatProgram] = field(default_factory=dict)
    around: list[str] = field(default_factory=list)

    def new(self, spec: TensorSpec, maker: int) -> int:
        self.program.values.append(spec)
        self.program.makers.append(maker)
        return len(self.program.values) - 1

    def run(
        self, computation: Computation, names: MutableMapping[str, Tree], count: int, loop: int, around: str = ""
    ) -> Tree:
        """Write a computation's nodes and return what it returns; ``around`` is the scope it is called in."""
        self.around.append(around)
        if len(self.around) > DEEPEST:
            raise InvalidInput(f"{self.what}: {computation.name} calls itself: no XLA module does; write it again")
        for one in computation.instructions:
            if one.opcode != "parameter":
                names[one.name] = self._place(one, names, count, loop)
        self.around.pop()
        found = tuple(self._read(name, names) for name in computation.returned)
        return found[0] if len(found) == 1 else found

    def _read(self, name: str, names: MutableMapping[str, Tree]) -> Tree:
        base, _, index = name.partition("#")
        tree = names.get(base)
        if tree is None:
            raise InvalidInput(f"{self.what}: {base} is read before it is made: write the module again, whole")
        if index and isinstance(tree, tuple):
            return tree[int(index)]
        return tree

    def _called(self, name: str) -> Computation:
        if name not in self.module.computations:
            raise InvalidInput(f"{self.what}: {name} is called and not there: write the whole module")
        return self.module.computations[name]

    def _place(self, one: Instruction, names: MutableMapping[str, Tree], count: int, loop: int) -> Tree:
        given = [self._read(name, names) for name in one.operands]
        opcode = one.opcode
        if opcode == "tuple":
            found: Tree = tuple(given)
        elif opcode == "get_tuple_element":
            found = _element(given[0], one)
        elif opcode in PASSED_ON or (opcode == "custom_call" and one.attributes.get("target") in MARKS):
            found = given[0] if len(given) == 1 else tuple(given)
        elif opcode.endswith("_done") or opcode == "async_update":
            found = self._finished(one, given[0])
        elif opcode in ("call", "async_start") and one.called:
            inside = self._called(one.called[0])
            function = re.sub(r"_\d+$", "", inside.name)
            around = f"{self._scope(one).rpartition('/')[0]}/jit({function})"
            found = self._call(inside, given, names, count, loop, around)
        elif opcode == "while":
            found = self._loop(one, given, names, count)
        elif opcode == "conditional":
            found = self._choice(one, given, names, count, loop)
        else:
            found = self._node(one, given, count, loop)
        return found

    def _node(self, one: Instruction, given: list[Tree], count: int, loop: int) -> Tree:
        inputs = tuple(leaf for tree in given for leaf in _leaves(tree))
        place = len(self.program.nodes)
        outputs = tuple(self.new(spec, place) for spec in one.results)
        near = one.attributes.get("near", ())
        self.program.near.update(outputs[index] for index in (near if isinstance(near, tuple) else ()))
        node = HloNode(
            one.opcode, one.name, inputs, outputs, one.attributes, self._scope(one), count, loop, origin=one.origin
        )
        if one.opcode == "fusion":
            node.inner = self._inner(one.called[0])
        elif one.called:
            node.applied = tuple(line.opcode for line in self._called(one.called[0]).instructions)
        self.program.nodes.append(node)
        for value in inputs:
            maker = self.program.makers[value]
            if (self.program.nodes[maker].loop if maker >= 0 else 0) != loop:
                self.program.carried.add(value)
        self._follow_number(one, inputs, outputs)
        return outputs if one.nested or len(outputs) != 1 else outputs[0]

    def _inner(self, name: str) -> FlatProgram:
        if name not in self.inners:
            self.inners[name] = _flat(self.module, self._called(name), self.what, {})
        return self.inners[name]

    def _follow_number(self, one: Instruction, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        """Keep whole numbers that later decide a loop's trips."""
        value = one.attributes.get("value") if one.opcode == "constant" else None
        if isinstance(value, int) and not one.results[0].shape:
            self.program.numbers[outputs[0]] = value
        elif one.opcode in ("convert", "copy", "reshape", "bitcast") and inputs[0] in self.program.numbers:
            self.program.numbers[outputs[0]] = self.program.numbers[inputs[0]]

    def _scope(self, one: Instruction) -> str:
        """Return where an instruction stands: MLIR tells it from the function or loop that it stands in."""
        around = self.around[-1]
        if not around or not one.scope or one.scope.startswith(around.partition("/")[0]):
            return one.scope
        return f"{around}/{one.scope}"

    def _call(
        self,
        inside: Computation,
        given: Sequence[Tree],
        outer: MutableMapping[str, Tree],
        count: int,
        loop: int,
        around: str,
    ) -> Tree:
        """Put a computation in place; a region of MLIR sees the names around it, and a function does not."""
        names: MutableMapping[str, Tree] = ChainMap({}, outer) if inside.name.startswith("region.") else {}
        for (name, _), tree in zip(inside.parameters, given, strict=False):
            names[name] = tree
        return self.run(inside, names, count, loop, around.strip("/"))

    def _loop(self, one: Instruction, given: list[Tree], names: MutableMapping[str, Tree], count: int) -> Tree:
        """Enter the body once; its values are those of any trip, and they count as often as it runs."""
        state = given[0] if len(given) == 1 and isinstance(given[0], tuple) else tuple(given)
        start = [self._number(tree) for tree in state] if isinstance(state, tuple) else [self._number(state)]
        trips = count_trips(self.module, one, start, lambda name: self._number(names.get(name.partition("#")[0], ())))
        if trips is None:
            self.program.notes.append(
                f"how often the loop {one.scope.rpartition('/while')[0] or one.name} runs depends on data: "
                "it is counted once"
            )
            trips = 1
        self.program.loops += 1
        loop = self.program.loops
        body = self._called(one.called[1])
        self.program.carried.update(leaf for tree in given for leaf in _leaves(tree))
        around = self._scope(one).rpartition("/")[0]
        found = self._call(body, given, names, count * max(trips, 0), loop, around)
        self.program.carried.update(_leaves(found))
        return found

    def _number(self, tree: Tree) -> KnownNumber:
        if isinstance(tree, int):
            return self.program.numbers.get(tree)
        return tuple(self._number(one) for one in tree)

    def _choice(
        self, one: Instruction, given: list[Tree], names: MutableMapping[str, Tree], count: int, loop: int
    ) -> Tree:
        """Take the branch that computes the most: which one runs depends on data."""
        branches = [self._called(name) for name in one.called]
        largest = max(range(len(branches)), key=lambda place: self._weight(branches[place]))
        operands = [given[1 + largest]] if len(given) == 1 + len(branches) else given[1:]
        note = "which branch of a condition runs depends on data: the largest is counted"
        if note not in self.program.notes:
            self.program.notes.append(note)
        around = self._scope(one).rpartition("/")[0]
        return self._call(branches[largest], operands, names, count, loop, around)

    def _weight(self, computation: Computation) -> int:
        """Return a measure of a computation's work: elements made, those of a product a thousand times."""
        total = 0
        for one in computation.instructions:
            made = sum(element_count(spec) for spec in one.results)
            total += made * (1000 if one.opcode in ("dot", "convolution", "custom_call") else 1)
            if one.opcode not in ("reduce", "scatter"):
                total += sum(self._weight(self._called(name)) for name in one.called)
        return total

    def _finished(self, one: Instruction, tree: Tree) -> Tree:
        """Return the result among what an asynchronous start returned: the last value of the right type."""
        leaves = list(_leaves(tree))
        if len(one.results) != 1:
            return tree
        fitting = [leaf for leaf in leaves if self.program.values[leaf] == one.results[0]]
        return fitting[-1] if fitting and one.opcode != "copy_done" else (fitting or leaves)[0]


def _element(tree: Tree, one: Instruction) -> Tree:
    index = one.number("index", 0)
    if isinstance(tree, tuple) and index < len(tree):
        return tree[index]
    return tree
