"""The report of a season of the field station: images accounted for, accuracy, retrainings, time, energy and cost."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.field.station_faults import Fault
from leadline.app.pipelines.report import pipeline_season
from leadline.core.jobs import JobState
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.tables import format_energy
from leadline.pipelines.journal import Batch, PipelineJournal
from leadline.pipelines.placement import predict_elapsed_s
from leadline.pipelines.replay import TierOutcome
from leadline.pipelines.spec import read_pipeline

FROM = 2
"""Stage times count from this retraining on."""


@dataclass(frozen=True)
class Retraining:
    """A run of the retraining stage; predictions are None before the first run at its tier ended."""

    tier: str
    predicted_s: float | None
    measured_s: float | None
    requested_bytes: float | None
    measured_bytes: float | None


@dataclass(frozen=True)
class TimeErrors:
    """Median relative errors of stage times, from the second retraining on.

    Attributes:
        refitted: Of the predictions, each from a fit to all runs before.
        last: Of "as long as the last run at that tier".
        frozen: Of a fit that was made before the second retraining and never again.
        refits: How often a new fit was used.
    """

    refitted: float
    last: float
    frozen: float
    runs: int
    refits: int


@dataclass(frozen=True)
class StationReport:
    """The season in numbers; ``score`` is what score.py printed, and ``accuracies`` is policy → accuracy."""

    images: int
    elapsed_s: float
    stored: int
    score: Mapping[str, Any]
    accuracies: Mapping[str, float]
    retrainings: tuple[Retraining, ...]
    deployed: int
    rolled_back: int
    repeated: int
    tries: int
    failed: int
    tiers: Mapping[str, TierOutcome]
    errors: Mapping[str, TimeErrors]
    faults: tuple[Fault, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Images by outcome."""
        counts: Mapping[str, int] = self.score["counts"]
        return counts

    @property
    def policies(self) -> str:
        """The accuracy of each policy, in words."""
        return ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.accuracies.items())

    @property
    def complete(self) -> bool:
        """Whether every published image is stored once and has one outcome, and no run failed for good."""
        outcomes = sum(self.counts[outcome] for outcome in ("labelled", "filtered", "queued", "corrupt"))
        return self.images == self.stored == self.counts["ingested"] == outcomes and not self.failed

    def to_json(self) -> str:
        """Return the report as JSON."""
        return msgspec.json.format(msgspec.json.encode(asdict(self) | {"complete": self.complete})).decode()


def read_report(
    file: Path,
    score: Mapping[str, Any],
    accuracies: Mapping[str, float],
    images: int,
    elapsed_s: float,
    faults: tuple[Fault, ...],
) -> StationReport:
    """Return the report of a season that has ended, from its pipeline's journal and the score against the truth."""
    pipeline = read_pipeline(file)
    season = pipeline_season(pipeline.name, file.parent)
    with PipelineJournal(Path(pipeline.folder)) as journal:
        batches = [*journal.ended_batches(), *journal.open_batches()]
        totals = dict(journal.read("SELECT stage || '.' || name, total(value) FROM metric GROUP BY 1"))
        stored = journal.source_counts().get("images", 0)
    runs: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches:
        if batch.state is JobState.COMPLETED:
            runs[batch.stage].append(batch)
    return StationReport(
        images=images, elapsed_s=elapsed_s, stored=stored, score=score, accuracies=accuracies,
        retrainings=tuple(
            Retraining(
                run.tier, run.predicted_s.point if run.predicted_s else None, run.elapsed_s, run.recommended_bytes,
                run.memory_bytes,
            )
            for run in reversed(season.runs) if run.stage == "retrain" and run.state is JobState.COMPLETED
        ), deployed=len(runs["deploy"]),
        rolled_back=int(totals.get("check.rolled_back", 0)), repeated=int(totals.get("label.repeated", 0)),
        tries=sum(batch.tries - 1 for batch in batches),
        failed=sum(batch.state is not JobState.COMPLETED for batch in batches),
        tiers=season.outcome.tiers, errors=time_errors(runs), faults=faults,
    )  # fmt: skip


def time_errors(runs: Mapping[str, Sequence[Batch]]) -> dict[str, TimeErrors]:
    """Return the errors of each stage's times and of all ("all"), from the second retraining on."""
    retrainings = runs.get("retrain", ())
    if len(retrainings) < FROM:
        return {}
    begin = retrainings[FROM - 1].created_at
    errors: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for stage, all_runs in runs.items():
        for tier in {run.tier for run in all_runs}:
            here = [run for run in all_runs if run.tier == tier]
            early = [run for run in here if (run.ended_at or "") < begin]
            for before, run in pairwise(here):
                frozen = predict_elapsed_s(early[::-1], run.work)
                if run.created_at < begin or not run.predicted_s or not run.elapsed_s or not before.elapsed_s:
                    continue
                if frozen is not None:
                    points = (run.predicted_s.point, before.elapsed_s, frozen.point)
                    refitted, last, kept = (abs(point / run.elapsed_s - 1) for point in points)
                    errors[stage].append((refitted, last, kept))
    errors["all"] = [error for of_stage in list(errors.values()) for error in of_stage]
    return {stage: _median_errors(rows) for stage, rows in errors.items() if rows}


def _median_errors(rows: Sequence[tuple[float, float, float]]) -> TimeErrors:
    refitted, last, frozen = (median(column) for column in zip(*rows, strict=True))
    return TimeErrors(refitted, last, frozen, len(rows), len(rows))


def report_lines(report: StationReport) -> list[str]:
    """Return the report in short lines."""
    counts, score = report.counts, report.score
    accounted = (
        f"{report.images} images in {format_duration(report.elapsed_s)}: ingested {counts['ingested']} = "
        f"{counts['labelled']} labelled + {counts['filtered']} filtered + {counts['queued']} queued + "
        f"{counts['corrupt']} corrupt; {'all accounted for' if report.complete else 'NOT ALL ACCOUNTED FOR'}"
    )
    lines = [
        accounted,
        f"accuracy {score['accuracy']:.1%} with {score['reviewed']} reviews, {len(score['drifts'])} drifts detected",
        f"accuracy of the policies: {report.policies}",
        f"{len(report.retrainings)} retrainings, {report.deployed} deployed, {report.rolled_back} rolled back",
        f"age of the model: {score['age']['last']} images at the end, {score['age']['mean']:.0f} in the mean",
    ]
    for number, run in enumerate(report.retrainings, 1):
        lines.append(
            f"  retraining {number} at {run.tier}: predicted {_duration(run.predicted_s)}, measured "
            f"{_duration(run.measured_s)}; requested {_bytes(run.requested_bytes)}, measured peak "
            f"{_bytes(run.measured_bytes)}"
        )
    for name, use in report.tiers.items():
        energy = "unknown energy" if use.energy_j is None else f"{format_energy(use.energy_j)} at rated power"
        cost = "no price" if use.cost_usd is None else f"${use.cost_usd:.4f}"
        lines.append(f"  tier {name}: {use.runs} runs, {_duration(use.busy_s)}, {energy}, {cost}")
    for stage, error in report.errors.items():
        lines.append(
            f"  time of {stage}: median error {error.refitted:.1%}, as long as the last run {error.last:.1%}, without "
            f"refitting {error.frozen:.1%} ({error.runs} runs from retraining {FROM} on)"
        )
    lines += [f"  fault at {fault.images} images: {fault.name}" for fault in report.faults]
    if report.faults:
        lines.append(f"  {report.tries} runs tried again, {report.failed} failed")
    return lines


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_duration(seconds)


def _bytes(size: float | None) -> str:
    return "unknown" if size is None else format_bytes(size)
