"""Memory of a program: roles of its arguments, and how long the values of its kernels are held."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from leadline.core.graph import Stage, StorageCategory, StorageEvent
from leadline.graphs.hlo.costs import ALIASES
from leadline.graphs.hlo.flatten import FlatProgram
from leadline.graphs.hlo.kernel_merge import FusedKernel
from leadline.graphs.hlo.module import element_count, size_bytes
from leadline.graphs.hlo.stages import reaching_products, updated_arguments

_MEMBER = re.compile(r"\['|\.\w")
"""A member of a collection, as in ``params['w']`` or ``model.kernel``."""

RESHAPING = ALIASES | {"transpose", "convert", "slice", "broadcast", "copy", "reverse", "dynamic_slice"}
"""Opcodes that show an argument in another form."""

SCALING = frozenset({"subtract", "multiply", "divide", "add", "negate"})
"""Opcodes that scale or shift an input by constants."""


@dataclass(frozen=True, slots=True)
class ArgumentRoles:
    """Category of each argument's memory, and count and bytes of the weights."""

    categories: dict[int, StorageCategory] = field(default_factory=dict)
    parameters: int = 0
    parameter_bytes: int = 0


def argument_roles(program: FlatProgram, stages: Sequence[Stage]) -> ArgumentRoles:
    """Return the role of each argument.

    The roles are inferred from the dataflow, as the text does not name them. Floating-point arguments are weights if
    the text calls them members of a collection (``params['w']``). Without such names they are weights unless they are
    the left operand of a matrix product or convolution. In a training step, an updated argument is a weight if it leads
    to a product or to the loss, and optimizer state otherwise. Any other argument is an input.
    """
    updated = updated_arguments(program)
    model_inputs = _model_inputs(program)
    leading = reaching_products(program)
    trains = Stage.OPTIMIZER in stages
    members = {
        value for value, label in zip(program.arguments, program.labels, strict=False) if _MEMBER.search(label)
    }  # fmt: skip
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
    weights = [weight for weight, category in categories.items() if category is StorageCategory.PARAMETER]
    weights += [
        node.outputs[0] for node in program.nodes
        if node.opcode == "constant" and "value" not in node.attributes and _is_matrix(program, node.outputs[0])
    ]  # fmt: skip
    return ArgumentRoles(
        categories,
        sum(element_count(program.values[weight]) for weight in weights),
        sum(size_bytes(program.values[weight]) for weight in weights),
    )


def _is_matrix(program: FlatProgram, value: int) -> bool:
    spec = program.values[value]
    return len(spec.shape) > 1 and "float" in spec.dtype


def _model_inputs(program: FlatProgram) -> set[int]:
    """Return the arguments that reach the left of a product, at most scaled and shifted by constants."""
    origin = {value: value for value in program.arguments}
    arguments: set[int] = set()
    for node in program.nodes:
        if node.opcode in ("dot", "convolution") and node.inputs[0] in origin:
            arguments.add(origin[node.inputs[0]])
        if not node.outputs:
            continue
        traced = [origin[value] for value in node.inputs if value in origin]
        prepares = node.opcode in SCALING and len(traced) == 1 and _with_constant(program, node.inputs)
        plain = node.opcode in RESHAPING or prepares
        if plain and traced and node.inputs[0] in origin:
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


IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})
"""Opcodes that may change their first operand's memory in place of a copy, if nothing reads it later."""


def storage_events(
    program: FlatProgram, kernels: Sequence[FusedKernel], stages: Sequence[Stage], roles: ArgumentRoles
) -> Iterator[StorageEvent]:
    """Yield the storage events of the kernels in order.

    Arguments, constants and results are held throughout, but a result may take an argument's memory. A value that a
    loop passes on is held until its last reader after the loop. Within the loop, the values of one trip are held. A
    compiler that orders kernels by memory, or recomputes values, holds less.
    """
    use = _StorageUse(program, list(kernels))
    use.find_storages()
    held_sizes: dict[int, int] = {}
    for value in program.arguments:
        yield from _allocate(use, value, 0, roles.categories.get(value, StorageCategory.INPUT), held_sizes)
    for value in use.constants():
        yield from _allocate(use, value, 0, StorageCategory.PARAMETER, held_sizes)
    for position, kernel in enumerate(kernels):
        for value in kernel.writes:
            storage = use.storage[value]
            if storage not in held_sizes:
                yield from _allocate(use, value, position, _category(use, kernel, stages, storage), held_sizes)
        for storage in sorted(use.ending.get(position, ())):
            if storage in held_sizes:
                yield StorageEvent(position + 1, storage, -held_sizes.pop(storage), use.categories[storage])


