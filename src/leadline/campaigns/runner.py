"""The campaign runner: starts affordable runs as jobs of a plane, records ended ones, and requests further runs."""

import math
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import build_job
from leadline.campaigns.journal import (
    LOCAL_SYSTEM,
    RETRIED_STATES,
    CampaignJournal,
    CampaignRun,
    CampaignTotals,
    FailureSummary,
    budget_spent,
    campaign_totals,
    expected_run_s,
    failure_summaries,
    last_attempt,
    mean_completed_s,
    run_key,
)
from leadline.campaigns.place import INTERVALS, RunAdvisor, RunPlace, diagnose_run
from leadline.core.campaigns import Campaign, Design, PlannedRun
from leadline.core.errors import LeadlineError, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.plane import Job
from leadline.core.runs import Run
from leadline.execution.clock import now_utc
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.submitter import MAX_ARRAY_SIZE
from leadline.history.sqlite import SqliteHistory

MIN_HOPELESS_RUNS = 3  # number of initial runs that must fail in the same way to end the call
TICK_S = 0.5
UNREACHABLE_S = 1800.0  # time without an answer of a scheduler after which the call ends

# Chooses the next runs from the campaign, its ended runs, and the consumption.
ProposeRuns = Callable[[Campaign, tuple[Run, ...], float], tuple[PlannedRun, ...]]


class StopReason(StrEnum):
    """Reason for the end of a call."""

    DONE = "done"
    BUDGET = "the budget is spent"
    MAX_RUNS = "as many runs as asked for have ended"
    HOPELESS = "every run fails in the same way"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by leadline campaign stop"


class CampaignReport(Frozen):
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


