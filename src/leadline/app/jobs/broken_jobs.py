"""Jobs of the plane that wait, and that a change of their system broke: announced, and noted for ``explain``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leadline.app.jobs.job_request import ANY_SLURM
from leadline.app.jobs.journal import open_journal, plane_dir
from leadline.app.machines.remotes import find_remote
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place
from leadline.core.systems import SystemChange
from leadline.execution.plane.journal import NewEvent
from leadline.recommendation.queued_jobs import find_unrunnable_jobs


@dataclass(frozen=True, slots=True)
class BrokenJob:
    """A job of the plane that can never start where it waits; ``attempt`` is empty where it was not submitted yet."""

    job: str
    attempt: str
    why: str

    @property
    def sentence(self) -> str:
        """Say which job, why, and what to do."""
        return f"job {self.job}: {self.why}; leadline cancel {self.job}, and submit it with what can be had"


def announce_broken_jobs(change: SystemChange, *, write: bool = True) -> tuple[BrokenJob, ...]:
    """Return the jobs of the plane's journal that a change broke; each is told so in its story, unless not ``write``.

    Raises:
        LeadlineError: the journal cannot be read or written.
    """
    if not (change.changes or change.before is None) or not (plane_dir() / "journal.sqlite").exists():
        return ()
    with open_journal() as journal:
        found = find_broken_jobs(change, journal.open_jobs(), at_hand=find_remote(ANY_SLURM).host is None)
        if write and found:
            said = {"changed": change.after.name}
            journal.write(
                events=[NewEvent(EventKind.FAULT, one.job, one.attempt, {**said, "why": one.why}) for one in found]
            )
    return found


def find_broken_jobs(change: SystemChange, jobs: Sequence[Job], *, at_hand: bool) -> tuple[BrokenJob, ...]:
    """Return the jobs that wait at the system and that its change broke.

    Those of the Slurm ``at_hand`` whose name their places do not tell are its jobs, too.
    """
    found = []
    for job in jobs:
        each = [_broken(change, job, *one, at_hand=at_hand) for one in _waiting(job)]
        waits_elsewhere = not job.attempts and job.plan is None and None in each
        found += [] if waits_elsewhere else [one for one in each if one is not None]
    return tuple(found)


def _waiting(job: Job) -> Iterator[tuple[str, Place, ResourceSpec]]:
    """Yield where a job waits, or is to go, with its request: the attempt's key, or an empty one."""
    if job.closed or job.cancelled:
        return
    for one in job.live_attempts:
        if one.state is JobState.PENDING and not one.withdrawn:
            yield one.key, one.place, replace(one.resources, walltime_s=one.walltime_s or one.resources.walltime_s)
    if job.plan is not None:
        yield "", job.plan.place, job.plan.resources
    elif not job.attempts:
        yield from (("", place, job.spec.resources) for place in job.policy.places)


def _broken(
    change: SystemChange, job: Job, attempt: str, place: Place, asked: ResourceSpec, *, at_hand: bool
) -> BrokenJob | None:
    own = at_hand and place.system.casefold() == ANY_SLURM
    if not own and place.system.casefold() != change.after.name.casefold():
        return None
    spec = replace(job.spec, resources=asked, system=change.after.name, partition=place.partition)
    found = find_unrunnable_jobs(change, [spec])
    return BrokenJob(job.key, attempt, found[0].sentence) if found else None
