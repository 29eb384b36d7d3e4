"""Experimental design: the points to measure, in an order whose every prefix is balanced."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import islice, product, zip_longest
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

from leadline.kit.specs import DECODE, LARGE, SPECS, TRAINING, Spec

PRECISIONS = {
    "fp32": "float32", "tf32": "tf32", "fp16": "float16", "amp-fp16": "float16", "bf16": "bfloat16",
    "amp-bf16": "bfloat16",
}  # fmt: skip
"""Precision → the dtype of its products. ``amp-…`` keeps float32 weights; ``fp16`` and ``bf16`` are pure."""
OPTIMIZERS = (("sgd", False), ("momentum", False), ("adamw", False), ("adamw", True))
"""Name of the update rule, and whether torch's fused kernel computes it."""
EFFICIENCY = 0.3
"""Expected share of a device's product rate in a step, used to exclude slow points."""
MAX_POINTS = 4000
"""Most points of a design, enough for any device."""
MAX_DRAWS = 50
"""Random draws from a family before the remaining points are dealt in any order."""


@dataclass(frozen=True)
class MeasurementPoint:
    """One point; ``size`` is the side of an image, the tokens of a sequence or the features of a vector."""

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
        """All properties but the batch."""
        rule = [self.optimizer + ("-fused" if self.fused else "")] if self.optimizer else []
        marks = [name for name in ("channels_last", "checkpointing", "compiled") if getattr(self, name)]
        return "/".join([f"{self.model}-{self.size}", self.phase, self.precision, *rule, *marks])

    @property
    def key(self) -> str:
        """Identity of the point in a file."""
        return f"{self.cell}/b{self.batch}"


@dataclass(frozen=True)
class DesignSettings:
    """Inputs of a design, stored in the file's header so that a resumed run continues the same design.

    ``rates`` maps the dtype of products to the measured FLOP/s; an unsupported dtype is absent. ``longest_step_s``
    excludes longer steps.
    """

    device_type: str
    rates: Mapping[str, float]
    packages: Sequence[str] = ()
    seed: int = 0
    quick: bool = False
    compiled: bool = False
    longest_step_s: float = 1.0


def design_points(settings: DesignSettings) -> List[MeasurementPoint]:
    """Return the points in measuring order.

    Families take turns. Within a family, the next point has the model, phase, precision, batch and options dealt least
    so far, alone and in pairs (minimization, Pocock and Simon 1975). The seed breaks ties.
    """
    return list(islice(_Dealer(settings).deal(), MAX_POINTS))


def expected_step_s(spec: Spec, point: MeasurementPoint, rates: Mapping[str, float]) -> float:
    """Return a rough estimate of a step's seconds: a backward pass costs two forward passes, checkpointing one more."""
    work = spec.work[point.size] * point.batch
    if point.phase == TRAINING:
        work *= 4 if point.checkpointing else 3
    if point.phase == DECODE:
        work /= point.size
    return work / (rates[PRECISIONS[point.precision]] * EFFICIENCY)


@dataclass
class _Cell:
    """A model at one size in one phase and precision, with its batches."""

    spec: Spec
    size: int
    phase: str
    precision: str
    batches: List[int]
    options: Dict[str, Sequence[Any]]
    """The available options, each with its levels."""

    def point(self, batch: int, chosen: Dict[str, Any]) -> MeasurementPoint:
        optimizer, fused = chosen.pop("rule", ("", False))
        return MeasurementPoint(
            self.spec.name, self.size, self.phase, self.precision, batch, optimizer, fused, **chosen
        )


