"""Find how often a loop runs, by tracking the few whole numbers that its condition reads."""

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leadline.graphs.hlo.module import Computation, Instruction, Module

KnownNumber = int | None | tuple["KnownNumber", ...]
"""A number, a tuple of numbers, or ``None`` if unknown (tensors, and numbers that depend on data)."""

MOST_TRIPS = 2**40
"""Trips above which a loop is assumed to end by data."""

LARGEST = 2**63
"""Numbers beyond it are unknown: a module holds none."""

ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "maximum": max, "minimum": min,
    "divide": lambda a, b: a // b if b else 0, "remainder": lambda a, b: a % b if b else 0,
    "and": operator.and_, "or": operator.or_,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
UNARY: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("convert", "copy", "bitcast", "reshape", "broadcast", "optimization_barrier"), int),
    "not": operator.not_, "negate": operator.neg,
}  # fmt: skip


def count_trips(
    module: Module, loop: Instruction, start: Sequence[KnownNumber], outer: Callable[[str], KnownNumber]
) -> int | None:
    """Return how often the body of ``loop`` runs, or ``None`` if that depends on data.

    The compiler's own count is used if the loop has one. Otherwise the numbers that the body changes by a constant step
    are extrapolated until the condition fails. ``start`` are the known numbers of the state that the loop is entered
    with, and ``outer`` returns the known number behind a name outside of the loop.
    """
    if "trips" in loop.attributes:
        return loop.number("trips")
    condition, body = (module.computations[name] for name in loop.called[:2])
    once = _after(module, body, start, outer)
    twice = _after(module, body, once, outer)
    steps = [_constant_step(*three) for three in zip(start, once, twice, strict=True)]

    def continues(trip: int) -> bool | None:
        numbers = [number + step * trip if isinstance(number, int) and step is not None else None
              for number, step in zip(start, steps, strict=True)]  # fmt: skip
        verdict = _Scalars(module, condition, numbers, outer).returned()
        return bool(verdict) if isinstance(verdict, int) else None

    return _first_refused(continues)


def _first_refused(continues: Callable[[int], bool | None]) -> int | None:
    """Return the first trip that the condition refuses, by doubling and halving."""
    high = 1
    if not (begins := continues(0)):
        return None if begins is None else 0
    while continues(high):
        high *= 2
        if high > MOST_TRIPS:
            return None
    return bisect_left(range(high), True, lo=high // 2, key=lambda trip: not continues(trip))  # noqa: FBT003


def _constant_step(before: KnownNumber, once: KnownNumber, twice: KnownNumber) -> int | None:
    if not (isinstance(before, int) and isinstance(once, int) and isinstance(twice, int)):
        return None
    return once - before if once - before == twice - once else None


def _after(
    module: Module, body: Computation, before: Sequence[KnownNumber], outer: Callable[[str], KnownNumber]
) -> list[KnownNumber]:
    returned = _Scalars(module, body, before, outer).returned()
    return list(returned) if isinstance(returned, tuple) else [returned]


@dataclass(slots=True)
class _Scalars:
    """The known numbers of one computation, given known parameters."""

    module: Module
    computation: Computation
    start: Sequence[KnownNumber]
    outer: Callable[[str], KnownNumber]
    numbers: dict[str, KnownNumber] = field(default_factory=dict)
    _lines: dict[str, Instruction] = field(default_factory=dict)

    def returned(self) -> KnownNumber:
        """Return the results of the computation."""
        names = [name for name, _ in self.computation.parameters]
        if len(names) == 1 and len(self.start) != 1:
            self.numbers[names[0]] = tuple(self.start)
        else:
            self.numbers.update(zip(names, self.start, strict=False))
        self._lines = {instruction.name: instruction for instruction in self.computation.instructions}
        values = tuple(self.value(name) for name in self.computation.returned)
        return values[0] if len(values) == 1 else values

    def value(self, name: str) -> KnownNumber:
        base, _, index = name.partition("#")
        if base not in self.numbers:
            if base not in self._lines:
                self.numbers[base] = self.outer(name)
                return self.numbers[base]
            self.numbers[base] = self._compute(self._lines[base])
        number = self.numbers[base]
        if not index:
            return number
        return number[int(index)] if isinstance(number, tuple) else None

    def _compute(self, line: Instruction) -> KnownNumber:
        if line.opcode == "constant":
            value = line.attributes.get("value")
            return value if isinstance(value, int) else None
        operands = [self.value(name) for name in line.operands]
        if line.opcode == "tuple":
            return tuple(operands)
        if line.opcode == "get_tuple_element":
            return operands[0][line.number("index", 0)] if isinstance(operands[0], tuple) else None
        if line.opcode in ("call", "fusion") and line.called:
            inside = self.module.computations[line.called[0]]
            return _Scalars(self.module, inside, operands, lambda _: None).returned()
        if any(spec.elements != 1 or "float" in spec.dtype for spec in line.results):
            return None
        return self._scalar(line, operands)

    @staticmethod
    def _scalar(line: Instruction, operands: list[KnownNumber]) -> KnownNumber:
        if line.opcode == "select" and isinstance(operands[0], int):
            return operands[1] if operands[0] else operands[2]
        numbers = [operand for operand in operands if isinstance(operand, int)]
        if not numbers or len(numbers) < len(operands):
            return None
        if line.opcode == "compare":
            return int(COMPARISONS[str(line.attributes["direction"])](*numbers))
        if line.opcode in UNARY:
            return UNARY[line.opcode](numbers[0])
        number = ARITHMETIC[line.opcode](*numbers) if line.opcode in ARITHMETIC else None
        # a product of products would fill the memory
        return None if number is None or abs(number) > LARGEST else number
