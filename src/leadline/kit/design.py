"""Which points are measured, and in which order: any beginning of the list is a balanced experiment."""

import random
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice, product
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from leadline.kit.specs import DECODE, LARGE, SPECS, TRAINING, Spec

PRECISIONS = {
    "fp32": "float32", "tf32": "tf32", "fp16": "float16", "amp-fp16": "float16", "bf16": "bfloat16",
    "amp-bf16": "bfloat16",
}  # fmt: skip
"""Precision → the dtype of its products. ``amp-…`` keeps float32 weights; ``fp16`` and ``bf16`` are pure."""
OPTIMIZERS = (("sgd", False), ("momentum", False), ("adamw", False), ("adamw", True))
"""Name of the update rule, and whether torch's fused kernel computes it."""
EFFICIENCY = 0.3
"""Share of a device's rate of products that a step is expected to reach, to tell beforehand what takes too long."""
LONGEST = 4000
"""Points of a design; a device that is through with so many has been measured enough."""

TRIES = 50
"""Points drawn from a family, all dealt before, after which those that remain are dealt in any order."""


@dataclass(frozen=True)
class MeasurementPoint:
    """One thing to measure; ``size`` is the image's side, the tokens of a sequence or the features of a vector."""

    model: str
    size: int
    phase: str
    precision: str
    batch: int
    optimizer: str = ""
    fused: bool = False
    channels_last: bool = False
    checkpointing: bool = False
    compiled: bool = False

    @property
    def cell(self) -> str:
        """Everything but the batch, in words."""
        rule = [self.optimizer + ("-fused" if self.fused else "")] if self.optimizer else []
        marks = [name for name in ("channels_last", "checkpointing", "compiled") if getattr(self, name)]
        return "/".join([f"{self.model}-{self.size}", self.phase, self.precision, *rule, *marks])

    @property
    def key(self) -> str:
        """What a file knows the point by."""
        return f"{self.cell}/b{self.batch}"

    def document(self) -> Dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class DesignSettings:
    """What a design depends on; a file's header keeps it, so that a resumed run goes on with the same design.

    ``rates`` maps the dtype of products to the FLOP/s that the device reached; a dtype that it lacks is absent.
    ``longest_step_s`` bounds the steps that are worth their time.
    """

    device_type: str
    rates: Mapping[str, float]
    packages: Sequence[str] = ()
    seed: int = 0
    quick: bool = False
    compiled: bool = False
    longest_step_s: float = 1.0


def design_points(settings: DesignSettings) -> List[MeasurementPoint]:
    """Return the points in the order in which they should be measured.

    Families take turns. Within a family the next point is the one whose model, phase, precision, batch and options
    were dealt least so far, alone and in pairs (minimisation, Pocock and Simon 1975); ties are broken by the seed.
    """
    return list(islice(_Dealer(settings).deal(), LONGEST))


def expected_step_s(spec: Spec, point: MeasurementPoint, rates: Mapping[str, float]) -> float:
    """Return a rough guess of a step's seconds: a backward pass is two forward ones, checkpointing one more."""
    work = spec.work[point.size] * point.batch
    if point.phase == TRAINING:
        work *= 4 if point.checkpointing else 3
    if point.phase == DECODE:
        work /= point.size
    return work / (rates[PRECISIONS[point.precision]] * EFFICIENCY)


@dataclass
class _Cell:
    """A model at one size in one phase and precision, with the batches that are worth their time."""

    spec: Spec
    size: int
    phase: str
    precision: str
    batches: List[int]

    @property
    def options(self) -> List[Tuple[str, Sequence[Any]]]:
        """The options that there are, each with its levels."""
        found: List[Tuple[str, Sequence[Any]]] = []
        if self.phase == TRAINING:
            found.append(("rule", OPTIMIZERS))
        if "channels_last" in self.spec.traits:
            found.append(("channels_last", (False, True)))
        if "checkpointing" in self.spec.traits and self.phase == TRAINING:
            found.append(("checkpointing", (False, True)))
        return found


