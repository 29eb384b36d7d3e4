"""The campaign runner: starts affordable runs, records ended ones, and requests further runs."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import build_job
from leadline.campaigns.journal import (
    RETRIED_STATES,
    CampaignTotals,
    FailureSummary,
    budget_spent,
    campaign_totals,
    expected_run_s,
    failure_summaries,
    format_note,
    mean_completed_s,
    run_from_entry,
    total_elapsed_s,
)
from leadline.core.campaigns import Campaign, Design, PlannedRun
from leadline.core.jobs import JobSpec, JobState
from leadline.core.runs import Run
from leadline.execution.schedulers.job_queue import JobQueue, QueueEntry, QueueJournal
from leadline.history.sqlite import SqliteHistory

MIN_HOPELESS_RUNS = 3
"""Number of initial runs that must fail in the same way to end the call."""
STOP_FLAG = "stop"
"""Journal flag by which another process stops this one."""
TICK_S = 0.5

ProposeRuns = Callable[[Campaign, tuple[Run, ...], float], tuple[PlannedRun, ...]]
"""Callback that chooses the next runs from the campaign, its ended runs, and the consumption."""


class StopReason(StrEnum):
    """Reason for the end of a call."""

    DONE = "done"
    BUDGET = "the budget is spent"
    MAX_RUNS = "as many runs as asked for have ended"
    HOPELESS = "every run fails in the same way"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by leadline campaign stop"


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """Result of a call: reason of its end, totals, and failures, most frequent first."""

    ending: StopReason
    tally: CampaignTotals
    causes: list[FailureSummary]
    ended_here: int


def execution_order(campaign: Campaign, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return planned runs in the order of execution.

    A random design without a budget is shuffled across scales and repeats, so that an hour of a slow machine does not
    look like an effect of scale. Other designs start with the scaled-down runs, as planned.
    """
    ordered = list(runs)
    if campaign.design is Design.RANDOM and campaign.budget is None:
        random.Random(f"{campaign.seed} order").shuffle(ordered)  # noqa: S311 - a design, no secret
    return ordered


