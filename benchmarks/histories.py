"""The measured histories of real applications, parted into what is learned from and what is asked about."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import ParameterKind
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.runs import Sample, Scale
from leadline.training.dataset import TrainingData, make_dataset
from leadline.training.records import RunRecord
from leadline.training.tables import read_tables

SHIPPED = Path(__file__).parent / "histories"
APPLICATIONS = Path(__file__).parent / "applications"
"""Where the campaigns of the shipped histories are, beside the programs that they run."""
ENDING = ".csv.gz"


@dataclass(frozen=True, slots=True)
class MeasuredHistory:
    """All runs that one campaign made.

    ``scale_features`` carry scale, ``work`` is the one that counts repeats, and ``categories`` have choices.
    """

    name: str
    records: tuple[RunRecord, ...]
    scale_features: tuple[str, ...]
    work: str | None
    categories: tuple[str, ...] = ()

    def at(self, scale: Scale) -> tuple[RunRecord, ...]:
        """Return the runs of one scale."""
        return tuple(record for record in self.records if record.scale is scale)

    @property
    def noise(self) -> float | None:
        """Return the error (percent) that a perfect model would have at full scale, from repeats; ``None`` without any.

        It is the mean distance of a run from the geometric mean of its n repeats, times √(n ÷ (n - 1)) as that mean is
        drawn to each of them.
        """
        off: list[float] = []
        for group in _by_configuration(self.at(Scale.FULL_SCALE), seed=0):
            logs = [math.log(one.metrics["elapsed_s"]) for one in group if one.state is JobState.COMPLETED]
            if len(logs) > 1:
                middle, drawn = sum(logs) / len(logs), math.sqrt(len(logs) / (len(logs) - 1))
                off += [drawn * abs(one - middle) for one in logs]
        return 100 * sum(off) / len(off) if off else None

    @property
    def full_scale_cost_s(self) -> float:
        """Return what a run at full scale takes, in the mean over those that ended well; seconds."""
        costs = [cost_s([record]) for record in self.at(Scale.FULL_SCALE) if record.state is JobState.COMPLETED]
        return sum(costs) / len(costs)


@dataclass(frozen=True, slots=True)
class HistorySplit:
    """Runs to learn from, and the full-scale runs of other configurations that are asked about."""

    history: MeasuredHistory
    learned: tuple[RunRecord, ...]
    asked: tuple[RunRecord, ...]

    @property
    def cheaper(self) -> float:
        """Return the cost of as many runs at full scale, each the mean of all measured there, ÷ that of the runs."""
        return len(self.learned) * self.history.full_scale_cost_s / cost_s(self.learned)

    def training(self, target: str) -> TrainingData:
        """Return the samples to learn from."""
        return self._data(self.learned, target)

    def test(self, target: str) -> tuple[Sample, ...]:
        """Return the samples that are asked about: measured, none cut off."""
        data = self._data([*self.learned, *self.asked], target)
        asked = {record.id for record in self.asked}
        return tuple(one for one in data.dataset.samples if one.run_id in asked and not one.censored)

    def _data(self, records: Sequence[RunRecord], target: str) -> TrainingData:
        history = self.history
        return make_dataset(records, target, scale_features=history.scale_features, categories=history.categories)


def read_histories(folder: Path | None = None) -> tuple[MeasuredHistory, ...]:
    """Read every ``NAME.csv.gz`` of a folder with the campaign ``NAME.toml`` beside it; by default the shipped ones.

    Raises:
        InvalidInput: there is none, a campaign is missing, or a file is not usable.
    """
    folder = folder or SHIPPED
    tables = sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() else []
    if not tables:
        raise InvalidInput(f"{folder} holds no history: give --data a folder with NAME{ENDING} and NAME.toml in it")
    return tuple(_read(table) for table in tables)


def split_history(
    history: MeasuredHistory, full_scale: int, seed: int, *, scaled_down: int | None = None
) -> HistorySplit:
    """Learn from ``scaled_down`` configurations (all by default) and ``full_scale`` ones, and ask about the rest.

    Which ones is drawn by ``seed`` alone, and a larger number holds the smaller ones: campaigns that grow.
    """
    small, full = (_by_configuration(history.at(scale), seed) for scale in (Scale.SCALED_DOWN, Scale.FULL_SCALE))
    return HistorySplit(
        history,
        tuple(record for group in [*small[:scaled_down], *full[:full_scale]] for record in group),
        tuple(record for group in full[full_scale:] for record in group),
    )


def cost_s(records: Sequence[RunRecord]) -> float:
    """Return how long runs took together, failed ones too; seconds."""
    return sum(record.metrics.get("elapsed_s", 0.0) for record in records)


def _read(table: Path) -> MeasuredHistory:
    name = table.name.removesuffix(ENDING)
    described = (APPLICATIONS if table.parent == SHIPPED else table.parent) / f"{name}.toml"
    if not described.is_file():
        raise InvalidInput(f"{table} has no campaign beside it: put {described.name} there")
    parameters = read_campaign(described).parameters
    carries = [one for one in parameters if one.carries_scale]
    return MeasuredHistory(
        name,
        read_tables(table, targets=("elapsed_s",)),
        tuple(one.name for one in carries),
        next((one.name for one in carries if one.kind is ParameterKind.INTEGER), None),
        tuple(one.name for one in parameters if one.kind is ParameterKind.CATEGORICAL),
    )


def _by_configuration(records: Sequence[RunRecord], seed: int) -> list[list[RunRecord]]:
    groups: dict[tuple[tuple[str, object], ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(sorted(record.features.items())), []).append(record)
    found = [groups[key] for key in sorted(groups, key=repr)]
    random.Random(seed).shuffle(found)  # noqa: S311 - a split must repeat, not be secret
    return found
