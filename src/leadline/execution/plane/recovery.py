"""Find living jobs again at their schedulers after their journal was lost, and never submit them again."""

from dataclasses import replace

from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind, Job, Place, Policy
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import NewEvent, attempt_event
from leadline.execution.schedulers.port import ListingScheduler, LivingJob, Scheduler
from leadline.execution.wrapper.outcome import JobOutcome

FOUND_AGAIN = "found_again"
"""Tag of a job that was found again, and detail of the events about it."""


def living_jobs(scheduler: Scheduler) -> list[LivingJob]:
    """Return the jobs that a scheduler can list, running ones last, because a key may be in the queue twice."""
    living = scheduler.living() if isinstance(scheduler, ListingScheduler) else ()
    return sorted(living, key=lambda job: job.state is JobState.RUNNING)


def find_again(book: JobCache, system: str, scheduler: Scheduler, now: str) -> str:
    """Add the living jobs of a scheduler that the journal lacks, and return a message about them, if any.

    Raises:
        SchedulerUnreachable: the scheduler did not answer; nothing was written.
    """
    living = {job.key: job for job in living_jobs(scheduler)}
    lost = book.journal.unknown_attempts(living)
    outcomes = scheduler.reports(lost) if lost else {}
    jobs = [rebuild_job(living[key], system, outcomes.get(key), now) for key in sorted(lost)]
    events = [
        attempt_event(EventKind.SUBMITTED, attempt, {"id": attempt.scheduler_id, FOUND_AGAIN: True, "journal": "lost"})
        for job in jobs
        for attempt in job.attempts
    ]
    book.journal.restore(jobs, [*events, NewEvent(EventKind.POLL, details={"system": system, FOUND_AGAIN: len(jobs)})])
    if not isinstance(scheduler, ListingScheduler):
        return f"{system} cannot list its jobs: if an earlier journal was lost, its jobs there are not found again"
    return f"{len(jobs)} jobs of a lost journal were found again at {system}" if jobs else ""


def rebuild_job(lost: LivingJob, system: str, outcome: JobOutcome | None, now: str) -> Job:
    """Return a job with what its scheduler and wrapper know. It has one attempt, and gets no other."""
    place = Place(system, lost.spec.partition)
    spec = replace(lost.spec, system=system, command=lost.spec.command or (outcome.command if outcome else ()))
    attempt = Attempt(
        lost.key, lost.key, 1, place, spec.resources, lost.batch, lost.state, lost.scheduler_id, now, now,
        outcome.started_at if outcome and lost.state is JobState.RUNNING else None,
        walltime_s=spec.resources.walltime_s,
    )  # fmt: skip
    return Job(
        lost.key, spec, Policy((place,), attempts=1, resizes=False), created_at=now,
        group=None if lost.index is None else lost.batch, index=lost.index, attempts=(attempt,),
        tags={FOUND_AGAIN: "found again at its scheduler after the journal was lost"},
    )  # fmt: skip
