"""The verbs of the plane's journal: hand jobs over, list them, take them back, and tell what was decided of them."""

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
    """What a user hands over: one job, or an array of one element for each of ``indices``.

    ``after`` names jobs of the plane that must have ended as ``after_kind`` says before it is submitted.
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
    """Return the folder of the plane: its journal, its lock, and the files of the jobs of this machine."""
    return settings.data_dir() / "plane"


def open_journal() -> PlaneJournal:
    """Open the plane's journal, made if it is not there."""
    settings.require_writable(plane_dir())
    return PlaneJournal(plane_dir() / "journal.sqlite")


def submit_jobs(wanted: JobSubmission) -> tuple[Job, ...]:
    """Write jobs into the journal, all or none; whoever runs the plane submits them.

    Raises:
        UnknownName: a job that it waits for is not there.
        InvalidInput: the array has no elements, too many, or one twice; or copies could not be held back.
    """
    _check_indices(wanted.indices)
    if wanted.policy.copies > 1 and not wanted.policy.measured:
        raise InvalidInput("copies of a job need the measuring wrapper, which lets one of them begin: measure it")
    with open_journal() as journal:
        after = tuple(one.key for name in wanted.after for one in _before(journal, name))
        group = _key() if wanted.indices else None
        first = Job(
            _key(),
            wanted.spec,
            wanted.policy,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            group=group,
            after=after,
            after_kind=wanted.after_kind,
            predicted=wanted.predicted,
            parameters=wanted.parameters or {},
            tags=wanted.tags or {},
        )
        jobs = [replace(first, key=_key(), index=index) for index in wanted.indices] or [first]
        journal.add(jobs)
        return tuple(jobs)


def parse_array_indices(text: str) -> tuple[int, ...]:
    """Read the elements of an array as Slurm writes them: ``0-99``, ``1,5,7``, ``0-100:10``.

    Raises:
        InvalidInput: it is not of that form.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?::(\d+))?)?\s*", part)
        if match is None or (match[3] is not None and int(match[3]) == 0):
            raise InvalidInput(f"{text!r} names no elements of an array: write 0-99, 1,5,7 or 0-100:10")
        last = int(match[2] or match[1])
        if last - int(match[1]) > MAX_ARRAY_ELEMENTS:
            raise InvalidInput(f"{text!r} names more than {MAX_ARRAY_ELEMENTS} elements: hand over smaller arrays")
        found += range(int(match[1]), last + 1, int(match[3] or 1))
    _check_indices(tuple(found))
    return tuple(found)


def find_jobs(names: Sequence[str] = (), *, all_jobs: bool = False, limit: int | None = None) -> tuple[Job, ...]:
    """Return the jobs that are named, in that order; without names those at work, or the last ``limit``, newest first.

    Of an array that is at work the elements that ended are among them.

    Raises:
        UnknownName: there is no such job.
    """
    if not (plane_dir() / "journal.sqlite").exists():
        if names:
            raise UnknownName("job", names[0], [], fix="no job was handed over yet")
        return ()
    with open_journal() as journal:
        if names:
            return _named(journal, names)
        if all_jobs:
            return journal.newest_jobs(limit)
        at_work = [one for one in reversed(journal.open_jobs()) if not one.closed]
        arrays = dict.fromkeys(one.group for one in at_work if one.group)
        ended = [each for group in arrays for each in journal.array_elements(group) if each.closed]
        return (*at_work, *ended)


def cancel_jobs(names: Sequence[str]) -> tuple[Job, ...]:
    """Note that jobs, or whole arrays, are to be cancelled; return those that had not ended.

    Raises:
        UnknownName: there is no such job; nothing was noted.
    """
    with open_journal() as journal:
        going_on = [one for one in _named(journal, names) if not one.closed]
        journal.cancel([one.key for one in going_on])
        return tuple(going_on)


def job_events(name: str) -> tuple[Job, tuple[JournalEvent, ...]]:
    """Return a job and all that happened to it, in order.

    Raises:
        UnknownName: there is no such job.
    """
    with open_journal() as journal:
        job = journal.get(name)
        return job, journal.events(job=job.key)


def retraining_events(limit: int = 3) -> tuple[JournalEvent, ...]:
    """Return the last events of what was learned of finished jobs, the oldest first."""
    if not (plane_dir() / "journal.sqlite").exists():
        return ()
    with open_journal() as journal:
        return journal.events(kinds=[EventKind.LEARNED], limit=limit)


def _named(journal: PlaneJournal, names: Sequence[str]) -> tuple[Job, ...]:
    """Return the jobs that names mean, each once; whole keys, perhaps thousands, are asked for at once."""
    exact = {one.key: one for one in journal.jobs_by_key(names)}
    found = [one for name in names for one in ((exact[name],) if name in exact else journal.find_jobs(name))]
    return tuple({one.key: one for one in found}.values())


def _before(journal: PlaneJournal, name: str) -> tuple[Job, ...]:
    """Return the job, or the elements of the array, that is waited for; not all that were ever called so."""
    found = journal.find_jobs(name)
    apart = list(dict.fromkeys(one.group or one.key for one in found))
    if len(apart) > 1:
        keys = ", ".join(apart[-3:])
        raise InvalidInput(
            f"{len(found)} jobs are called {name!r}: name the one to wait for by its key, such as {keys}"
        )
    return found


def _check_indices(indices: tuple[int, ...]) -> None:
    if len(indices) > MAX_ARRAY_ELEMENTS:
        raise InvalidInput(f"an array of {len(indices)} elements is too large: {MAX_ARRAY_ELEMENTS} are taken at once")
    if len(set(indices)) != len(indices):
        raise InvalidInput("an element of the array is named twice: name each once")


def _key() -> str:
    return uuid.uuid4().hex[:12]
