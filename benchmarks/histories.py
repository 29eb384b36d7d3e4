"""The measured histories of real applications, split into training runs and held-out runs."""

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
from leadline.training.records import RunRecord, TrainingOptions
from leadline.training.tables import read_tables

SHIPPED = Path(__file__).parent / "histories"
APPLICATIONS = Path(__file__).parent / "applications"
"""Folder of the programs that made the shipped histories, with their campaign files."""
ENDING = ".csv.gz"


@dataclass(frozen=True, slots=True)
class MeasuredHistory:
    """All runs of one campaign.

    Attributes:
        scale_features: Features that grow with scale.
        work: The scale feature that counts repeats; None without one.
        categories: Features whose values are choices.
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
        """Return the error (percent) of a perfect model at full scale, from repeated runs; None without any.

        It is the mean distance of a run from the geometric mean of its n repeats. The factor √(n ÷ (n - 1)) makes up
        for the pull of each run on that mean.
        """
        deviations: list[float] = []
        for group in _by_configuration(self.at(Scale.FULL_SCALE), seed=0):
            logs = [math.log(run.metrics["elapsed_s"]) for run in group if run.state is JobState.COMPLETED]
            if len(logs) > 1:
                mean, correction = sum(logs) / len(logs), math.sqrt(len(logs) / (len(logs) - 1))
                deviations += [correction * abs(log - mean) for log in logs]
        return 100 * sum(deviations) / len(deviations) if deviations else None

    @property
    def full_scale_cost_s(self) -> float:
        """Return the mean time of completed runs at full scale, in seconds."""
        costs = [cost_s([record]) for record in self.at(Scale.FULL_SCALE) if record.state is JobState.COMPLETED]
        return sum(costs) / len(costs)


@dataclass(frozen=True, slots=True)
class HistorySplit:
    """Training runs, and the full-scale runs of other configurations that are held out."""

    history: MeasuredHistory
    learned: tuple[RunRecord, ...]
    held_out: tuple[RunRecord, ...]

    @property
    def cheaper(self) -> float:
        """Return the mean cost of as many runs at full scale, divided by the cost of the training runs."""
        return len(self.learned) * self.history.full_scale_cost_s / cost_s(self.learned)

    def training(self, target: str) -> TrainingData:
        """Return the training samples."""
        return self._data(self.learned, target)

    def test(self, target: str) -> tuple[Sample, ...]:
        """Return the held-out samples, without censored ones."""
        data = self._data([*self.learned, *self.held_out], target)
        ids = {record.id for record in self.held_out}
        return tuple(sample for sample in data.dataset.samples if sample.run_id in ids and not sample.censored)

    def _data(self, records: Sequence[RunRecord], target: str) -> TrainingData:
        history = self.history
        options = TrainingOptions(scale_features=history.scale_features, categories=history.categories)
        return make_dataset(records, target, options)


def read_histories(folder: Path | None = None) -> tuple[MeasuredHistory, ...]:
    """Read every ``NAME.csv.gz`` of a folder and its campaign ``NAME.toml``; by default the shipped ones.

    Raises:
        InvalidInput: The folder has no history, a campaign is missing, or a file is unusable.
    """
    folder = folder or SHIPPED
    tables = sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() else []
    if not tables:
        raise InvalidInput(f"{folder} holds no history: give --data a folder with NAME{ENDING} and NAME.toml in it")
    return tuple(_read(table) for table in tables)


def split_history(
    history: MeasuredHistory, full_scale: int, seed: int, *, scaled_down: int | None = None
) -> HistorySplit:
    """Train on ``scaled_down`` configurations (all by default) and ``full_scale`` ones; hold out the others.

    The draw depends on ``seed`` alone. A larger number includes the configurations of a smaller one, so that campaigns
    grow.
    """
    small, full = (_by_configuration(history.at(scale), seed) for scale in (Scale.SCALED_DOWN, Scale.FULL_SCALE))
    return HistorySplit(
        history,
        tuple(record for group in [*small[:scaled_down], *full[:full_scale]] for record in group),
        tuple(record for group in full[full_scale:] for record in group),
    )


def cost_s(records: Sequence[RunRecord]) -> float:
    """Return the total time of runs in seconds, failed ones included."""
    return sum(record.metrics.get("elapsed_s", 0.0) for record in records)


def _read(table: Path) -> MeasuredHistory:
    name = table.name.removesuffix(ENDING)
    described = (APPLICATIONS if table.parent == SHIPPED else table.parent) / f"{name}.toml"
    if not described.is_file():
        raise InvalidInput(f"{table} has no campaign: put {described.name} into its folder")
    parameters = read_campaign(described).parameters
    scale_parameters = [parameter for parameter in parameters if parameter.carries_scale]
    return MeasuredHistory(
        name,
        read_tables(table, targets=("elapsed_s",)),
        tuple(parameter.name for parameter in scale_parameters),
        next((parameter.name for parameter in scale_parameters if parameter.kind is ParameterKind.INTEGER), None),
        tuple(parameter.name for parameter in parameters if parameter.kind is ParameterKind.CATEGORICAL),
    )


def _by_configuration(records: Sequence[RunRecord], seed: int) -> list[list[RunRecord]]:
    groups: dict[tuple[tuple[str, object], ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(sorted(record.features.items())), []).append(record)
    ordered = [groups[key] for key in sorted(groups, key=repr)]
    random.Random(seed).shuffle(ordered)  # noqa: S311 - a split must repeat, not be secret
    return ordered
