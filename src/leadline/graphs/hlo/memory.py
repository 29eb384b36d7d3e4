"""Tell weights, optimizer state and inputs apart among a module's arguments."""

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
"""What is taken from a collection by its name, as in ``params['w']`` or ``model.kernel``."""

PLAIN = ALIASES | {"transpose", "convert", "slice", "broadcast", "copy", "reverse", "dynamic_slice"}
"""What shows an argument in another form."""

POINTWISE = frozenset({"subtract", "multiply", "divide", "add", "negate"})
"""What prepares an input with constants."""


@dataclass(frozen=True, slots=True)
class ArgumentRoles:
    """What each argument's memory holds; ``parameters`` counts the weights."""

    categories: dict[int, StorageCategory] = field(default_factory=dict)
    parameters: int = 0
    parameter_bytes: int = 0


def argument_roles(program: FlatProgram, stages: Sequence[Stage]) -> ArgumentRoles:
    """Return the role of each argument.

    Weights come in collections: floating-point arguments are weights if the text calls them members of one
    (``params['w']``). Where it names none, they are but for those that plainly stand on the left of a matrix product or
    convolution. In a training step an argument that is given back is a weight if it leads to a product or to the loss,
    else state of the optimizer; one that is not given back is an input. This is a reading of the dataflow: the text
    does not say.
    """
    updated = updated_arguments(program)
    fed = _fed(program)
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
            weight = is_float and value in leading
            categories[value] = StorageCategory.PARAMETER if weight else StorageCategory.OPTIMIZER_STATE
        elif trains or not is_float or (value not in members if members else value in fed):
            categories[value] = StorageCategory.INPUT
        else:
            categories[value] = StorageCategory.PARAMETER
    weights = [one for one, category in categories.items() if category is StorageCategory.PARAMETER]
    weights += [
        node.outputs[0] for node in program.nodes
        if node.opcode == "constant" and "value" not in node.attributes and _is_matrix(program, node.outputs[0])
    ]  # fmt: skip
    return ArgumentRoles(
        categories,
        sum(element_count(program.values[one]) for one in weights),
        sum(size_bytes(program.values[one]) for one in weights),
    )


def _is_matrix(program: FlatProgram, value: int) -> bool:
    spec = program.values[value]
    return len(spec.shape) > 1 and "float" in spec.dtype


def _fed(program: FlatProgram) -> set[int]:
    """Return the arguments that reach the left of a product, at most scaled and shifted by constants."""
    origin = {value: value for value in program.arguments}
    found: set[int] = set()
    for node in program.nodes:
        if node.opcode in ("dot", "convolution") and node.inputs[0] in origin:
            found.add(origin[node.inputs[0]])
        if not node.outputs:
            continue
        known = [origin[value] for value in node.inputs if value in origin]
        prepares = node.opcode in POINTWISE and len(known) == 1 and _with_constant(program, node.inputs)
        plain = node.opcode in PLAIN or prepares
        if plain and known and node.inputs[0] in origin:
            origin[node.outputs[0]] = origin[node.inputs[0]]
    return found


def _with_constant(program: FlatProgram, inputs: Sequence[int]) -> bool:
    """Whether one of two operands is a constant, as it stands or spread."""
    for value in inputs:
        maker = program.makers[value]
        while maker >= 0 and program.nodes[maker].opcode in ("broadcast", "convert", "reshape"):
            maker = program.makers[program.nodes[maker].inputs[0]]
        if maker >= 0 and program.nodes[maker].opcode == "constant":
            return True
    return False


IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})
"""What may change its first operand's memory instead of copying it, if nobody reads that later."""


def storage_events(
    program: FlatProgram, kernels: Sequence[FusedKernel], stages: Sequence[Stage], roles: ArgumentRoles
) -> Iterator[StorageEvent]:
    """Yield the storage events of the kernels in order.

    Arguments are held throughout, and so are constants; results too, but where one takes an argument's memory. A value
    that a loop hands on is held as long as something after it reads it; within the loop one trip's values are held.
    A compiler that orders kernels by memory, or computes values again to save it, holds less.
    """
    tally = _Tally(program, list(kernels))
    tally.read()
    held: dict[int, int] = {}
    for value in program.arguments:
        yield from _take(tally, value, 0, roles.categories.get(value, StorageCategory.INPUT), held)
    for value in tally.constants():
        yield from _take(tally, value, 0, StorageCategory.PARAMETER, held)
    for place, kernel in enumerate(kernels):
        for value in kernel.writes:
            storage = tally.storage[value]
            if storage not in held:
                yield from _take(tally, value, place, _category(tally, kernel, stages, storage), held)
        for storage in sorted(tally.ending.get(place, ())):
            if storage in held:
                yield StorageEvent(place + 1, storage, -held.pop(storage), tally.categories[storage])


