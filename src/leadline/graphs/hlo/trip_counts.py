"""Find how often a loop runs, by following the few whole numbers that its condition reads."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leadline.graphs.hlo.module import Computation, Instruction, Module, element_count

KnownNumber = int | None | tuple["KnownNumber", ...]
"""A number, a tuple of such, or ``None`` for what is not known (tensors, and numbers that depend on data)."""

MOST_TRIPS = 2**40
"""Trips beyond which a loop is taken to be one that data ends."""

ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "maximum": max, "minimum": min,
    "divide": lambda a, b: a // b if b else 0, "remainder": lambda a, b: a % b if b else 0,
    "and": operator.and_, "or": operator.or_,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
ALONE: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("convert", "copy", "bitcast", "reshape", "broadcast", "optimization_barrier"), int),
    "not": operator.not_, "negate": operator.neg,
}  # fmt: skip


def count_trips(
    module: Module,
    loop: Instruction,
    start: Sequence[KnownNumber],
    outer: Callable[[str], KnownNumber] = lambda _: None,
) -> int | None:
    """Return how often the body of ``loop`` runs when it is entered with ``start``; ``None`` if data decides.

    What the compiler wrote on the loop counts; else the numbers among ``start`` that the body changes by the same
    amount each time are followed until the condition fails. ``outer`` says what names outside of the loop hold.
    """
    if "trips" in loop.attributes:
        return loop.number("trips")
    condition, body = (module.computations[name] for name in loop.called[:2])
    before = list(start)
    once = _after(module, body, before, outer)
    twice = _after(module, body, once, outer)
    steps = [_step(*three) for three in zip(before, once, twice, strict=True)]

    def goes_on(trip: int) -> bool | None:
        at = [one + step * trip if isinstance(one, int) and step is not None else None
              for one, step in zip(before, steps, strict=True)]  # fmt: skip
        found = _Scalars(module, condition, at, outer).returned()
        return bool(found) if isinstance(found, int) else None

    return _first_end(goes_on)


def _first_end(goes_on: Callable[[int], bool | None]) -> int | None:
    """Return the first trip that the condition refuses, found by doubling and halving."""
    high = 1
    if goes_on(0) is None:
        return None
    if not goes_on(0):
        return 0
    while goes_on(high):
        high *= 2
        if high > MOST_TRIPS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes_on(middle) else (low, middle)
    return high


def _step(before: KnownNumber, once: KnownNumber, twice: KnownNumber) -> int | None:
    if not (isinstance(before, int) and isinstance(once, int) and isinstance(twice, int)):
        return None
    return once - before if once - before == twice - once else None


def _after(
    module: Module, body: Computation, before: Sequence[KnownNumber], outer: Callable[[str], KnownNumber]
) -> list[KnownNumber]:
    found = _Scalars(module, body, before, outer).returned()
    return list(found) if isinstance(found, tuple) else [found]


@dataclass(slots=True)
class _Scalars:
    """The known numbers of one computation, entered with known parameters."""

    module: Module
    computation: Computation
    start: Sequence[KnownNumber]
    outer: Callable[[str], KnownNumber]
    known: dict[str, KnownNumber] = field(default_factory=dict)
    _lines: dict[str, Instruction] = field(default_factory=dict)

    def returned(self) -> KnownNumber:
        """Return what the computation returns: of one parameter that is a tuple, a tuple."""
        names = [name for name, _ in self.computation.parameters]
        if len(names) == 1 and len(self.start) != 1:
            self.known[names[0]] = tuple(self.start)
        else:
            self.known.update(zip(names, self.start, strict=False))
        self._lines = {one.name: one for one in self.computation.instructions}
        found = tuple(self.value(name) for name in self.computation.returned)
        return found[0] if len(found) == 1 else found

    def value(self, name: str) -> KnownNumber:
        base, _, index = name.partition("#")
        if base not in self.known:
            line = self._lines.get(base)
            self.known[base] = self.outer(name) if line is None else self._compute(line)
            if line is None:
                return self.known[base]
        found = self.known[base]
        if not index:
            return found
        return found[int(index)] if isinstance(found, tuple) else None

    def _compute(self, line: Instruction) -> KnownNumber:
        if line.opcode == "constant":
            value = line.attributes.get("value")
            return value if isinstance(value, int) else None
        given = [self.value(name) for name in line.operands]
        if line.opcode == "tuple":
            return tuple(given)
        if line.opcode == "get_tuple_element":
            return given[0][line.number("index", 0)] if isinstance(given[0], tuple) else None
        if line.opcode in ("call", "fusion") and line.called:
            inside = self.module.computations[line.called[0]]
            return _Scalars(self.module, inside, given, lambda _: None).returned()
        if any(element_count(spec) != 1 or "float" in spec.dtype for spec in line.results):
            return None
        return self._scalar(line, given)

    @staticmethod
    def _scalar(line: Instruction, given: list[KnownNumber]) -> KnownNumber:
        if line.opcode == "select" and isinstance(given[0], int):
            return given[1] if given[0] else given[2]
        numbers = [one for one in given if isinstance(one, int)]
        if not numbers or len(numbers) < len(given):
            return None
        if line.opcode == "compare":
            return int(COMPARISONS[str(line.attributes["direction"])](*numbers))
        if line.opcode in ALONE:
            return ALONE[line.opcode](numbers[0])
        return ARITHMETIC[line.opcode](*numbers) if line.opcode in ARITHMETIC else None