@dataclass(kw_only=True)
class Runner:
    """One call that runs a campaign; ``interrupt`` may be called from a signal handler."""

    campaign: Campaign
    journal: CampaignJournal
    folder: Path
    place: RunPlace
    history: SqliteHistory | None = None  # store of the runs, if any
    propose: ProposeRuns | None = None  # chooses further runs of an adaptive design
    max_runs: int | None = None  # ends the call after so many runs
    retry_failed: bool = False
    # Called with the totals, and with a run that has just ended.
    watch: Callable[[CampaignTotals, CampaignRun | None], None] = lambda *_: None
    runs: dict[str, CampaignRun] = field(default_factory=dict, init=False)  # all runs in the order of execution
    ended: list[CampaignRun] = field(default_factory=list, init=False)  # the runs that ended in this call
    ending: StopReason | None = field(default=None, init=False)
    _open: dict[str, str] = field(default_factory=dict, init=False)  # job that the plane works on -> its run
    _interrupts: int = field(default=0, init=False)
    _cancelled: bool = field(default=False, init=False)
    _answered_s: dict[str, float] = field(default_factory=dict, init=False)
    _typical_s: dict[str, float] = field(default_factory=dict, init=False)
    _spent: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Make the plane, which reads the journal at its first step."""
        self.advisor = RunAdvisor(self.journal, self.place.scheduler, began_at=now_utc())
        self.plane = Plane(
            self.journal, self.place.scheduler, self.advisor, diagnose=diagnose_run, decide=self.advisor.decide,
            intervals=INTERVALS,
        )  # fmt: skip
        self._first_event = self.journal.last_event()

    def interrupt(self) -> None:
        """Start no more runs; the second call ends running ones."""
        self._interrupts += 1

    def run(self, planned: Sequence[PlannedRun]) -> CampaignReport:
        """Run the planned and unfinished runs in ``execution_order`` until none is left or the call ends early.

        Raises:
            LeadlineError: a scheduler refuses a run.
            SchedulerUnreachable: a scheduler does not answer; submitted runs continue.
        """
        self._load()
        self._repeat_runs()
        self._plan(execution_order(self.campaign, planned))
        self._refresh()
        for run in [*self.runs.values()]:
            self._store(run)
        self.watch(self._totals(), None)
        while True:
            wait_s = self.plane.step()
            self._update()
            self._check_reachable()
            self._check_stop()
            if self._start_runs():
                continue
            if not self._open and not self._continue():
                break
            self.watch(self._totals(), None)
            self._wait(min(wait_s, TICK_S))
        self.journal.write()
        failed = failure_summaries([*self.runs.values()], self.folder)
        return CampaignReport(self.ending or self._final_reason(), self._totals(), failed, len(self.ended))

    def end_runs(self) -> int:
        """End the runs that outlived their runner, so that they wait again; return their number."""
        self._load()
        running = len(self._open)
        self._interrupts = 2
        self.run(())
        return running

    def _load(self) -> None:
        self.runs = {run.key: run for run in self.journal.runs()}
        self._open = {run.job.key: key for key, run in self.runs.items() if run.job and run.open}

    def _plan(self, planned: Sequence[PlannedRun]) -> int:
        """Add runs to the journal and return the number of new ones."""
        changed = [
            (run, self.place.place(build_job(self.campaign, run)))
            for run in planned
            if run.id not in self.runs or self.runs[run.id].state is JobState.PENDING
        ]
        new = [run.id for run, _ in changed if run.id not in self.runs]
        self.journal.plan(changed)
        for run, spec in changed:
            known = self.runs.get(run.id)
            self.runs[run.id] = CampaignRun(run, spec) if known is None else replace(known, planned=run, spec=spec)
        return len(new)

    def _repeat_runs(self) -> None:
        """Let runs that were ended from outside wait again, and failed ones on request."""
        for key, run in [*self.runs.items()]:
            failed = run.state.final and run.state is not JobState.COMPLETED
            if run.state in RETRIED_STATES or (self.retry_failed and failed):
                # First the history: a result that is only in the journal would be lost.
                self._store(run)
                self.journal.repeat(run)
                self.runs[key] = replace(run, discarded=len(run.jobs))

    def _store(self, run: CampaignRun) -> None:
        """Store an ended run in the history, which replaces it if this process dies before the journal is updated."""
        if self.history is None or run.outcome is None or run.stored:
            return
        # History first: an unrecorded run is added again, but a lost one would never be.
        self.history.add(run.run)
        self.journal.mark_stored(last_attempt(run.jobs[-1]))
        self.runs[run.key] = replace(run, stored=True)

    def _start_runs(self) -> bool:
        """Add the runs that can start now to the journal, as jobs of the plane; False if there is none."""
        chosen: dict[str, CampaignRun] = {}
        for run in self._waiting_runs() if self.ending is None else ():
            if self.max_runs is not None and len(self.ended) + len(self._open) + len(chosen) >= self.max_runs:
                break
            if not self._affordable(run, chosen):
                continue
            self.place.check(run.spec)
            if self._open and not self.place.has_room(run.spec.resources):
                break
            chosen[run.key] = run
            # On this machine, whether a second run fits is only known once the first one has started.
            if not self.place.arrays:
                break
        jobs = [
            self.place.job(f"{key}-{len(run.jobs) + 1}", run.spec, self._limit_s(run, chosen))
            for key, run in chosen.items()
        ]
        jobs = [*_as_arrays(jobs)] if self.place.arrays else jobs
        if not jobs:
            return False
        self.journal.add(jobs)
        for job in jobs:
            run = self.runs[run_key(job.key)]
            self.runs[run.key] = replace(run, jobs=(*run.jobs, job))
            self._open[job.key] = run.key
        if here := self.plane.rhythms.get(LOCAL_SYSTEM):
            here.wake()
        return True

    def _wait(self, timeout_s: float) -> None:
        """Wait for the end of a run on this machine, which the plane then looks at at once."""
        here = self.plane.rhythms.get(LOCAL_SYSTEM)
        if here is None or here.failures:
            time.sleep(timeout_s if self._open else 0.0)
        elif self._open and self.place.wait(timeout_s):
            here.wake()

    def _update(self) -> None:
        """Take in the ends of runs that the plane has settled."""
        closed = [key for key in self._open if key not in self.plane.book.jobs]
        refused = ""
        for job in self.journal.jobs_by_key(closed):
            key = self._open.pop(job.key)
            if not job.cancelled and last_attempt(job) not in self.advisor.outcomes:
                # Its scheduler never accepted it, so the run still waits.
                if job.state is JobState.FAILED and all(attempt.withdrawn for attempt in job.attempts):
                    refused = job.reason
                else:
                    self.advisor.store([(job, job.attempts[-1] if job.attempts else None, None)])
            outcomes = {
                attempt.key: self.advisor.outcomes.pop(attempt.key)
                for attempt in job.attempts
                if attempt.key in self.advisor.outcomes
            }
            run = self.runs[key]
            run = replace(run, jobs=(*run.jobs[:-1], job), outcomes={**run.outcomes, **outcomes}, stored=False)
            self.runs[key] = run
            if run.outcome is not None:
                self._store(run)
                self.ended.append(run)
                self.watch(self._totals(), run)
        if closed:
            self._refresh()
        if refused:
            raise LeadlineError(refused)

    def _refresh(self) -> None:
        """Update consumption and typical run times."""
        runs = [*self.runs.values()]
        self._typical_s, self._spent = mean_completed_s(runs), budget_spent(self.campaign, runs)

    def _check_reachable(self) -> None:
        """Raise if a scheduler has never answered, or not for a long time."""
        for system, rhythm in self.plane.rhythms.items():
            if not rhythm.failures:
                self._answered_s[system] = time.monotonic()
            # Only an answer or a submission sets the interval.
            elif not rhythm.interval_s or time.monotonic() - self._answered_s.get(system, 0.0) > UNREACHABLE_S:
                raise SchedulerUnreachable(
                    f"{rhythm.last_error}: submitted jobs continue; resume the campaign when it answers again"
                )

    def _check_stop(self) -> None:
        """Handle interrupts, the request of another process, and campaigns in which every run fails."""
        end = self._interrupts > 1
        if self._interrupts:
            self.ending = self.ending or StopReason.INTERRUPTED
        if self.ending is None and self._is_hopeless():
            self.ending, end = StopReason.HOPELESS, True
        if self.ending is not StopReason.STOPPED and self.journal.stop_requested(since=self._first_event):
            self.ending, end = StopReason.STOPPED, True
        if end and not self._cancelled:
            self._cancelled = True
            self.journal.cancel([*self._open])

    def _is_hopeless(self) -> bool:
        if len(self.ended) < MIN_HOPELESS_RUNS or any(run.state is JobState.COMPLETED for run in self.runs.values()):
            return False
        return failure_summaries(self.ended, self.folder)[0].count == len(self.ended)

    def _waiting_runs(self) -> list[CampaignRun]:
        return [run for run in self.runs.values() if run.state is JobState.PENDING]

    def _affordable(self, run: CampaignRun, chosen: dict[str, CampaignRun]) -> bool:
        """Return True if the remaining budget covers the expected cost of the run."""
        expected, remaining = self._expected(run), self._remaining_budget(run, chosen)
        return remaining > 0 if expected is None else expected <= remaining

    def _limit_s(self, run: CampaignRun, chosen: dict[str, CampaignRun]) -> float | None:
        """Return the seconds that the budget leaves for a run; ``None`` without a budget."""
        if self.campaign.budget is None:
            return None
        return max(self._remaining_budget(run, chosen), 0.0) / compute_cost(self.campaign, run.spec.resources, 1.0)

    def _remaining_budget(self, excluded: CampaignRun, chosen: dict[str, CampaignRun]) -> float:
        """Return the budget that ended and started runs leave for this run; infinity without a budget."""
        if self.campaign.budget is None:
            return math.inf
        started = {key: self.runs[key] for key in self._open.values()} | chosen
        committed = sum(self._expected(run) or 0.0 for key, run in started.items() if key != excluded.key)
        return self.campaign.budget.amount - self._spent - committed

    def _expected(self, run: CampaignRun) -> float | None:
        seconds = expected_run_s(run, self._typical_s)
        return None if seconds is None else compute_cost(self.campaign, run.spec.resources, seconds)

    def _continue(self) -> bool:
        """Return True if there are more runs to start; an adaptive design may propose some."""
        if self.ending is not None or self._reached_max_runs():
            return False
        if any(self._affordable(run, {}) for run in self._waiting_runs()):
            return True
        if self.propose is None or self._is_budget_spent():
            return False
        finished = tuple(run.run for run in self.runs.values() if run.state.final)
        return self._plan(self.propose(self.campaign, finished, self._spent)) > 0

    def _reached_max_runs(self) -> bool:
        return self.max_runs is not None and len(self.ended) >= self.max_runs

    def _is_budget_spent(self) -> bool:
        return self.campaign.budget is not None and self._spent >= self.campaign.budget.amount

    def _final_reason(self) -> StopReason:
        waiting = bool(self._waiting_runs())
        if waiting and self._reached_max_runs():
            return StopReason.MAX_RUNS
        return StopReason.BUDGET if waiting or self._is_budget_spent() else StopReason.DONE

    def _totals(self) -> CampaignTotals:
        return campaign_totals(self.campaign, [*self.runs.values()])


def _as_arrays(jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield the jobs as elements of arrays, one array for equal requests."""
    shapes: dict[str, list[Job]] = {}
    for job in jobs:
        resources = job.plan.resources if job.plan else job.spec.resources
        shape = replace(job.spec, command=(), environment={}, setup=(), workdir=None, resources=resources)
        shapes.setdefault(repr(shape), []).append(job)
    for members in shapes.values():
        array = uuid.uuid4().hex[:12]
        # Slurm limits the index itself, so every array counts from 0.
        for at, job in enumerate(members):
            yield replace(job, group=f"{array}-{at // MAX_ARRAY_SIZE}", index=at % MAX_ARRAY_SIZE)