def _take(
    tally: "_Tally", value: int, place: int, category: StorageCategory, held: dict[int, int]
) -> Iterator[StorageEvent]:
    storage = tally.storage[value]
    size = tally.sizes[storage]
    if size and storage not in held:
        held[storage] = size
        tally.categories[storage] = category
        yield StorageEvent(place, storage, size, category)


def _category(tally: "_Tally", kernel: FusedKernel, stages: Sequence[Stage], storage: int) -> StorageCategory:
    """Call what the forward pass keeps for a later stage an activation; what is the last to be read, a temporary."""
    made = stages[kernel.nodes[-1]]
    last = tally.last.get(storage)
    if last is None:
        return StorageCategory.OTHER
    later = stages[tally.kernels[min(last, len(tally.kernels) - 1)].nodes[-1]]
    if made is Stage.FORWARD:
        return StorageCategory.ACTIVATION
    if made is Stage.BACKWARD and later is Stage.OPTIMIZER:
        return StorageCategory.GRADIENT
    return StorageCategory.TEMPORARY


@dataclass(slots=True)
class _Tally:
    """Which storage each value is in, and after which kernel it is read no more."""

    program: FlatProgram
    kernels: list[FusedKernel]
    storage: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    ending: dict[int, list[int]] = field(default_factory=dict)
    categories: dict[int, StorageCategory] = field(default_factory=dict)

    def read(self) -> None:
        """Assign storages and find the end of each."""
        self.storage = self._storages()
        for value, storage in enumerate(self.storage):
            size = size_bytes(self.program.values[value])
            self.sizes[storage] = max(size, self.sizes.get(storage, 0))
        for place, kernel in enumerate(self.kernels):
            for value in (*kernel.writes, *kernel.reads):
                self.last[self.storage[value]] = place
        self._stretch_over_loops()
        kept = {self.storage[value] for value in (*self.program.outputs, *self.program.arguments, *self.constants())}
        for storage in kept:
            self.last.pop(storage, None)
        for storage, place in self.last.items():
            self.ending.setdefault(place, []).append(storage)

    def constants(self) -> list[int]:
        """Return the values of literals that are tensors."""
        literals = (one for one in self.program.nodes if one.opcode == "constant" and "value" not in one.attributes)
        return [one.outputs[0] for one in literals if self.program.values[one.outputs[0]].shape]

    def _storages(self) -> list[int]:
        """Return a storage for each value: aliases share one, updates in place and donated arguments too."""
        storage = list(range(len(self.program.values)))
        donated = self._donated()
        for node in self.program.nodes:
            if not node.outputs:
                continue
            first = node.inner.nodes[-1].opcode if node.inner and node.inner.nodes else node.opcode
            if node.opcode in ALIASES:
                storage[node.outputs[0]] = storage[node.inputs[0]]
            elif first in IN_PLACE:
                same = [one for one in node.inputs if self.program.values[one] == self.program.values[node.outputs[0]]]
                if same:
                    storage[node.outputs[0]] = storage[same[0]]
            elif node.outputs[0] in donated:
                for value in node.outputs:
                    storage[value] = donated.get(value, value)
        return storage

    def _donated(self) -> dict[int, int]:
        """Return which argument's memory each result takes."""
        return {
            self.program.outputs[result]: self.program.arguments[argument]
            for result, argument in self.program.aliases.items()
            if result < len(self.program.outputs) and argument < len(self.program.arguments)
            and self.program.makers[self.program.outputs[result]] >= 0
        }  # fmt: skip

    def _stretch_over_loops(self) -> None:
        """Hold what comes from outside of a loop until the loop ends: the next trip reads it again."""
        ends: dict[int, int] = {}
        begins: dict[int, int] = {}
        for place, kernel in enumerate(self.kernels):
            ends[kernel.loop] = place
            begins.setdefault(kernel.loop, place)
        made = {self.storage[value]: place for place, kernel in enumerate(self.kernels) for value in kernel.writes}
        for kernel in self.kernels:
            if kernel.loop == 0:
                continue
            for value in kernel.reads:
                storage = self.storage[value]
                if made.get(storage, -1) < begins[kernel.loop] and storage in self.last:
                    self.last[storage] = max(self.last[storage], ends[kernel.loop])