class _Dealer:
    """Deals points, and remembers how often each level, and each pair of levels, was dealt."""

    def __init__(self, settings: DesignSettings) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)  # noqa: S311 - an order of experiments, no secret
        self.seen: Counter = Counter()  # type: ignore[type-arg] # Counter[...] of 3.9 has tuples of many lengths
        self.cells: Dict[str, List[_Cell]] = {}
        self.rest: Dict[str, List[MeasurementPoint]] = {}
        for cell in self._all_cells():
            self.cells.setdefault(cell.spec.family, []).append(cell)

    def deal(self) -> Iterator[MeasurementPoint]:
        """Yield points, a family at a time, none twice, until no family has another to give."""
        families = sorted(self.cells)
        self.random.shuffle(families)
        taken: Set[str] = set()
        while families:
            for family in list(families):
                point = self._new(family, taken)
                if point is None:
                    families.remove(family)
                    continue
                taken.add(point.key)
                yield point

    def _new(self, family: str, taken: Set[str]) -> Optional[MeasurementPoint]:
        """Return a point of a family that was not dealt yet; ``None`` if there is none."""
        if family not in self.rest:
            drawn = (self._next(self.cells[family]) for _ in range(TRIES))
            point = next((one for one in drawn if one.key not in taken), None)
            if point is not None:
                return point
            self.rest[family] = [one for cell in self.cells[family] for one in self._points(cell)]
            self.random.shuffle(self.rest[family])
        left = self.rest[family]
        while left:
            point = left.pop()
            if point.key not in taken:
                return point
        return None

    def _points(self, cell: _Cell) -> Iterator[MeasurementPoint]:
        """Yield every point of a cell."""
        options = self._options(cell)
        for batch in cell.batches:
            for levels in product(*(levels for _, levels in options)):
                yield self._point(cell, batch, dict(zip((name for name, _ in options), levels)))

    def _options(self, cell: _Cell) -> List[Tuple[str, Sequence[Any]]]:
        return [*cell.options, *([("compiled", (False, True))] if self.settings.compiled else [])]

    @staticmethod
    def _point(cell: _Cell, batch: int, chosen: Dict[str, Any]) -> MeasurementPoint:
        optimizer, fused = chosen.pop("rule", ("", False))
        return MeasurementPoint(
            cell.spec.name, cell.size, cell.phase, cell.precision, batch, optimizer, fused, **chosen
        )

    def _all_cells(self) -> Iterator[_Cell]:
        settings = self.settings
        for spec in SPECS.values():
            missing = spec.package and spec.package not in settings.packages
            unfit = settings.device_type == "cpu" and spec.name in LARGE
            if (settings.quick and not spec.quick) or missing or unfit:
                continue
            for size in spec.work:
                for phase in spec.phases:
                    for precision in self._precisions(phase):
                        cell = _Cell(spec, size, phase, precision, self._batches(spec, size, phase, precision))
                        if cell.batches:
                            yield cell

    def _precisions(self, phase: str) -> List[str]:
        rates = self.settings.rates
        names = [name for name, compute in PRECISIONS.items() if compute in rates]
        return [name for name in names if name != "fp16" or phase != TRAINING]  # pure half precision trains nothing

    def _batches(self, spec: Spec, size: int, phase: str, precision: str) -> List[int]:
        found = []
        batch = 2 if phase == TRAINING and spec.quick else 1  # batch norm of one value is refused
        while batch <= (64 if self.settings.quick else spec.max_batch):
            point = MeasurementPoint(spec.name, size, phase, precision, batch)
            if expected_step_s(spec, point, self.settings.rates) <= self.settings.longest_step_s:
                found.append(batch)
            batch *= 2
        return found

    def _next(self, cells: List[_Cell]) -> MeasurementPoint:
        cell = self._cell(cells)
        name, phase = cell.spec.name, cell.phase

        def batch_levels(batch: int) -> List[Tuple[Any, ...]]:
            third = 3 * cell.batches.index(batch) // len(cell.batches)
            return [("batch", name, phase, third), ("batch", name, phase, batch), ("batch", phase, third)]

        batch = self._least(cell.batches, batch_levels)
        chosen: Dict[str, Any] = {}
        for option, levels in self._options(cell):
            chosen[option] = self._least(levels, lambda level, what=option: self._option_levels(cell, what, level))
        return self._point(cell, batch, chosen)

    def _cell(self, cells: List[_Cell]) -> _Cell:
        """Choose a model, then its size, its phase and its precision, each among what the choices before it left."""
        family = cells[0].spec.family

        def narrow(left: List[_Cell], value: Any, keys: Any) -> List[_Cell]:
            levels = list(dict.fromkeys(value(cell) for cell in left))
            chosen = self._least(levels, keys)
            return [cell for cell in left if value(cell) == chosen]

        left = narrow(cells, lambda cell: cell.spec.name, lambda name: [("model", name)])
        name = left[0].spec.name
        left = narrow(left, lambda cell: cell.size, lambda size: [("size", name, size)])
        left = narrow(left, lambda cell: cell.phase, lambda phase: [("phase", family, phase), ("phase", name, phase)])
        phase = left[0].phase

        def precision_levels(precision: str) -> List[Tuple[Any, ...]]:
            return [("precision", phase, precision), ("precision", family, precision), ("precision", name, precision)]

        return narrow(left, lambda cell: cell.precision, precision_levels)[0]

    def _least(self, levels: Sequence[Any], keys: Any) -> Any:
        """Return the level that was dealt least, by the sum over its keys, and count it."""
        order = list(levels)
        self.random.shuffle(order)
        best = min(order, key=lambda level: sum(self.seen[key] for key in keys(level)))
        self.seen.update(keys(best))
        return best

    @staticmethod
    def _option_levels(cell: _Cell, option: str, level: Any) -> List[Tuple[Any, ...]]:
        return [
            (option, level), (option, level, cell.spec.name), (option, level, cell.phase, cell.precision),
        ]  # fmt: skip
