"""Settle attempts that ended: how, why, and whether the job is done, tried again or given up."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, EventKind, Job
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.actor import Actor, decision_details, has_checkpoint
from leadline.execution.plane.advisor import Advisor, Diagnose, EndedAttempt
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.plane.job_cache import JobCache, closed_job
from leadline.execution.plane.journal import NewEvent
from leadline.execution.plane.watcher import ObservedEnd
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass(slots=True)
class Settler:
    """Writes the ends of attempts and jobs down, and hands finished jobs to the history."""

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    advisor: Advisor
    clock: Clock
    diagnose: Diagnose
    actor: Actor
    outcomes: dict[str, JobOutcome | None] = field(default_factory=dict)
    """Attempt → its outcome, until it is recorded."""

    def settle(self, ends: list[ObservedEnd]) -> None:
        """Settle attempts, and decide what becomes of their jobs: one write for all."""
        jobs: dict[str, Job] = {}
        attempts: list[Attempt] = []
        notes: list[NewEvent] = []
        for end in ends:
            held = jobs.get(end.attempt.job) or self.book.jobs[end.attempt.job]
            found = self.diagnose(end.attempt, end.status, end.outcome, end.log)
            ended = self._ended(end, found)
            notes.append(
                NewEvent(EventKind.STATE, ended.job, ended.key, {"state": found.state.value, "reason": ended.reason})
            )
            job = replace(held, attempts=tuple(ended if one.key == ended.key else one for one in held.attempts))
            job, told = self._next(job, ended, end.outcome, found)
            jobs[job.key] = job
            attempts += [one for one in job.attempts if one not in self.book.jobs[job.key].attempts]
            notes += told
            self.outcomes[ended.key] = end.outcome
        self.book.write(jobs=jobs.values(), attempts=attempts, notes=notes)

    def record(self) -> None:
        """Hand the attempts that ended to the history, and let go of jobs for which nothing is left to do."""
        leaving = [self.book.jobs[key] for key in self.book.leaving]
        ends = [
            EndedAttempt(job, attempt, self.outcomes.get(attempt.key))
            for job in leaving
            for attempt in job.attempts
            if not attempt.live and not attempt.recorded
        ]
        closed = [job for job in leaving if job.closed and not job.recorded]
        if not ends and not closed:
            return
        ran = [one for one in ends if one.attempt.started_at is not None]
        reported = self._reported([one.attempt for one in ran if one.attempt.key not in self.outcomes])
        self.advisor.ended([replace(one, outcome=one.outcome or reported.get(one.attempt.key)) for one in ran])
        self.book.write(
            jobs=[replace(job, recorded=True) for job in closed],
            attempts=[replace(one.attempt, recorded=True) for one in ends],
        )
        self.outcomes.clear()

    def _reported(self, attempts: list[Attempt]) -> dict[str, JobOutcome]:
        """Return the reports of attempts that an earlier process settled; of those that can still be read."""
        found: dict[str, JobOutcome] = {}
        for system in {one.place.system for one in attempts} & set(self.schedulers):
            keys = [one.key for one in attempts if one.place.system == system]
            try:
                found |= self.schedulers[system].reports(keys)
            except SchedulerUnreachable:  # the run is kept by what the journal has of it
                continue
        return found

    def _ended(self, end: ObservedEnd, found: Diagnosis) -> Attempt:
        attempt, status, outcome = end.attempt, end.status, end.outcome
        started = outcome.started_at if outcome else attempt.started_at
        if status is not None and status.started_s is not None:
            started = iso_utc(status.started_s)
        ended = outcome.ended_at if outcome and outcome.ended_at else iso_utc(self.clock.now_s())
        if status is not None and status.ended_s is not None:
            ended = iso_utc(status.ended_s)
        return replace(
            attempt,
            state=found.state,
            started_at=started,
            ended_at=ended,
            reason="; ".join(found.evidence) or attempt.reason,
            node=(status.node if status else None) or attempt.node or (outcome.host if outcome else None),
            exit_code=outcome.exit_code if outcome else status.exit_code if status else None,
        )

    def _next(
        self, job: Job, ended: Attempt, outcome: JobOutcome | None, found: Diagnosis
    ) -> tuple[Job, list[NewEvent]]:
        """Return the job as the end of an attempt leaves it, and what is to be told of that."""
        done = any(one.state is JobState.COMPLETED for one in job.attempts)
        if job.live_attempts:  # another copy is still there; it is of no more use if the job is done, or can only fail
            useless = done or job.cancelled or self._gives_up(job, ended, outcome, found)
            rest = tuple(replace(one, withdrawn=one.withdrawn or (one.live and useless)) for one in job.attempts)
            return replace(job, attempts=rest), []
        if done and (ended.state is not JobState.COMPLETED or job.cancelled):
            closed, settled = closed_job(job, JobState.COMPLETED, "")
            return closed, [settled]
        if job.cancelled:
            closed, settled = closed_job(job, JobState.CANCELLED, "cancelled by its user")
            return closed, [settled]
        if ended.withdrawn and job.plan is not None:
            return job, []
        decision = self.actor.decide_end(job, ended, outcome, found)
        told = [NewEvent(EventKind.DECISION, job.key, ended.key, decision_details(decision))]
        if decision.action in (Action.RESUBMIT, Action.MOVE, Action.CHECKPOINT):
            attempts = tuple(
                replace(one, segment=has_checkpoint(job, outcome)) if one.key == ended.key else one
                for one in job.attempts
            )
            plan = self._plan(decision, ended)
            return replace(job, attempts=attempts, plan=plan, reason=decision.reason), told
        closed, settled = closed_job(job, _end_of(job, ended), decision.reason)
        return closed, [*told, settled]

    def _gives_up(self, job: Job, ended: Attempt, outcome: JobOutcome | None, found: Diagnosis) -> bool:
        """Whether nothing more would be tried after the end of a copy, so that the others need not be either."""
        if ended.withdrawn:
            return False
        return self.actor.decide_end(job, ended, outcome, found).action is Action.GIVE_UP

    def _plan(self, decision: Decision, ended: Attempt) -> AttemptPlan:
        later = iso_utc(self.clock.now_s() + decision.delay_s) if decision.delay_s else None
        return AttemptPlan(decision.place or ended.place, decision.resources or ended.resources, later, decision.reason)


def _end_of(job: Job, ended: Attempt) -> JobState:
    """Return how a job ended whose last attempt was this one: as the last that was not taken back."""
    own = [one for one in job.attempts if not one.withdrawn]
    return own[-1].state if own and ended.withdrawn else ended.state
