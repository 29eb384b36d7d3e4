"""The parts of a step: stages of its nodes, roles of its arguments, and how long its kernels' values are held.

The stages come from the scopes that JAX writes for differentiation.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from leadline.core.graph import Stage, StorageCategory, StorageEvent, TensorSpec
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.fusion import FusedKernel
from leadline.graphs.hlo.module import OPCODES

_MEMBER = re.compile(r"\['|\.\w")
"""A member of a collection, as in ``params['w']`` or ``model.kernel``."""


def node_stages(program: FlatProgram) -> list[Stage]:
    """Return the stage of each node.

    ``transpose(…)`` in a scope means backward. In a step that returns updated arguments, nodes that lead to no product
    and update such an argument are the optimizer's. A text without scopes does not separate forward from backward, and
    both are called forward.
    """
    updates = _optimizer_nodes(program)

    def stage(position: int, scope: str) -> Stage:
        if "transpose(" in scope:
            return Stage.BACKWARD
        return Stage.OPTIMIZER if position in updates and "jvp(" not in scope else Stage.FORWARD

    return [stage(position, node.scope) for position, node in enumerate(program.nodes)]


def _updated_arguments(program: FlatProgram) -> dict[int, int]:
    """Return the updated arguments and their results: by the text's aliases, else by type, in order."""
    if program.aliases:
        return dict(program.donated())
    updated: dict[int, int] = {}
    free = list(program.arguments)
    for result in program.outputs:
        spec = program.values[result]
        match = next((candidate for candidate in free if program.values[candidate] == spec and spec.shape), None)
        if match is not None:
            free.remove(match)
            updated[match] = result
    return updated


def _is_product(node: HloNode) -> bool:
    """Return whether a node is a product, or a fusion that contains one."""
    if node.inner is not None:
        return any(_is_product(inner_node) for inner_node in node.inner.nodes)
    return node.opcode in OPCODES["products"]


def _reaching_products(program: FlatProgram) -> set[int]:
    """Return the values that lead to a product, a library call, or a result that updates no argument (a loss)."""
    values = set(program.outputs) - set(_updated_arguments(program).values())
    for node in reversed(program.nodes):
        if _is_product(node) or values.intersection(node.outputs):
            values.update(node.inputs)
    return values


def _optimizer_nodes(program: FlatProgram) -> set[int]:
    """Return the nodes that compute the new value of an updated argument from its old one, and nothing else."""
    updated = _updated_arguments(program)
    leading = _reaching_products(program)
    needed = set(updated.values())
    towards: list[int] = []
    for position in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[position]
        if needed.intersection(node.outputs) and not leading.intersection(node.outputs) and not _is_product(node):
            towards.append(position)
            needed.update(node.inputs)
    nodes: set[int] = set()
    touched = set(updated)
    for position in reversed(towards):
        node = program.nodes[position]
        if touched.intersection(node.inputs):
            nodes.add(position)
            touched.update(node.outputs)
    return nodes


def argument_roles(
    program: FlatProgram, stages: Sequence[Stage], weights: Sequence[TensorSpec] = ()
) -> tuple[dict[int, StorageCategory], Sequence[TensorSpec]]:
    """Return the category of each argument's memory, and the weights: such arguments and literals.

    Given ``weights`` are assigned to arguments by shape and dtype, first to those that are updated and reach a product
    or to the loss. Otherwise the roles are inferred from the dataflow, as the text does not name them. Floating-point
    arguments are weights if the text calls them members of a collection (``params['w']``). Without such names they are
    weights unless they are the left operand of a matrix product or convolution. In a training step, an updated argument
    is a weight if it leads to a product or to the loss, and optimizer state otherwise. Any other argument is an input.
    """
    updated = _updated_arguments(program)
    model_inputs = _model_inputs(program)
    leading = _reaching_products(program)
    trains = Stage.OPTIMIZER in stages
    labels = zip(program.arguments, program.labels, strict=False)
    members = {value for value, label in labels if _MEMBER.search(label)}
    categories: dict[int, StorageCategory] = {}
    for value in program.arguments:
        spec = program.values[value]
        is_float = "float" in spec.dtype
        if trains and value in updated:
            is_weight = is_float and value in leading
            categories[value] = StorageCategory.PARAMETER if is_weight else StorageCategory.OPTIMIZER_STATE
        elif trains or not is_float or (value not in members if members else value in model_inputs):
            categories[value] = StorageCategory.INPUT
        else:
            categories[value] = StorageCategory.PARAMETER
    specs = program.values
    if weights:
        _assign_weights(program, categories, weights)
        return categories, weights
    values = [weight for weight, category in categories.items() if category is StorageCategory.PARAMETER]
    literals = [node.outputs[0] for node in program.nodes if node.is_tensor_literal]
    values += [value for value in literals if len(specs[value].shape) > 1 and "float" in specs[value].dtype]
    return categories, [specs[value] for value in values]


