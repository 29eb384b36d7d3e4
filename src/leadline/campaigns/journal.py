"""The folder and journal of a campaign: its runs, their consumption, and the causes of failures."""

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
"""States of a run that was ended from outside; a resumed campaign repeats it."""
MIN_PACED_RUNS = 3
"""Fewest completed runs from which the error of the forecasts is estimated."""


@dataclass(frozen=True, slots=True)
class CampaignTotals:
    """State of a campaign; ``spent`` and ``budget`` in the budget's unit, money in US dollars if prices are known.

    ``left_s`` is the forecast time of the remaining runs in sequence, at the pace of the ended ones. ``unknown`` counts
    remaining runs without a forecast.
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
        """Number of ended runs, failed ones included."""
        return self.completed + self.failed


def format_note(planned: PlannedRun) -> str:
    """Return the journal text of a planned run."""
    return to_json(planned, indent=0)


def read_planned_run(entry: QueueEntry) -> PlannedRun:
    """Return the planned run of an entry."""
    return _read_note(entry.note)


@cache
def _read_note(note: str) -> PlannedRun:
    return from_json(note, PlannedRun, label="a run of the campaign's journal")


def run_from_entry(entry: QueueEntry) -> Run:
    """Return the run of an ended entry, in the form of the history."""
    if entry.outcome is None:
        raise ValueError(f"run {entry.key} has not ended")
    planned = read_planned_run(entry)
    run = measured_run(entry.spec, entry.key, entry.outcome)
    tags = {**run.tags, "campaign": planned.campaign, "repeat": str(planned.repeat)}
    return replace(run, scale=planned.scale, parameters=planned.configuration.parameters, tags=tags)


def total_elapsed_s(entry: QueueEntry) -> float:
    """Return the measured seconds of all attempts of a run."""
    measured = entry.outcome.measured.get("elapsed_s") if entry.outcome else None
    return entry.lost_s + (measured.value if measured else 0.0)


def budget_spent(campaign: Campaign, entries: Sequence[QueueEntry]) -> float:
    """Return the consumption of the runs, in the unit of the budget."""
    return sum(compute_cost(campaign, entry.spec.resources, total_elapsed_s(entry)) for entry in entries)


def expected_run_s(entry: QueueEntry, mean_s: dict[str, float]) -> float | None:
    """Return the expected duration of a run: its forecast, else ``mean_s`` of its scale."""
    planned = read_planned_run(entry)
    if planned.forecast_s is not None:
        return planned.forecast_s.point
    return mean_s.get(planned.scale)


def mean_completed_s(entries: Sequence[QueueEntry]) -> dict[str, float]:
    """Return the mean seconds of completed runs by scale."""
    by_scale: dict[str, list[float]] = {}
    for entry in entries:
        if entry.state is JobState.COMPLETED and entry.outcome:
            by_scale.setdefault(read_planned_run(entry).scale, []).append(entry.outcome.measured["elapsed_s"].value)
    return {scale: sum(times) / len(times) for scale, times in by_scale.items()}


def campaign_totals(campaign: Campaign, entries: Sequence[QueueEntry]) -> CampaignTotals:
    """Summarize a campaign's runs."""
    mean_s = mean_completed_s(entries)
    remaining = [entry for entry in entries if not entry.state.final]
    expected = [expected_run_s(entry, mean_s) for entry in remaining]
    return CampaignTotals(
        planned=len(entries),
        completed=sum(entry.state is JobState.COMPLETED for entry in entries),
        failed=sum(entry.state.final and entry.state is not JobState.COMPLETED for entry in entries),
        running=sum(entry.state is JobState.RUNNING for entry in entries),
        spent=budget_spent(campaign, entries),
        budget=campaign.budget.amount if campaign.budget else None,
        money=_money(campaign, entries),
        left_s=_pace(entries) * sum(seconds for seconds in expected if seconds is not None),
        unknown=sum(seconds is None for seconds in expected),
    )


def _pace(entries: Sequence[QueueEntry]) -> float:
    """Return the median ratio of measured to forecast time; 1 with fewer than three completed runs."""
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
    """Runs that failed in the same way, with the last line that one of them wrote."""

    count: int
    how: str
    last_line: str
    log: str

    def __str__(self) -> str:
        text = f'{self.how}, having written "{self.last_line}"' if self.last_line else f"{self.how}, in silence"
        return f"{text} ({self.log})"


def failure_summaries(entries: Sequence[QueueEntry], folder: Path) -> list[FailureSummary]:
    """Group failed runs by cause, most frequent first; last lines match if they differ only in numbers."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in entries:
        if not entry.state.final or entry.state is JobState.COMPLETED:
            continue
        log = log_path(folder, entry)
        line = last_log_line(log)
        cause = (_describe_end(entry), re.sub(r"\d+", "#", line))
        counts[cause] += 1
        examples.setdefault(cause, (line, str(log)))
    return [FailureSummary(count, cause[0], *examples[cause]) for cause, count in counts.most_common()]


def _describe_end(entry: QueueEntry) -> str:
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
    """Store a campaign and its file in its folder; budget, limits and runs may change, but not the command.

    Raises:
        LeadlineError: the folder belongs to a campaign with another command, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PARSED).exists():
            stored = read_stored_campaign(folder)
            if (stored.name, stored.command, stored.setup) != (campaign.name, campaign.command, campaign.setup):
                raise LeadlineError(
                    f"{folder} holds a campaign {stored.name!r} that runs another command: give this one another name, "
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
    """Return the campaign in a folder.

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
    """Hold the lock of the only process that runs the campaign.

    Raises:
        LeadlineError: another process runs it; the error names that process.
    """
    with file_lock(folder / LOCK) as acquired:
        if not acquired:
            raise LeadlineError(
                f"campaign {name!r} is being run by {find_runner(folder) or 'another process'}: wait for it, or stop "
                f"it with leadline campaign stop {name}"
            )
        yield


def find_runner(folder: Path) -> str | None:
    """Return the process that runs the campaign, as ``process 12 on node1 since 14:02``; ``None`` if none does."""
    return lock_holder(folder / LOCK)


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