class Runner:
    """One call that runs a campaign; ``interrupt`` may be called from a signal handler.

    Args:
        campaign: the campaign.
        journal: its journal.
        folder: its folder.
        history: store of the runs, if any.
        propose: chooses further runs of an adaptive design.
        place: sets the target of a job.
        max_runs: ends the call after so many runs.
        retry_failed: repeats failed runs.
        watch: called with the totals, and with a run that has just ended.
    """

    def __init__(
        self,
        campaign: Campaign,
        *,
        journal: QueueJournal,
        folder: Path,
        history: SqliteHistory | None,
        propose: ProposeRuns | None = None,
        place: Callable[[JobSpec], JobSpec] = lambda spec: spec,
        max_runs: int | None = None,
        retry_failed: bool = False,
        watch: Callable[[CampaignTotals, QueueEntry | None], None] = lambda *_: None,
    ) -> None:
        self.campaign = campaign
        self.journal = journal
        self.folder = folder
        self.history = history
        self.propose = propose
        self.place = place
        self.max_runs = max_runs
        self.retry_failed = retry_failed
        self.watch = watch
        self.entries: dict[str, QueueEntry] = {}
        self.ended: list[QueueEntry] = []
        self.ending: StopReason | None = None
        self._interrupts = 0
        self._queue_ended = False
        self._typical_s: dict[str, float] = {}
        self._spent = 0.0
        self._chosen: dict[str, QueueEntry] = {}

    def interrupt(self) -> None:
        """Start no more runs; the second call ends running ones."""
        self._interrupts += 1

    def limit_s(self, entry: QueueEntry) -> float | None:
        """Return the seconds that the budget leaves for a run; ``None`` without a budget."""
        if self.campaign.budget is None:
            return None
        return max(self._remaining_budget(entry), 0.0) / compute_cost(self.campaign, entry.spec.resources, 1.0)

    def run(self, planned: Sequence[PlannedRun], queue: JobQueue) -> CampaignReport:
        """Run the planned and unfinished runs in ``execution_order`` until none is left or the call ends early."""
        self.journal.clear_flag(STOP_FLAG)
        queue.resume()
        self._requeue()
        self._plan(execution_order(self.campaign, planned))
        self._record_missed()
        self.watch(self._totals(), None)
        while True:
            self._check_stop(queue)
            self._refresh()
            if self.ending is None:
                queue.start(self._startable())
                self.entries.update(queue.running)
                self._chosen.clear()
            if not queue.running and not self._continue():
                break
            for entry in queue.wait(TICK_S if queue.running else 0.0):
                self._update(entry)
            self.watch(self._totals(), None)
        failed = failure_summaries([*self.entries.values()], self.folder)
        return CampaignReport(self.ending or self._final_reason(), self._totals(), failed, len(self.ended))

    def _plan(self, planned: Sequence[PlannedRun]) -> int:
        """Add runs to the journal and return the number of new ones."""
        before = len(self.entries)
        self.journal.add(
            [
                (planned_run.id, self.place(build_job(self.campaign, planned_run)), format_note(planned_run))
                for planned_run in planned
            ]
        )
        self.entries = {entry.key: entry for entry in self.journal.entries()}
        return len(self.entries) - before

    def _requeue(self) -> None:
        """Requeue runs that were ended from outside, and failed ones on request."""
        for entry in self.journal.entries():
            failed = entry.state.final and entry.state is not JobState.COMPLETED
            if entry.state in RETRIED_STATES or (self.retry_failed and failed):
                self.journal.requeue(entry.key, lost_s=total_elapsed_s(entry) - entry.lost_s)

    def _record_missed(self) -> None:
        """Record runs that ended while no process watched, or just before one died."""
        for entry in self.entries.values():
            if entry.state.final and not entry.recorded:
                self._record(entry)

    def _record(self, entry: QueueEntry) -> None:
        """Store a run in the history, which replaces it if this process dies before the journal is updated."""
        if self.history is not None:
            # History first: an unrecorded run is added again, but a lost one would never be.
            self.history.add(run_from_entry(entry))
            entry = self.journal.mark_recorded(entry.key)
        self.entries[entry.key] = entry

    def _update(self, entry: QueueEntry) -> None:
        self.entries[entry.key] = entry
        if not entry.state.final:
            return
        self._record(entry)
        self.ended.append(self.entries[entry.key])
        self.watch(self._totals(), entry)

    def _refresh(self) -> None:
        """Update consumption and typical run times."""
        entries = [*self.entries.values()]
        self._typical_s, self._spent = mean_completed_s(entries), budget_spent(self.campaign, entries)

    def _check_stop(self, queue: JobQueue) -> None:
        """Handle interrupts, the stop flag, and campaigns in which every run fails."""
        end = self._interrupts > 1
        if self._interrupts:
            self.ending = self.ending or StopReason.INTERRUPTED
        if self.ending is None and self._is_hopeless():
            self.ending, end = StopReason.HOPELESS, True
        if self.ending is not StopReason.STOPPED and self.journal.has_flag(STOP_FLAG):
            self.ending, end = StopReason.STOPPED, True
        if end and not self._queue_ended:
            self._queue_ended = True
            queue.end()

    def _is_hopeless(self) -> bool:
        if len(self.ended) < MIN_HOPELESS_RUNS or any(
            entry.state is JobState.COMPLETED for entry in self.entries.values()
        ):
            return False
        return failure_summaries(self.ended, self.folder)[0].count == len(self.ended)

    def _startable(self) -> Iterator[QueueEntry]:
        """Yield waiting runs in order, within the budget and ``max_runs``."""
        self._chosen.clear()
        for entry in [candidate for candidate in self.entries.values() if candidate.state is JobState.PENDING]:
            if self.max_runs is not None and len(self.ended) + len(self._started()) >= self.max_runs:
                return
            if self._affordable(entry):
                yield entry
                self._chosen[entry.key] = entry

    def _started(self) -> dict[str, QueueEntry]:
        """Return the started runs, including those of this moment."""
        return {key: entry for key, entry in self.entries.items() if entry.state is JobState.RUNNING} | self._chosen

    def _affordable(self, entry: QueueEntry) -> bool:
        """Return True if the remaining budget covers the expected cost of the run."""
        if self.campaign.budget is None:
            return True
        expected = self._expected(entry)
        remaining = self._remaining_budget(entry)
        return remaining > 0 if expected is None else expected <= remaining

    def _remaining_budget(self, excluded: QueueEntry) -> float:
        """Return the budget that ended and running runs leave for this run."""
        if self.campaign.budget is None:
            raise ValueError("there is no budget")
        committed = sum(self._expected(entry) or 0.0 for key, entry in self._started().items() if key != excluded.key)
        return self.campaign.budget.amount - self._spent - committed

    def _expected(self, entry: QueueEntry) -> float | None:
        seconds = expected_run_s(entry, self._typical_s)
        return None if seconds is None else compute_cost(self.campaign, entry.spec.resources, seconds)

    def _continue(self) -> bool:
        """Return True if there are more runs to start; an adaptive design may propose some."""
        if self.ending is not None or self._reached_max_runs():
            return False
        if next(self._affordable_runs(), None) is not None:
            return True
        if self.propose is None or self._is_budget_spent():
            return False
        finished = tuple(run_from_entry(entry) for entry in self.entries.values() if entry.state.final)
        return self._plan(self.propose(self.campaign, finished, self._spent)) > 0

    def _affordable_runs(self) -> Iterator[QueueEntry]:
        return (entry for entry in self.entries.values() if entry.state is JobState.PENDING and self._affordable(entry))

    def _reached_max_runs(self) -> bool:
        return self.max_runs is not None and len(self.ended) >= self.max_runs

    def _is_budget_spent(self) -> bool:
        return self.campaign.budget is not None and self._spent >= self.campaign.budget.amount

    def _final_reason(self) -> StopReason:
        waiting = any(entry.state is JobState.PENDING for entry in self.entries.values())
        if waiting and self._reached_max_runs():
            return StopReason.MAX_RUNS
        return StopReason.BUDGET if waiting or self._is_budget_spent() else StopReason.DONE

    def _totals(self) -> CampaignTotals:
        return campaign_totals(self.campaign, [*self.entries.values()])