def _assign_weights(
    program: FlatProgram, categories: dict[int, StorageCategory], weights: Sequence[TensorSpec]
) -> None:
    """Give the arguments that fit the weights their category, and others that were taken for weights another."""
    unassigned = Counter(weights)
    likely = sorted(categories, key=lambda value: categories[value] is not StorageCategory.PARAMETER)
    updated = _updated_arguments(program)
    for value in likely:
        spec = program.values[value]
        if unassigned[spec] > 0:
            unassigned[spec] -= 1
            categories[value] = StorageCategory.PARAMETER
        elif categories[value] is StorageCategory.PARAMETER:
            categories[value] = StorageCategory.OPTIMIZER_STATE if value in updated else StorageCategory.INPUT


def _model_inputs(program: FlatProgram) -> set[int]:
    """Return the arguments that reach the left of a product, at most scaled and shifted by constants."""
    origin = {value: value for value in program.arguments}
    arguments: set[int] = set()
    for node in program.nodes:
        if node.opcode in ("dot", "convolution") and node.inputs[0] in origin:
            arguments.add(origin[node.inputs[0]])
        traced = [value for value in node.inputs if value in origin]
        prepares = node.opcode in OPCODES["scaling"] and len(traced) == 1 and _with_constant(program, node.inputs)
        reshapes = node.opcode in OPCODES["reshaping"] or node.opcode in OPCODES["aliases"]
        if (reshapes or prepares) and node.outputs and traced and node.inputs[0] in origin:
            origin[node.outputs[0]] = origin[node.inputs[0]]
    return arguments


def _with_constant(program: FlatProgram, inputs: Sequence[int]) -> bool:
    """Return whether one of two operands is a constant, itself or broadcast."""
    for value in inputs:
        maker = program.makers[value]
        while maker >= 0 and program.nodes[maker].opcode in ("broadcast", "convert", "reshape"):
            maker = program.makers[program.nodes[maker].inputs[0]]
        if maker >= 0 and program.nodes[maker].opcode == "constant":
            return True
    return False


def storage_events(
    program: FlatProgram,
    kernels: Sequence[FusedKernel],
    stages: Sequence[Stage],
    categories: dict[int, StorageCategory],
) -> Iterator[StorageEvent]:
    """Yield the storage events of the kernels in order.

    Arguments, constants and results are held throughout, but a result may take an argument's memory. A value that a
    loop passes on is held until its last reader after the loop. Within the loop, the values of one trip are held. A
    compiler that orders kernels by memory, or recomputes values, holds less.
    """
    use = _StorageUse(program, kernels, stages)
    for value in program.arguments:
        yield from use.allocate(value, 0, categories.get(value, StorageCategory.INPUT))
    for value in use.constants():
        yield from use.allocate(value, 0, StorageCategory.PARAMETER)
    for position, kernel in enumerate(kernels):
        for value in kernel.writes:
            yield from use.allocate(value, position, use.category(kernel, use.storage[value]))
        for storage in sorted(use.ending.get(position, ())):
            if storage in use.held:
                size, category = use.held.pop(storage)
                yield StorageEvent(position + 1, storage, -size, category)


