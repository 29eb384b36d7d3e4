"""The plane's journal: submit jobs, list them, cancel them, and read their events."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from leadline.app import settings
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Estimate
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import DependencyKind, EventKind, Job, JournalEvent, Policy
from leadline.execution.plane.journal import PlaneJournal, hash_key, journal_origin
from leadline.files.private import make_private_folder

if TYPE_CHECKING:
    from leadline.app.jobs.schedulers import JobTarget

MAX_ARRAY_ELEMENTS = 100_000
EXAMPLES = 3
"""Number of array elements that are suggested where one is needed."""


class JobSubmission(Frozen):
    """A resolved request: one job, or an array with one element per index."""

    spec: JobSpec  # the job at its first target
    policy: Policy
    indices: tuple[int, ...] = ()  # of the array elements
    after: tuple[str, ...] = ()  # names of jobs of the plane that must end as `after_kind` says before this one starts
    after_kind: DependencyKind = DependencyKind.OK
    predicted: Estimate | None = None  # the estimate at the first target
    tags: dict[str, str] = field(default_factory=dict)  # tags of its runs
    targets: "tuple[JobTarget, ...]" = ()  # the resolved targets of the policy, for a dry run
    notes: tuple[str, ...] = ()  # a sentence for each inferred resource


def plane_dir() -> Path:
    """Return the folder of the plane: its journal, its lock, and the files of this machine's jobs."""
    return settings.data_dir() / "plane"


def plane_lock() -> Path:
    """Return the lock file of the process that runs the plane."""
    return plane_dir() / "lock"


def journal_path() -> Path:
    """Return the file of the plane's journal."""
    return plane_dir() / "journal.sqlite"


_journal: ContextVar[PlaneJournal | None] = ContextVar("journal", default=None)


@contextmanager
def open_journal() -> Iterator[PlaneJournal]:
    """Open the plane's journal, created if missing; every call within this context gets the same one."""
    # Each opening locks and checks the file, which costs more than what most verbs read.
    if (opened := _journal.get()) is not None:
        yield opened
        return
    # An existing journal can be read even where it cannot be written.
    if not journal_path().exists():
        settings.require_writable(plane_dir())
    with PlaneJournal(journal_path()) as journal:
        token = _journal.set(journal)
        try:
            yield journal
        finally:
            _journal.reset(token)


@contextmanager
def keep_journal_open() -> Iterator[None]:
    """Open the journal once for all calls within this context, unless there is none yet."""
    with open_journal() if journal_path().exists() else nullcontext():
        yield


def used_systems() -> tuple[str, ...]:
    """Return the systems that left traces in the plane's folder, in lower case, whatever happened to the journal."""
    folders = (plane_dir() / "systems").glob("*/")
    local = ["local"] if (plane_dir() / "local" / "jobs.sqlite").exists() else []
    return (*local, *sorted(folder.name for folder in folders))


def note_use(system: str) -> None:
    """Leave a trace of a system, to look for its jobs if the journal is lost."""
    make_private_folder(plane_dir() / "systems" / system.casefold())


def is_journal_lost() -> bool:
    """Return whether there are traces of systems, but no job in a journal."""
    if not used_systems():
        return False
    if not journal_path().exists():
        return True
    with open_journal() as journal:
        return not journal.newest_jobs(1)


def submit_jobs(submission: JobSubmission) -> tuple[Job, ...]:
    """Write jobs to the journal, all or none; the plane submits them.

    Raises:
        UnknownName: a job that it depends on does not exist.
        InvalidInput: the array is empty, too large, or has an index twice; or replicas without the measuring wrapper.
    """
    check_indices(submission.indices)
    if submission.policy.copies > 1 and not submission.policy.measured:
        raise InvalidInput("replicas of a job need the measuring wrapper, which starts only one of them")
    with open_journal() as journal:
        after = tuple(job.key for name in submission.after for job in _dependencies(journal, name))
        return journal.add_after_last(lambda last: build_jobs(submission, last, after))


