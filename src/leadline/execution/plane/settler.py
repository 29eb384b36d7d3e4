"""Settle attempts that ended: why they ended, and whether the job is done, retried or given up."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, EventKind, Job
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.actor import Actor, decision_details
from leadline.execution.plane.advisor import Advisor, Diagnose, EndedAttempt
from leadline.execution.plane.diagnose import Diagnosis, last_limit_s
from leadline.execution.plane.job_cache import JobCache, closed_job, with_attempt
from leadline.execution.plane.journal import NewEvent, attempt_event
from leadline.execution.plane.segments import diagnose_segment, done_share, is_segment
from leadline.execution.plane.watcher import ObservedEnd
from leadline.execution.schedulers.port import Scheduler, SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass(slots=True)
class Settler:
    """Writes the ends of attempts and jobs, and passes finished attempts to the history."""

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    advisor: Advisor
    clock: Clock
    diagnose: Diagnose
    actor: Actor
    outcomes: dict[str, JobOutcome | None] = field(default_factory=dict)  # attempt -> its outcome, until it is recorded

    def settle(self, ends: list[ObservedEnd]) -> None:
        """Settle attempts and decide about their jobs, in one write."""
        jobs: dict[str, Job] = {}
        attempts: list[Attempt] = []
        events: list[NewEvent] = []
        for end in ends:
            job_before = jobs.get(end.attempt.job) or self.book.jobs[end.attempt.job]
            # Another system's round may have withdrawn it while its scheduler was called.
            before = next(attempt for attempt in job_before.attempts if attempt.key == end.attempt.key)
            end = replace(end, attempt=before)  # noqa: PLW2901 - the same end, brought up to date
            diagnosis = self.diagnose(end.attempt, end.status, end.outcome, end.log, cancelled=job_before.cancelled)
            diagnosis = diagnose_segment(job_before, end.status, end.outcome, diagnosis)
            ended = self._ended_attempt(end, diagnosis)
            details = {"state": diagnosis.state.value, "reason": ended.reason}
            events.append(attempt_event(EventKind.STATE, ended, details))
            job, job_events = self._next(with_attempt(job_before, ended), ended, end.outcome, diagnosis)
            jobs[job.key] = job
            # Settling one copy may withdraw the others.
            attempts += [attempt for attempt in job.attempts if attempt not in self.book.jobs[job.key].attempts]
            events += job_events
            self.outcomes[ended.key] = end.outcome
        self.book.write(jobs=jobs.values(), attempts=attempts, events=events)

    def record(self) -> None:
        """Pass ended attempts to the history and drop finished jobs."""
        unread = {attempt.job for system in self.schedulers for attempt in self._unread(system)}
        leaving = [self.book.jobs[key] for key in self.book.leaving if key not in unread]
        ended = [(job, attempt) for job in leaving for attempt in _unrecorded(job)]
        ends = [EndedAttempt(job, attempt, self.outcomes.get(attempt.key)) for job, attempt in ended]
        closed = [job for job in leaving if job.closed and not job.recorded]
        if not ends and not closed:
            return
        self.advisor.ended([end for end in ends if end.attempt.started_at is not None])
        self.book.write(
            jobs=[replace(job, recorded=True) for job in closed],
            attempts=[replace(end.attempt, recorded=True) for end in ends],
        )
        for end in ends:
            self.outcomes.pop(end.attempt.key, None)

    def read_reports(self, system: str) -> None:
        """Read the reports of a system's attempts that an earlier process settled and did not record."""
        if missing := [attempt.key for attempt in self._unread(system)]:
            try:
                reports = self.schedulers[system].reports(missing)
            except SchedulerUnreachable:  # the run is stored without its report
                reports = {}
            self.outcomes |= {key: reports.get(key) for key in missing}

    def _unread(self, system: str) -> list[Attempt]:
        ended = [attempt for key in self.book.leaving for attempt in _unrecorded(self.book.jobs[key])]
        here = [attempt for attempt in ended if attempt.place.system == system and attempt.started_at is not None]
        return [attempt for attempt in here if attempt.key not in self.outcomes]

    def _ended_attempt(self, end: ObservedEnd, diagnosis: Diagnosis) -> Attempt:
        attempt, outcome, status = end.attempt, end.outcome, end.status or SchedulerStatus(JobState.UNKNOWN)
        started_at = outcome.started_at if outcome else attempt.started_at
        ended_at = outcome.ended_at if outcome and outcome.ended_at else iso_utc(self.clock.now_s())
        return replace(
            attempt,
            state=diagnosis.state,
            started_at=started_at if status.started_s is None else iso_utc(status.started_s),
            ended_at=ended_at if status.ended_s is None else iso_utc(status.ended_s),
            reason="; ".join(diagnosis.evidence) or attempt.reason,
            walltime_s=last_limit_s(attempt, status),
            node=status.node or attempt.node or (outcome.host if outcome else None),
            exit_code=outcome.exit_code if outcome else status.exit_code,
            done_share=done_share(outcome),
        )

    def _next(
        self, job: Job, ended: Attempt, outcome: JobOutcome | None, diagnosis: Diagnosis
    ) -> tuple[Job, list[NewEvent]]:
        """Return the job after the end of one attempt, and the events that describe it."""
        done = any(attempt.state is JobState.COMPLETED for attempt in job.attempts)
        if job.live_attempts:
            # The remaining copies are useless once the job is done or can only fail.
            useless = done or job.cancelled
            if not useless and not ended.withdrawn:
                useless = self.actor.decide_end(job, ended, outcome, diagnosis).action is Action.GIVE_UP
            attempts = tuple(
                replace(attempt, withdrawn=attempt.withdrawn or (attempt.live and useless)) for attempt in job.attempts
            )
            return replace(job, attempts=attempts), []
        # Another copy completed, or this one before it could be withdrawn.
        if done and (ended.state is not JobState.COMPLETED or job.cancelled or ended.withdrawn):
            return closed_job(job, JobState.COMPLETED, "")
        if job.cancelled:
            return closed_job(job, JobState.CANCELLED, "cancelled by its user")
        # A move or a resubmission was planned when the attempt was withdrawn.
        if ended.withdrawn and job.plan is not None:
            return job, []
        decision = self.actor.decide_end(job, ended, outcome, diagnosis)
        events = [NewEvent(EventKind.DECISION, job.key, ended.key, decision_details(decision))]
        if decision.action in (Action.RESUBMIT, Action.MOVE, Action.CHECKPOINT):
            job = with_attempt(job, replace(ended, segment=is_segment(job, outcome, diagnosis)))
            not_before = iso_utc(self.clock.now_s() + decision.delay_s) if decision.delay_s else None
            place, resources = decision.place or ended.place, decision.resources or ended.resources
            plan = AttemptPlan(place, resources, not_before, decision.reason)
            return replace(job, plan=plan, reason=decision.reason), events
        # A withdrawn attempt says nothing of its job if another one was not withdrawn.
        kept = [attempt for attempt in job.attempts if not attempt.withdrawn]
        state = kept[-1].state if kept and ended.withdrawn else ended.state
        closed, settled = closed_job(job, state, decision.reason)
        return closed, [*events, *settled]


def _unrecorded(job: Job) -> list[Attempt]:
    """Return the ended attempts that are not in the history."""
    return [attempt for attempt in job.attempts if not attempt.live and not attempt.recorded]
