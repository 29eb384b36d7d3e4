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


def find_again(book: JobCache, system: str, scheduler: Scheduler, now: str) -> int:
    """Add the living jobs of a scheduler that the journal lacks, and return their number.

    Raises:
        SchedulerUnreachable: the scheduler did not answer; nothing was written.
    """
    living = scheduler.living() if isinstance(scheduler, ListingScheduler) else ()
    unknown = book.journal.unknown_attempts(job.key for job in living)
    lost = [job for job in living if job.key in unknown]
    outcomes = scheduler.reports([job.key for job in lost]) if lost else {}
    jobs = [rebuild_job(job, system, outcomes.get(job.key), now) for job in lost]
    events = [
        attempt_event(EventKind.SUBMITTED, attempt, {"id": attempt.scheduler_id, FOUND_AGAIN: True, "journal": "lost"})
        for job in jobs
        for attempt in job.attempts
    ]
    book.journal.restore(jobs, [*events, NewEvent(EventKind.POLL, details={"system": system, FOUND_AGAIN: len(jobs)})])
    return len(jobs)


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
