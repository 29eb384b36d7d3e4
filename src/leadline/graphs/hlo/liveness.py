"""Follow what memory the values of a program hold, from the kernel that makes them to the last that reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from leadline.core.graph import Stage, StorageCategory, StorageEvent
from leadline.graphs.hlo.costs import ALIASES
from leadline.graphs.hlo.flatten import Program
from leadline.graphs.hlo.joining import Kernel
from leadline.graphs.hlo.module import size_bytes
from leadline.graphs.hlo.roles import Roles

IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})
"""What may change its first operand's memory instead of copying it, if nobody reads that later."""


def storage_events(
    program: Program, kernels: Sequence[Kernel], stages: Sequence[Stage], roles: Roles
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


def _category(tally: "_Tally", kernel: Kernel, stages: Sequence[Stage], storage: int) -> StorageCategory:
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

    program: Program
    kernels: list[Kernel]
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