class _StorageUse:
    """Storage of each value, the last kernel that reads it, and what is held."""

    def __init__(self, program: FlatProgram, kernels: Sequence[FusedKernel], stages: Sequence[Stage]) -> None:
        self.program, self.kernels, self.stages = program, kernels, stages
        self.storage = self._storages()
        self.sizes: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.ending: dict[int, list[int]] = {}
        self.held: dict[int, tuple[int, StorageCategory]] = {}
        for value, storage in enumerate(self.storage):
            self.sizes[storage] = max(self.program.values[value].size_bytes, self.sizes.get(storage, 0))
        for position, kernel in enumerate(self.kernels):
            for value in (*kernel.writes, *kernel.reads):
                self.last[self.storage[value]] = position
        self._extend_over_loops()
        for value in (*self.program.outputs, *self.program.arguments, *self.constants()):
            self.last.pop(self.storage[value], None)
        for storage, position in self.last.items():
            self.ending.setdefault(position, []).append(storage)

    def allocate(self, value: int, position: int, category: StorageCategory) -> Iterator[StorageEvent]:
        """Yield the allocation of a value's storage, unless it is held already."""
        storage = self.storage[value]
        size = self.sizes[storage]
        if size and storage not in self.held:
            self.held[storage] = size, category
            yield StorageEvent(position, storage, size, category)

    def category(self, kernel: FusedKernel, storage: int) -> StorageCategory:
        """Return activation for values of forward that are read later, and gradient for those of backward."""
        last = self.last.get(storage)
        if last is None:
            return StorageCategory.OTHER
        made_in, last_read_in = (self.stages[end.nodes[-1]] for end in (kernel, self.kernels[last]))
        if made_in is Stage.FORWARD:
            return StorageCategory.ACTIVATION
        if made_in is Stage.BACKWARD and last_read_in is Stage.OPTIMIZER:
            return StorageCategory.GRADIENT
        return StorageCategory.TEMPORARY

    def constants(self) -> list[int]:
        """Return the tensor literals."""
        literals = (node.outputs[0] for node in self.program.nodes if node.is_tensor_literal)
        return [value for value in literals if self.program.values[value].shape]

    def _storages(self) -> list[int]:
        """Return the storage of each value. Aliases, in-place updates and donated arguments share one."""
        storage = list(range(len(self.program.values)))
        donated = {result: argument for argument, result in self.program.donated() if self.program.makers[result] >= 0}
        for node in self.program.nodes:
            if not node.outputs:
                continue
            opcode = node.inner.nodes[-1].opcode if node.inner and node.inner.nodes else node.opcode
            if node.opcode in OPCODES["aliases"]:
                storage[node.outputs[0]] = storage[node.inputs[0]]
            elif opcode in OPCODES["in_place"]:
                specs = self.program.values
                for operand in node.inputs:
                    if specs[operand] == specs[node.outputs[0]]:
                        storage[node.outputs[0]] = storage[operand]
                        break
            elif node.outputs[0] in donated:
                for value in node.outputs:
                    storage[value] = donated.get(value, value)
        return storage

    def _extend_over_loops(self) -> None:
        """Hold values from outside a loop until the loop ends, as the next trip reads them again."""
        ends: dict[int, int] = {}
        begins: dict[int, int] = {}
        for position, kernel in enumerate(self.kernels):
            ends[kernel.loop] = position
            begins.setdefault(kernel.loop, position)
        written_at = {
            self.storage[value]: position for position, kernel in enumerate(self.kernels) for value in kernel.writes
        }
        for kernel in self.kernels:
            if kernel.loop == 0:
                continue
            for value in kernel.reads:
                storage = self.storage[value]
                if written_at.get(storage, -1) < begins[kernel.loop] and storage in self.last:
                    self.last[storage] = max(self.last[storage], ends[kernel.loop])
