"""Make the runs of a campaign: start what the budget allows, take in what ended, ask for more, end in order."""

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
from leadline.core.ports import HistoryStore
from leadline.core.runs import Run
from leadline.execution.schedulers.job_queue import JobQueue, QueueEntry, QueueJournal

MIN_HOPELESS_RUNS = 3
"""So many first runs of a call that all fail in one way end it."""
STOP_FLAG = "stop"
"""The wish by which another process stops this one."""
TICK_S = 0.5

ProposeRuns = Callable[[Campaign, tuple[Run, ...], float], tuple[PlannedRun, ...]]
"""What chooses the next runs from the campaign, its runs that ended, and what was spent."""


class StopReason(StrEnum):
    """Why a call ended."""

    DONE = "done"
    BUDGET = "the budget is spent"
    MAX_RUNS = "as many runs as asked for have ended"
    HOPELESS = "every run fails in the same way"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by leadline campaign stop"


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """How a call ended, where the campaign stands, and why runs failed, the commonest cause first."""

    ending: StopReason
    tally: CampaignTotals
    causes: list[FailureSummary]
    ended_here: int


def execution_order(campaign: Campaign, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return planned runs in the order in which they are to be made.

    Those of a random design without a budget are mixed, scales and repeats, so that an hour in which the machine is
    slow is not taken for scale; of others the scaled-down runs come first, as planned.
    """
    found = list(runs)
    if campaign.design is Design.RANDOM and campaign.budget is None:
        random.Random(f"{campaign.seed} order").shuffle(found)  # noqa: S311 - a design, no secret
    return found


class Runner:
    """One call that runs a campaign; ``interrupt`` may be called from a signal handler.

    ``history`` is ``None`` if the runs are not to enter one; ``retry_failed`` makes runs again that failed.
    ``place`` says where a job goes. ``watch`` hears where the campaign stands, with the run that ended just now, if one
    did.
    """

    def __init__(
        self,
        campaign: Campaign,
        *,
        journal: QueueJournal,
        folder: Path,
        history: HistoryStore | None,
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
        self._tells_to_end = False
        self._typical_s: dict[str, float] = {}
        self._spent = 0.0
        self._chosen: dict[str, QueueEntry] = {}

    def interrupt(self) -> None:
        """Start no more runs; at the second call, end those that run."""
        self._interrupts += 1

    def limit_s(self, entry: QueueEntry) -> float | None:
        """Return how many seconds the budget leaves for a run; ``None`` without a budget."""
        if self.campaign.budget is None:
            return None
        return max(self._left(entry), 0.0) / compute_cost(self.campaign, entry.spec.resources, 1.0)

    def run(self, planned: Sequence[PlannedRun], queue: JobQueue) -> CampaignReport:
        """Run what is planned and not finished, ``execution_order``, until there is no more, or until something ends it."""
        self.journal.clear_flag(STOP_FLAG)
        queue.resume()
        self._put_back()
        self._plan(execution_order(self.campaign, planned))
        self._record_what_was_not()
        self.watch(self._tally(), None)
        while True:
            self._notice(queue)
            self._refresh()
            if self.ending is None:
                queue.start(self._startable())
                self.entries.update(queue.running)
                self._chosen.clear()
            if not queue.running and not self._goes_on():
                break
            for entry in queue.wait(TICK_S if queue.running else 0.0):
                self._take(entry)
            self.watch(self._tally(), None)
        failed = failure_summaries([*self.entries.values()], self.folder)
        return CampaignReport(self.ending or self._how_it_ended(), self._tally(), failed, len(self.ended))

    def _plan(self, planned: Sequence[PlannedRun]) -> int:
        """Put runs into the journal; return how many are new."""
        before = len(self.entries)
        self.journal.add([(one.id, self.place(build_job(self.campaign, one)), format_note(one)) for one in planned])
        self.entries = {entry.key: entry for entry in self.journal.entries()}
        return len(self.entries) - before

    def _put_back(self) -> None:
        """Let runs wait again that others ended, and those that failed if they are to be retried."""
        for entry in self.journal.entries():
            failed = entry.state.final and entry.state is not JobState.COMPLETED
            if entry.state in RETRIED_STATES or (self.retry_failed and failed):
                self.journal.requeue(entry.key, lost_s=total_elapsed_s(entry) - entry.lost_s)

    def _record_what_was_not(self) -> None:
        """Take in runs that ended when nobody looked, or just before an earlier process died."""
        for entry in self.entries.values():
            if entry.state.final and not entry.recorded:
                self._record(entry)

    def _record(self, entry: QueueEntry) -> None:
        """Put a run into the history once: it is replaced there if this process dies before the journal knows."""
        if self.history is not None:
            self.history.add(run_from_entry(entry))
            entry = self.journal.mark_recorded(entry.key)
        self.entries[entry.key] = entry

    def _take(self, entry: QueueEntry) -> None:
        self.entries[entry.key] = entry
        if not entry.state.final:
            return
        self._record(entry)
        self.ended.append(self.entries[entry.key])
        self.watch(self._tally(), entry)

    def _refresh(self) -> None:
        """Count anew what was spent and how long runs take."""
        entries = [*self.entries.values()]
        self._typical_s, self._spent = mean_completed_s(entries), budget_spent(self.campaign, entries)

    def _notice(self, queue: JobQueue) -> None:
        """Heed interrupts, the wish to stop, and a campaign in which nothing succeeds."""
        end = self._interrupts > 1
        if self._interrupts:
            self.ending = self.ending or StopReason.INTERRUPTED
        if self.ending is None and self._hopeless():
            self.ending, end = StopReason.HOPELESS, True
        if self.ending is not StopReason.STOPPED and self.journal.has_flag(STOP_FLAG):
            self.ending, end = StopReason.STOPPED, True
        if end and not self._tells_to_end:
            self._tells_to_end = True
            queue.end()

    def _hopeless(self) -> bool:
        if len(self.ended) < MIN_HOPELESS_RUNS or any(
            entry.state is JobState.COMPLETED for entry in self.entries.values()
        ):
            return False
        return failure_summaries(self.ended, self.folder)[0].count == len(self.ended)

    def _startable(self) -> Iterator[QueueEntry]:
        """Yield the runs that wait, in their order, as far as the budget and ``max_runs`` allow."""
        self._chosen.clear()
        for entry in [one for one in self.entries.values() if one.state is JobState.PENDING]:
            if self.max_runs is not None and len(self.ended) + len(self._at_work()) >= self.max_runs:
                return
            if self._affordable(entry):
                yield entry
                self._chosen[entry.key] = entry

    def _at_work(self) -> dict[str, QueueEntry]:
        """Return the runs that were started, those of this moment included."""
        return {key: one for key, one in self.entries.items() if one.state is JobState.RUNNING} | self._chosen

    def _affordable(self, entry: QueueEntry) -> bool:
        """Whether what is left of the budget covers what the run is expected to take."""
        if self.campaign.budget is None:
            return True
        expected = self._expected(entry)
        left = self._left(entry)
        return left > 0 if expected is None else expected <= left

    def _left(self, but: QueueEntry) -> float:
        """Return what neither runs that ended nor those that run (but this one) take of the budget."""
        if self.campaign.budget is None:
            raise ValueError("there is no budget")
        held = sum(self._expected(one) or 0.0 for key, one in self._at_work().items() if key != but.key)
        return self.campaign.budget.amount - self._spent - held

    def _expected(self, entry: QueueEntry) -> float | None:
        seconds = expected_run_s(entry, self._typical_s)
        return None if seconds is None else compute_cost(self.campaign, entry.spec.resources, seconds)

    def _goes_on(self) -> bool:
        """Whether there is more to start, now that nothing runs; an adaptive design is asked for it."""
        if self.ending is not None or self._enough():
            return False
        if next(self._waiting(), None) is not None:
            return True
        if self.propose is None or self._spent_up():
            return False
        finished = tuple(run_from_entry(entry) for entry in self.entries.values() if entry.state.final)
        return self._plan(self.propose(self.campaign, finished, self._spent)) > 0

    def _waiting(self) -> Iterator[QueueEntry]:
        return (e for e in self.entries.values() if e.state is JobState.PENDING and self._affordable(e))

    def _enough(self) -> bool:
        return self.max_runs is not None and len(self.ended) >= self.max_runs

    def _spent_up(self) -> bool:
        return self.campaign.budget is not None and self._spent >= self.campaign.budget.amount

    def _how_it_ended(self) -> StopReason:
        waiting = any(entry.state is JobState.PENDING for entry in self.entries.values())
        if waiting and self._enough():
            return StopReason.MAX_RUNS
        return StopReason.BUDGET if waiting or self._spent_up() else StopReason.DONE

    def _tally(self) -> CampaignTotals:
        return campaign_totals(self.campaign, [*self.entries.values()])
