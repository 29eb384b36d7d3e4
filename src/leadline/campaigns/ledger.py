"""What a campaign's journal says: its runs, what they took, what is left, and why they failed."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from signal import Signals
from statistics import median

from leadline.campaigns.budgets import cost_of
from leadline.core.campaigns import Budget, BudgetUnit, Campaign, PlannedRun
from leadline.core.documents import dump, load
from leadline.core.jobs import JobState
from leadline.core.runs import Run
from leadline.execution.launch import measured_run
from leadline.execution.schedulers.job_queue import QueueEntry, last_log_line, log_path

AGAIN = (JobState.CANCELLED, JobState.PREEMPTED, JobState.NODE_FAIL, JobState.UNKNOWN)
"""States of a run that somebody else ended: it is made again when the campaign is resumed."""
PACED_FROM = 3
"""So many runs that completed show how far off their forecasts are."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Where a campaign stands; ``spent`` and ``budget`` in the budget's unit, money in US dollars if prices are known.

    ``left_s`` is the forecast of all runs that have not ended, one after the other, at the pace of those that have, and
    ``unknown`` how many of them nothing is known of.
    """

    planned: int
    completed: int
    failed: int
    running: int
    spent: float
    budget: float | None
    money: float | None
    left_s: float
    unknown: int

    @property
    def ended(self) -> int:
        """Return how many runs ended, well or not."""
        return self.completed + self.failed


def note_of(planned: PlannedRun) -> str:
    """Return what the journal keeps of a planned run."""
    return dump(planned, indent=0)


def planned_of(entry: QueueEntry) -> PlannedRun:
    """Return the planned run of an entry."""
    return _read_note(entry.note)


@cache
def _read_note(note: str) -> PlannedRun:
    return load(note, PlannedRun, what="a run of the campaign's journal")


def run_of_entry(entry: QueueEntry) -> Run:
    """Return the run of an entry that ended, as the history keeps it."""
    if entry.outcome is None:
        raise ValueError(f"run {entry.key} has not ended")
    planned = planned_of(entry)
    run = measured_run(entry.spec, entry.key, entry.outcome)
    tags = {**run.tags, "campaign": planned.campaign, "repeat": str(planned.repeat)}
    return replace(run, scale=planned.scale, parameters=planned.configuration.parameters, tags=tags)


def elapsed_s(entry: QueueEntry) -> float:
    """Return the seconds that all attempts of a run took, as far as they were measured."""
    measured = entry.outcome.measured.get("elapsed_s") if entry.outcome else None
    return entry.lost_s + (measured.value if measured else 0.0)


def spent(campaign: Campaign, entries: Sequence[QueueEntry]) -> float:
    """Return what the runs took of the budget, in its unit."""
    return sum(cost_of(campaign, entry.spec.resources, elapsed_s(entry)) for entry in entries)


def expected_s(entry: QueueEntry, known: dict[str, float]) -> float | None:
    """Return how long a run is expected to take: as forecast, else as the runs of its scale took (``known``)."""
    planned = planned_of(entry)
    if planned.forecast_s is not None:
        return planned.forecast_s.point
    return known.get(planned.scale)


def typical_s(entries: Sequence[QueueEntry]) -> dict[str, float]:
    """Return scale → the mean seconds of the runs that completed."""
    found: dict[str, list[float]] = {}
    for entry in entries:
        if entry.state is JobState.COMPLETED and entry.outcome:
            found.setdefault(planned_of(entry).scale, []).append(entry.outcome.measured["elapsed_s"].value)
    return {scale: sum(times) / len(times) for scale, times in found.items()}


def tally(campaign: Campaign, entries: Sequence[QueueEntry]) -> Tally:
    """Count a campaign's runs."""
    known = typical_s(entries)
    open_ones = [entry for entry in entries if not entry.state.final]
    expected = [expected_s(entry, known) for entry in open_ones]
    return Tally(
        planned=len(entries),
        completed=sum(entry.state is JobState.COMPLETED for entry in entries),
        failed=sum(entry.state.final and entry.state is not JobState.COMPLETED for entry in entries),
        running=sum(entry.state is JobState.RUNNING for entry in entries),
        spent=spent(campaign, entries),
        budget=campaign.budget.amount if campaign.budget else None,
        money=_money(campaign, entries),
        left_s=_pace(entries) * sum(one for one in expected if one is not None),
        unknown=sum(one is None for one in expected),
    )


def _pace(entries: Sequence[QueueEntry]) -> float:
    """Return the median of what runs took over what they were forecast to take; 1 while fewer than three are known."""
    shares = [
        entry.outcome.measured["elapsed_s"].value / forecast.point
        for entry in entries
        if entry.state is JobState.COMPLETED and entry.outcome
        if (forecast := planned_of(entry).forecast_s) is not None and forecast.point > 0
    ]
    return median(shares) if len(shares) >= PACED_FROM else 1.0


def _money(campaign: Campaign, entries: Sequence[QueueEntry]) -> float | None:
    if campaign.core_hour is None and campaign.gpu_hour is None:
        return None
    return spent(replace(campaign, budget=Budget(1.0, BudgetUnit.USD)), entries)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why runs failed: how they ended, with the last line that one of them wrote."""

    count: int
    how: str
    last_line: str
    log: str

    def __str__(self) -> str:
        said = f'{self.how}, having written "{self.last_line}"' if self.last_line else f"{self.how}, in silence"
        return f"{said} ({self.log})"


def causes(entries: Sequence[QueueEntry], folder: Path) -> list[Cause]:
    """Return why the runs failed that did, the commonest cause first; lines that differ in numbers alone are one."""
    counts: Counter[tuple[str, str]] = Counter()
    shown: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in entries:
        if not entry.state.final or entry.state is JobState.COMPLETED:
            continue
        log = log_path(folder, entry)
        said = last_log_line(log)
        cause = (_how(entry), re.sub(r"\d+", "#", said))
        counts[cause] += 1
        shown.setdefault(cause, (said, str(log)))
    return [Cause(count, cause[0], *shown[cause]) for cause, count in counts.most_common()]


def _how(entry: QueueEntry) -> str:
    outcome = entry.outcome
    if outcome is None:
        return entry.state.value
    if outcome.state.censored and outcome.reason:
        return f"{outcome.state.value} ({outcome.reason})"
    if outcome.signal:
        return f"{outcome.state.value} by {Signals(outcome.signal).name}"
    if outcome.exit_code:
        return f"{outcome.state.value} with exit code {outcome.exit_code}"
    return f"{outcome.state.value} ({outcome.reason})" if outcome.reason else outcome.state.value