class _Dealer:
    """Deals points, and counts how often each level and each pair of levels was dealt."""

    def __init__(self, settings: DesignSettings) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)  # noqa: S311 - an order of experiments, no secret
        self.counts: Counter = Counter()  # type: ignore[type-arg] # Counter[...] of 3.9 has tuples of many lengths
        self.cells: Dict[str, List[_Cell]] = {}
        for cell in self._all_cells():
            self.cells.setdefault(cell.spec.family, []).append(cell)

    def deal(self) -> Iterator[MeasurementPoint]:
        """Yield distinct points, one family at a time, until all families are exhausted."""
        families = sorted(self.cells)
        self.random.shuffle(families)
        turns = zip_longest(*(self._points(self.cells[family]) for family in families))
        return (point for turn in turns for point in turn if point is not None)

    def _points(self, cells: List[_Cell]) -> Iterator[MeasurementPoint]:
        """Yield distinct points of a family: drawn ones until no draw is new, then the remaining ones in any order."""
        dealt: Set[str] = set()
        while True:
            drawn = (self._next(cells) for _ in range(MAX_DRAWS))
            point = next((candidate for candidate in drawn if candidate.key not in dealt), None)
            if point is None:
                break
            dealt.add(point.key)
            yield point
        remaining = [
            cell.point(batch, dict(zip(cell.options, levels)))
            for cell in cells
            for batch in cell.batches
            for levels in product(*cell.options.values())
        ]
        self.random.shuffle(remaining)
        yield from (point for point in reversed(remaining) if point.key not in dealt)

    def _all_cells(self) -> Iterator[_Cell]:
        settings = self.settings
        for spec in SPECS.values():
            missing = spec.package and spec.package not in settings.packages
            unfit = settings.device_type == "cpu" and spec.name in LARGE
            if (settings.quick and not spec.quick) or missing or unfit:
                continue
            for size in spec.work:
                for phase in spec.phases:
                    for precision, compute in PRECISIONS.items():
                        if compute not in settings.rates or (precision == "fp16" and phase == TRAINING):
                            continue  # pure half precision trains nothing
                        batches = self._batches(spec, size, phase, precision)
                        if batches:
                            yield _Cell(spec, size, phase, precision, batches, self._options(spec, phase))

    def _options(self, spec: Spec, phase: str) -> Dict[str, Sequence[Any]]:
        switches = {
            "channels_last": "channels_last" in spec.traits,
            "checkpointing": "checkpointing" in spec.traits and phase == TRAINING,
            "compiled": self.settings.compiled,
        }
        rule: Dict[str, Sequence[Any]] = {"rule": OPTIMIZERS} if phase == TRAINING else {}
        return {**rule, **{name: (False, True) for name, available in switches.items() if available}}

    def _batches(self, spec: Spec, size: int, phase: str, precision: str) -> List[int]:
        batches = []
        batch = 2 if phase == TRAINING and spec.quick else 1  # batch norm of one value is refused
        while batch <= (64 if self.settings.quick else spec.max_batch):
            point = MeasurementPoint(spec.name, size, phase, precision, batch)
            if expected_step_s(spec, point, self.settings.rates) <= self.settings.longest_step_s:
                batches.append(batch)
            batch *= 2
        return batches

    def _next(self, cells: List[_Cell]) -> MeasurementPoint:
        cell = self._cell(cells)
        name, phase = cell.spec.name, cell.phase

        def batch_levels(batch: int) -> List[Tuple[Any, ...]]:
            third = 3 * cell.batches.index(batch) // len(cell.batches)
            return [("batch", name, phase, third), ("batch", name, phase, batch), ("batch", phase, third)]

        batch = self._least(cell.batches, batch_levels)
        chosen: Dict[str, Any] = {}
        for option, levels in cell.options.items():
            kinds = ((option,), (option, name), (option, phase, cell.precision))
            chosen[option] = self._least(levels, lambda level, kinds=kinds: [(level, *kind) for kind in kinds])
        return cell.point(batch, chosen)

    def _cell(self, cells: List[_Cell]) -> _Cell:
        """Choose a model, then its size, phase and precision, each within the previous choice."""
        family = cells[0].spec.family

        def narrow(candidates: List[_Cell], value: Any, keys: Any) -> List[_Cell]:
            chosen = self._least(list(dict.fromkeys(value(cell) for cell in candidates)), keys)
            return [cell for cell in candidates if value(cell) == chosen]

        candidates = narrow(cells, lambda cell: cell.spec.name, lambda name: [("model", name)])
        name = candidates[0].spec.name
        candidates = narrow(candidates, lambda cell: cell.size, lambda size: [("size", name, size)])
        candidates = narrow(
            candidates, lambda cell: cell.phase, lambda phase: [("phase", family, phase), ("phase", name, phase)]
        )
        phase = candidates[0].phase

        def precision_levels(precision: str) -> List[Tuple[Any, ...]]:
            return [("precision", phase, precision), ("precision", family, precision), ("precision", name, precision)]

        return narrow(candidates, lambda cell: cell.precision, precision_levels)[0]

    def _least(self, levels: Sequence[Any], keys: Any) -> Any:
        """Return the level dealt least, by the sum over its keys, and count it."""
        # min takes the first of equals, so the shuffle breaks ties by the seed.
        order = list(levels)
        self.random.shuffle(order)
        best = min(order, key=lambda level: sum(self.counts[key] for key in keys(level)))
        self.counts.update(keys(best))
        return best
