"""Find waiting jobs that a change of their system broke, and record that in the journal."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from leadline.app.jobs.journal import journal_path, open_journal
from leadline.app.machines.remotes import find_remote
from leadline.app.machines.targets import ANY_SLURM
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place
from leadline.core.systems import SystemChange
from leadline.execution.plane.journal import NewEvent
from leadline.recommendation.queued_jobs import explain_unrunnable


class BrokenJob(Frozen):
    """A job that can never start where it waits; ``attempt`` is empty before its submission."""

    job: str
    attempt: str
    why: str

    @property
    def sentence(self) -> str:
        """Return the job, the reason and the fix."""
        return f"job {self.job}: {self.why}; run leadline cancel {self.job}, and submit it with another request"


def announce_broken_jobs(change: SystemChange, *, write: bool = True) -> tuple[BrokenJob, ...]:
    """Return the jobs that a change broke; each gets an event in the journal if ``write``.

    Raises:
        LeadlineError: the journal cannot be read or written.
    """
    if not (change.changes or change.before is None) or not journal_path().exists():
        return ()
    with open_journal() as journal:
        broken = find_broken_jobs(change, journal.open_jobs(), at_hand=find_remote(ANY_SLURM).host is None)
        if write and broken:
            details = {"changed": change.after.name}
            journal.write(
                events=[NewEvent(EventKind.FAULT, job.job, job.attempt, {**details, "why": job.why}) for job in broken]
            )
    return broken


def find_broken_jobs(change: SystemChange, jobs: Sequence[Job], *, at_hand: bool) -> tuple[BrokenJob, ...]:
    """Return the jobs that wait at the changed system and can no longer start.

    If this machine's Slurm is the changed one (``at_hand``), jobs with the target ``slurm`` count too.
    """
    broken = []
    for job in jobs:
        reasons = [_broken(change, job, *reason, at_hand=at_hand) for reason in _waiting(job)]
        # A job without an attempt that fits at one of its targets is not broken.
        waits_elsewhere = not job.attempts and job.plan is None and None in reasons
        broken += [] if waits_elsewhere else [reason for reason in reasons if reason is not None]
    return tuple(broken)


def _waiting(job: Job) -> Iterator[tuple[str, Place, ResourceSpec]]:
    """Yield (attempt key or "", target, request) for each place where a job waits or will go."""
    if job.closed or job.cancelled:
        return
    for attempt in job.live_attempts:
        if attempt.state is JobState.PENDING and not attempt.withdrawn:
            walltime_s = attempt.walltime_s or attempt.resources.walltime_s
            yield attempt.key, attempt.place, replace(attempt.resources, walltime_s=walltime_s)
    if job.plan is not None:
        yield "", job.plan.place, job.plan.resources
    elif not job.attempts:
        yield from (("", place, job.spec.resources) for place in job.policy.places)


def _broken(
    change: SystemChange, job: Job, attempt: str, place: Place, request: ResourceSpec, *, at_hand: bool
) -> BrokenJob | None:
    is_local_slurm = at_hand and place.system.casefold() == ANY_SLURM
    if not is_local_slurm and place.system.casefold() != change.after.name.casefold():
        return None
    spec = replace(job.spec, resources=request, system=change.after.name, partition=place.partition)
    why = explain_unrunnable(change, spec)
    return BrokenJob(job.key, attempt, why) if why is not None else None
