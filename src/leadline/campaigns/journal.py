"""What a campaign's journal says: its runs, what they took, what is left, and why they failed."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from signal import Signals
from statistics import median

from leadline.campaigns.budgets import compute_cost
from leadline.core.campaigns import Budget, BudgetUnit, Campaign, PlannedRun
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.runs import Run
from leadline.execution.launch import measured_run
from leadline.execution.schedulers.job_queue import QueueEntry, QueueJournal, last_log_line, log_path
from leadline.files.lock import file_lock, lock_holder

RETRIED_STATES = (JobState.CANCELLED, JobState.PREEMPTED, JobState.NODE_FAIL, JobState.UNKNOWN)
"""States of a run that somebody else ended: it is made again when the campaign is resumed."""
MIN_PACED_RUNS = 3
"""So many runs that completed show how far off their forecasts are."""


@dataclass(frozen=True, slots=True)
class CampaignTotals:
    """Where a campaign stands; ``budget_spent`` and ``budget`` in the budget's unit, money in US dollars if prices are known.

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


def format_note(planned: PlannedRun) -> str:
    """Return what the journal keeps of a planned run."""
    return to_json(planned, indent=0)


def read_planned_run(entry: QueueEntry) -> PlannedRun:
    """Return the planned run of an entry."""
    return _read_note(entry.note)


@cache
def _read_note(note: str) -> PlannedRun:
    return from_json(note, PlannedRun, label="a run of the campaign's journal")


def run_from_entry(entry: QueueEntry) -> Run:
    """Return the run of an entry that ended, as the history keeps it."""
    if entry.outcome is None:
        raise ValueError(f"run {entry.key} has not ended")
    planned = read_planned_run(entry)
    run = measured_run(entry.spec, entry.key, entry.outcome)
    tags = {**run.tags, "campaign": planned.campaign, "repeat": str(planned.repeat)}
    return replace(run, scale=planned.scale, parameters=planned.configuration.parameters, tags=tags)


def total_elapsed_s(entry: QueueEntry) -> float:
    """Return the seconds that all attempts of a run took, as far as they were measured."""
    measured = entry.outcome.measured.get("elapsed_s") if entry.outcome else None
    return entry.lost_s + (measured.value if measured else 0.0)


def budget_spent(campaign: Campaign, entries: Sequence[QueueEntry]) -> float:
    """Return what the runs took of the budget, in its unit."""
    return sum(compute_cost(campaign, entry.spec.resources, total_elapsed_s(entry)) for entry in entries)


def expected_run_s(entry: QueueEntry, known: dict[str, float]) -> float | None:
    """Return how long a run is expected to take: as forecast, else as the runs of its scale took (``known``)."""
    planned = read_planned_run(entry)
    if planned.forecast_s is not None:
        return planned.forecast_s.point
    return known.get(planned.scale)


def mean_completed_s(entries: Sequence[QueueEntry]) -> dict[str, float]:
    """Return scale → the mean seconds of the runs that completed."""
    found: dict[str, list[float]] = {}
    for entry in entries:
        if entry.state is JobState.COMPLETED and entry.outcome:
            found.setdefault(read_planned_run(entry).scale, []).append(entry.outcome.measured["elapsed_s"].value)
    return {scale: sum(times) / len(times) for scale, times in found.items()}


def campaign_totals(campaign: Campaign, entries: Sequence[QueueEntry]) -> CampaignTotals:
    """Count a campaign's runs."""
    known = mean_completed_s(entries)
    open_ones = [entry for entry in entries if not entry.state.final]
    expected = [expected_run_s(entry, known) for entry in open_ones]
    return CampaignTotals(
        planned=len(entries),
        completed=sum(entry.state is JobState.COMPLETED for entry in entries),
        failed=sum(entry.state.final and entry.state is not JobState.COMPLETED for entry in entries),
        running=sum(entry.state is JobState.RUNNING for entry in entries),
        spent=budget_spent(campaign, entries),
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
        if (forecast := read_planned_run(entry).forecast_s) is not None and forecast.point > 0
    ]
    return median(shares) if len(shares) >= MIN_PACED_RUNS else 1.0


def _money(campaign: Campaign, entries: Sequence[QueueEntry]) -> float | None:
    if campaign.core_hour is None and campaign.gpu_hour is None:
        return None
    return budget_spent(replace(campaign, budget=Budget(1.0, BudgetUnit.USD)), entries)


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """Why runs failed: how they ended, with the last line that one of them wrote."""

    count: int
    how: str
    last_line: str
    log: str

    def __str__(self) -> str:
        said = f'{self.how}, having written "{self.last_line}"' if self.last_line else f"{self.how}, in silence"
        return f"{said} ({self.log})"


def failure_summaries(entries: Sequence[QueueEntry], folder: Path) -> list[FailureSummary]:
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
    return [FailureSummary(count, cause[0], *shown[cause]) for cause, count in counts.most_common()]


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


JOURNAL = "journal.sqlite"
PARSED = "campaign.json"
COPY = "campaign.toml"
LOCK = "runner.lock"


def store_campaign(folder: Path, campaign: Campaign, file: Path) -> None:
    """Put a campaign and its file into its folder; budget, limits and runs may change, what is run may not.

    Raises:
        LeadlineError: the folder holds a campaign that runs something else, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PARSED).exists():
            kept = read_stored_campaign(folder)
            if (kept.name, kept.command, kept.setup) != (campaign.name, campaign.command, campaign.setup):
                raise LeadlineError(
                    f"{folder} holds a campaign {kept.name!r} that runs another command: give this one another name, "
                    "or another folder with --folder"
                )
        _write(folder / COPY, file.read_text(encoding="utf-8"))
        _write(folder / PARSED, to_json(campaign) + "\n")
    except OSError as error:
        raise LeadlineError(
            f"{folder} cannot be written to ({error.strerror}), and the campaign is kept there: make it writable, or "
            "name another with --folder"
        ) from error


def read_stored_campaign(folder: Path) -> Campaign:
    """Return the campaign that a folder holds.

    Raises:
        LeadlineError: there is none.
    """
    try:
        text = (folder / PARSED).read_bytes()
    except OSError as error:
        raise LeadlineError(f"{folder} holds no campaign ({error.strerror}): check its path") from error
    return from_json(text, Campaign, label=str(folder / PARSED))


def open_journal(folder: Path) -> QueueJournal:
    """Open the journal of a campaign."""
    return QueueJournal(folder / JOURNAL)


@contextmanager
def runner_lock(folder: Path, name: str) -> Iterator[None]:
    """Be the one process that runs the campaign.

    Raises:
        LeadlineError: another process runs it; it is named.
    """
    with file_lock(folder / LOCK) as mine:
        if not mine:
            raise LeadlineError(
                f"campaign {name!r} is being run by {find_runner(folder) or 'another process'}: wait for it, or stop it "
                f"with leadline campaign stop {name}"
            )
        yield


def find_runner(folder: Path) -> str | None:
    """Return who runs the campaign, as ``process 12 on node1 since 14:02``; ``None`` if nobody does."""
    return lock_holder(folder / LOCK)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