def next_jobs(submission: JobSubmission) -> tuple[Job, ...]:
    """Return the jobs that ``submit_jobs`` would write now, for a dry run; nothing is written."""
    if not journal_path().exists():
        return build_jobs(submission, journal_origin(journal_path()))
    with open_journal() as journal:
        return build_jobs(submission, journal.last_key())


def build_jobs(submission: JobSubmission, last: str, after: tuple[str, ...] = ()) -> tuple[Job, ...]:
    """Return the jobs of a submission that follows the job with the key ``last``.

    The keys follow from that key and the job, so a dry run knows them.
    """
    key = hash_key(last, to_json(submission.spec, indent=0), repr(submission.indices))
    first = Job(
        key,
        submission.spec,
        submission.policy,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        group=hash_key(key, "array") if submission.indices else None,
        after=after,
        after_kind=submission.after_kind,
        predicted=submission.predicted,
        tags=submission.tags,
    )
    elements = (replace(first, key=hash_key(key, str(index)), index=index) for index in submission.indices)
    return tuple(elements) or (first,)


def find_jobs(names: Sequence[str] = (), *, all_jobs: bool = False, limit: int | None = None) -> tuple[Job, ...]:
    """Return the named jobs in that order; without names, the active jobs or all jobs, newest first, at most ``limit``.

    The finished elements of an active array are included.

    Raises:
        UnknownName: there is no such job.
    """
    if not journal_path().exists():
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
        return (*at_work, *ended)[:limit]


def find_job(name: str) -> Job:
    """Return the job of a name; if several jobs share the name, the newest.

    Raises:
        UnknownName: there is no such job.
        InvalidInput: the name is that of an array.
    """
    jobs = find_jobs([name])
    if len(jobs) > 1 and jobs[0].group is not None and {job.group for job in jobs} == {jobs[0].group}:
        failed = [job for job in jobs if job.closed and job.state is not JobState.COMPLETED]
        examples = ", ".join(f"{jobs[0].group}_{job.index}" for job in (failed or jobs)[:EXAMPLES])
        which = f"for example of the {len(failed)} that did not complete, " if failed else ""
        raise InvalidInput(f"{name} is an array of {len(jobs)} jobs: choose one, {which}such as {examples}")
    return jobs[-1]


def cancel_jobs(names: Sequence[str]) -> tuple[Job, ...]:
    """Request the cancellation of jobs or whole arrays; return those that had not ended.

    Raises:
        UnknownName: there is no such job; nothing was cancelled.
    """
    with open_journal() as journal:
        active = [job for job in _named(journal, names) if not job.closed]
        journal.cancel([job.key for job in active])
        return tuple(active)


def approve_jobs(names: Sequence[str]) -> tuple[Job, ...]:
    """Let a prediction restart jobs or whole arrays, as ``--may-restart`` does; return those that had not ended.

    Raises:
        UnknownName: there is no such job; nothing was approved.
        InvalidInput: the request of a job may not be changed, so it is never restarted with another.
    """
    with open_journal() as journal:
        active = [job for job in _named(journal, names) if not job.closed]
        for job in active:
            if not job.policy.resizes:
                raise InvalidInput(
                    f"job {job.key} was submitted with --no-resize, so a prediction cannot restart it with another "
                    "request: submit it again without"
                )
        journal.approve([job.key for job in active])
        return tuple(active)


def retraining_events() -> tuple[JournalEvent, ...]:
    """Return the last three retraining events, the oldest first."""
    if not journal_path().exists():
        return ()
    with open_journal() as journal:
        return journal.events(kinds=[EventKind.LEARNED], limit=3)


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


def check_indices(indices: tuple[int, ...]) -> None:
    """Raise ``InvalidInput`` if an array is too large, or has an index twice."""
    if len(indices) > MAX_ARRAY_ELEMENTS:
        raise InvalidInput(f"an array of {len(indices)} elements is too large: the limit is {MAX_ARRAY_ELEMENTS}")
    if len(set(indices)) != len(indices):
        raise InvalidInput("an array index is given twice")