def _allocate(
    use: "_StorageUse", value: int, position: int, category: StorageCategory, held_sizes: dict[int, int]
) -> Iterator[StorageEvent]:
    storage = use.storage[value]
    size = use.sizes[storage]
    if size and storage not in held_sizes:
        held_sizes[storage] = size
        use.categories[storage] = category
        yield StorageEvent(position, storage, size, category)


def _category(use: "_StorageUse", kernel: FusedKernel, stages: Sequence[Stage], storage: int) -> StorageCategory:
    """Return activation for values of forward that are read later, and gradient for those of backward."""
    made_in = stages[kernel.nodes[-1]]
    last = use.last.get(storage)
    if last is None:
        return StorageCategory.OTHER
    last_read_in = stages[use.kernels[min(last, len(use.kernels) - 1)].nodes[-1]]
    if made_in is Stage.FORWARD:
        return StorageCategory.ACTIVATION
    if made_in is Stage.BACKWARD and last_read_in is Stage.OPTIMIZER:
        return StorageCategory.GRADIENT
    return StorageCategory.TEMPORARY


@dataclass(slots=True)
class _StorageUse:
    """Storage of each value, and the last kernel that reads it."""

    program: FlatProgram
    kernels: list[FusedKernel]
    storage: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    ending: dict[int, list[int]] = field(default_factory=dict)
    categories: dict[int, StorageCategory] = field(default_factory=dict)

    def find_storages(self) -> None:
        """Assign storages and find the last use of each."""
        self.storage = self._storages()
        for value, storage in enumerate(self.storage):
            size = size_bytes(self.program.values[value])
            self.sizes[storage] = max(size, self.sizes.get(storage, 0))
        for position, kernel in enumerate(self.kernels):
            for value in (*kernel.writes, *kernel.reads):
                self.last[self.storage[value]] = position
        self._extend_over_loops()
        permanent = {
            self.storage[value] for value in (*self.program.outputs, *self.program.arguments, *self.constants())
        }
        for storage in permanent:
            self.last.pop(storage, None)
        for storage, position in self.last.items():
            self.ending.setdefault(position, []).append(storage)

    def constants(self) -> list[int]:
        """Return the tensor literals."""
        literals = (node for node in self.program.nodes if node.opcode == "constant" and "value" not in node.attributes)
        return [node.outputs[0] for node in literals if self.program.values[node.outputs[0]].shape]

    def _storages(self) -> list[int]:
        """Return the storage of each value. Aliases, in-place updates and donated arguments share one."""
        storage = list(range(len(self.program.values)))
        donated = self._donated()
        for node in self.program.nodes:
            if not node.outputs:
                continue
            opcode = node.inner.nodes[-1].opcode if node.inner and node.inner.nodes else node.opcode
            if node.opcode in ALIASES:
                storage[node.outputs[0]] = storage[node.inputs[0]]
            elif opcode in IN_PLACE:
                operands = [
                    operand
                    for operand in node.inputs
                    if self.program.values[operand] == self.program.values[node.outputs[0]]
                ]
                if operands:
                    storage[node.outputs[0]] = storage[operands[0]]
            elif node.outputs[0] in donated:
                for value in node.outputs:
                    storage[value] = donated.get(value, value)
        return storage

    def _donated(self) -> dict[int, int]:
        """Return the argument whose memory each result takes."""
        return {
            self.program.outputs[result]: self.program.arguments[argument]
            for result, argument in self.program.aliases.items()
            if result < len(self.program.outputs) and argument < len(self.program.arguments)
            and self.program.makers[self.program.outputs[result]] >= 0
        }  # fmt: skip

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
