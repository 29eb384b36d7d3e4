"""The plane's journal: submit jobs, list them, cancel them, and read their events."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from leadline.app import settings
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Estimate
from leadline.core.jobs import JobSpec
from leadline.core.plane import DependencyKind, EventKind, Job, JournalEvent, Policy
from leadline.execution.plane.journal import PlaneJournal

MAX_ARRAY_ELEMENTS = 100_000


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """One job, or an array with one element per index.

    ``after`` names jobs of the plane that must end as ``after_kind`` says before this one is submitted.
    """

    spec: JobSpec
    policy: Policy
    indices: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    after_kind: DependencyKind = DependencyKind.OK
    predicted: Estimate | None = None
    parameters: dict[str, int | float | str] | None = None
    tags: dict[str, str] | None = None


def plane_dir() -> Path:
    """Return the folder of the plane: its journal, its lock, and the files of this machine's jobs."""
    return settings.data_dir() / "plane"


def plane_lock() -> Path:
    """Return the lock file of the process that runs the plane."""
    return plane_dir() / "lock"


def open_journal() -> PlaneJournal:
    """Open the plane's journal; create it if it does not exist."""
    settings.require_writable(plane_dir())
    return PlaneJournal(plane_dir() / "journal.sqlite")


def submit_jobs(submission: JobSubmission) -> tuple[Job, ...]:
    """Write jobs to the journal, all or none; the plane submits them.

    Raises:
        UnknownName: a job that it depends on does not exist.
        InvalidInput: the array is empty, too large, or has an index twice; or replicas without the measuring wrapper.
    """
    _check_indices(submission.indices)
    if submission.policy.copies > 1 and not submission.policy.measured:
        raise InvalidInput("replicas of a job need the measuring wrapper, which starts only one of them")
    with open_journal() as journal:
        after = tuple(job.key for name in submission.after for job in _dependencies(journal, name))
        group = _key() if submission.indices else None
        first = Job(
            _key(),
            submission.spec,
            submission.policy,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            group=group,
            after=after,
            after_kind=submission.after_kind,
            predicted=submission.predicted,
            parameters=submission.parameters or {},
            tags=submission.tags or {},
        )
        jobs = [replace(first, key=_key(), index=index) for index in submission.indices] or [first]
        journal.add(jobs)
        return tuple(jobs)


def parse_array_indices(text: str) -> tuple[int, ...]:
    """Read the elements of an array as Slurm writes them: ``0-99``, ``1,5,7``, ``0-100:10``.

    Raises:
        InvalidInput: the text has another form.
    """
    indices: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?::(\d+))?)?\s*", part)
        if match is None or (match[3] is not None and int(match[3]) == 0):
            raise InvalidInput(f"{text!r} is not a list of array indices: write 0-99, 1,5,7 or 0-100:10")
        last = int(match[2] or match[1])
        if last - int(match[1]) > MAX_ARRAY_ELEMENTS:
            raise InvalidInput(f"{text!r} has more than {MAX_ARRAY_ELEMENTS} elements: submit smaller arrays")
        indices += range(int(match[1]), last + 1, int(match[3] or 1))
    _check_indices(tuple(indices))
    return tuple(indices)


def find_jobs(names: Sequence[str] = (), *, all_jobs: bool = False, limit: int | None = None) -> tuple[Job, ...]:
    """Return the named jobs in that order; without names, the active jobs or the last ``limit`` jobs, newest first.

    The finished elements of an active array are included.

    Raises:
        UnknownName: there is no such job.
    """
    if not (plane_dir() / "journal.sqlite").exists():
        if names:
            raise UnknownName("job", names[0], [], fix="no job has been submitted yet")
        return ()
    with open_journal() as journal:
        if names:
            return _named(journal, names)
        if all_jobs:
            return journal.newest_jobs(limit)
        at_work = [job for job in reversed(journal.open_jobs()) if not job.closed]
        arrays = dict.fromkeys(job.group for job in at_work if job.group)
        ended = [each for group in arrays for each in journal.array_elements(group) if each.closed]
        return (*at_work, *ended)


def cancel_jobs(names: Sequence[str]) -> tuple[Job, ...]:
    """Request the cancellation of jobs or whole arrays; return those that had not ended.

    Raises:
        UnknownName: there is no such job; nothing was cancelled.
    """
    with open_journal() as journal:
        active = [job for job in _named(journal, names) if not job.closed]
        journal.cancel([job.key for job in active])
        return tuple(active)


def job_events(name: str) -> tuple[Job, tuple[JournalEvent, ...]]:
    """Return a job and its events in order.

    Raises:
        UnknownName: there is no such job.
    """
    with open_journal() as journal:
        job = journal.get(name)
        return job, journal.events(job=job.key)


def retraining_events(limit: int = 3) -> tuple[JournalEvent, ...]:
    """Return the last retraining events, the oldest first."""
    if not (plane_dir() / "journal.sqlite").exists():
        return ()
    with open_journal() as journal:
        return journal.events(kinds=[EventKind.LEARNED], limit=limit)


def _named(journal: PlaneJournal, names: Sequence[str]) -> tuple[Job, ...]:
    """Return the jobs with these names, each once; whole keys, perhaps thousands, are read in one query."""
    exact = {job.key: job for job in journal.jobs_by_key(names)}
    matches = [job for name in names for job in ((exact[name],) if name in exact else journal.find_jobs(name))]
    return tuple({job.key: job for job in matches}.values())


def _dependencies(journal: PlaneJournal, name: str) -> tuple[Job, ...]:
    """Return the job, or the elements of the array, to wait for; refuse a name shared by several jobs."""
    matches = journal.find_jobs(name)
    keys_or_groups = list(dict.fromkeys(job.group or job.key for job in matches))
    if len(keys_or_groups) > 1:
        keys = ", ".join(keys_or_groups[-3:])
        raise InvalidInput(f"{len(matches)} jobs are called {name!r}: choose one by its key, such as {keys}")
    return matches


def _check_indices(indices: tuple[int, ...]) -> None:
    if len(indices) > MAX_ARRAY_ELEMENTS:
        raise InvalidInput(f"an array of {len(indices)} elements is too large: the limit is {MAX_ARRAY_ELEMENTS}")
    if len(set(indices)) != len(indices):
        raise InvalidInput("an array index is given twice")


def _key() -> str:
    return uuid.uuid4().hex[:12]
