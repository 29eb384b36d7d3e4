"""Store every job of the plane, its attempts and events in one SQLite file.

The events are also the feed between processes. Every change of a job adds an event, so that others read only changes.
"""

import hashlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from sqlite3 import Connection
from typing import ClassVar

import msgspec

from leadline.core.documents import to_json
from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, AttemptPlan, EventKind, Job, JournalEvent
from leadline.execution.clock import Clock, epoch_s, iso_utc
from leadline.execution.plane.journal_content import check_value
from leadline.files.sqlite import SqliteFile, chunks, marks

VERSION = 1
"""Version of the tables, stored in the file's ``user_version``."""
APPLICATION_ID = 0x4C50_4C4E
"""``LPLN`` in the file header, so that other databases are never written."""

TABLES = (Path(__file__).with_name("journal.sql"),)
_COLUMNS = "key, state, cancelled, recorded, reason, plan, document"
_EVENT_COLUMNS = "at, kind, job, attempt, said"

EventDetails = Mapping[str, float | int | str | bool | None]
_DETAILS = dict[str, float | int | str | bool | None]


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be written."""

    kind: EventKind
    job: str = ""
    attempt: str = ""
    details: EventDetails = field(default_factory=dict)


def attempt_event(kind: EventKind, attempt: Attempt, details: EventDetails) -> NewEvent:
    """Return an event about an attempt."""
    return NewEvent(kind, attempt.job, attempt.key, details)


def failure_count(event: JournalEvent) -> int:
    """Return how often what an event reports has failed."""
    times = event.details.get("times")
    return times if isinstance(times, int) else 1


def hash_key(*parts: str) -> str:
    """Return the key, 12 hexadecimal digits, that follows from these texts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def journal_origin(path: Path) -> str:
    """Return a text in place of the last key of a journal without jobs."""
    # A user who deletes the journal must get new keys, because outcomes under the old ones remain at the systems. So
    # the text holds the age of the file, or of the first folder above it that exists.
    while not path.exists():
        path = path.parent
    status = path.stat()
    return f"{socket.gethostname()} {path} {status.st_ino} {status.st_mtime_ns}"


class PlaneJournal(SqliteFile):
    """The journal in the file ``path``, created if missing; a context manager that closes it."""

    tables: ClassVar[tuple[Path, ...]] = TABLES
    application_id: ClassVar[int] = APPLICATION_ID

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        # Opening the file changes it and its folder.
        self._origin = journal_origin(path)
        super().__init__(path, tables=self.tables, application_id=self.application_id, version=VERSION)

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs in one transaction; existing keys stay unchanged."""
        with self.transaction() as connection:
            self._insert_jobs(connection, jobs)

    def add_after_last(self, jobs_after: Callable[[str], Sequence[Job]]) -> tuple[Job, ...]:
        """Add the jobs that ``jobs_after`` returns for the key of the last job, and return them."""
        # One transaction: two processes that submit at once must not see the same last job.
        with self.transaction() as connection:
            jobs = tuple(jobs_after(self.last_key()))
            self._insert_jobs(connection, jobs)
        return jobs

    def last_key(self) -> str:
        """Return the key of the last submitted job, or the origin of a journal without jobs."""
        rows = self.read("SELECT key FROM job ORDER BY position DESC LIMIT 1")
        return str(rows[0][0]) if rows else self._origin

    def write(
        self, *, jobs: Iterable[Job] = (), attempts: Iterable[Attempt] = (), events: Iterable[NewEvent] = ()
    ) -> None:
        """Write changed jobs and attempts, and the events about them, in one transaction.

        Of a job, only state, reason, plan and ``recorded`` are written. ``cancelled`` belongs to the user.
        """
        with self.transaction() as connection:
            self._write(connection, jobs, attempts, events)

    def _write(
        self, connection: Connection, jobs: Iterable[Job], attempts: Iterable[Attempt], events: Iterable[NewEvent]
    ) -> None:
        for job in jobs:
            connection.execute(
                "UPDATE job SET state = ?, reason = ?, plan = ?, recorded = ? WHERE key = ?",
                (job.state.value, job.reason, _plan(job), int(job.recorded), job.key),
            )
        for attempt in attempts:
            connection.execute(
                "INSERT INTO attempt (key, job, number, document) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET document = excluded.document",
                (attempt.key, attempt.job, attempt.number, to_json(attempt, indent=0)),
            )
        self._insert_events(connection, events)

    def restore(self, jobs: Iterable[Job], events: Iterable[NewEvent]) -> None:
        """Add jobs with their state and attempts, and events about them; existing jobs stay unchanged."""
        jobs = list(jobs)
        with self.transaction() as connection:
            stored = {key for (key,) in connection.execute("SELECT key FROM job")}
            missing = [job for job in jobs if job.key not in stored]
            self._insert_jobs(connection, missing)
            self._write(connection, missing, [attempt for job in missing for attempt in job.attempts], events)
            cancelled = [(job.key,) for job in missing if job.cancelled]
            connection.executemany("UPDATE job SET cancelled = 1 WHERE key = ?", cancelled)

    def unknown_attempts(self, keys: Iterable[str]) -> set[str]:
        """Return those of the keys that no attempt has."""
        unknown = set(keys)
        for chunk in chunks(sorted(unknown)):
            unknown -= {key for (key,) in self.read(f"SELECT key FROM attempt WHERE key IN ({marks(chunk)})", *chunk)}  # noqa: S608 - question marks
        return unknown

    def searched_systems(self) -> set[str]:
        """Return the systems where living jobs of a lost journal were looked for."""
        query = (
            "SELECT DISTINCT json_extract(said, '$.system') FROM event WHERE job = '' AND kind = ? "
            "AND json_extract(said, '$.found_again') IS NOT NULL"
        )
        return {str(system) for (system,) in self.read(query, EventKind.POLL)}

    def put_event(self, number: int | None, event: NewEvent) -> int:
        """Replace the details of an event, or add one without a number; return its number."""
        with self.transaction() as connection:
            if number is not None:
                details = to_json(dict(event.details), indent=0)
                connection.execute("UPDATE event SET said = ? WHERE number = ?", (details, number))
                return number
            self._insert_events(connection, [event])
            (new,) = connection.execute("SELECT max(number) FROM event").fetchone()
            return int(new)

    def cancel(self, keys: Collection[str]) -> None:
        """Store that the user cancels jobs; the process that runs the plane carries it out."""
        with self.transaction() as connection:
            for key in keys:
                connection.execute("UPDATE job SET cancelled = 1 WHERE key = ?", (key,))
            self._insert_events(connection, [NewEvent(EventKind.CANCEL, key) for key in keys])

    def approve(self, keys: Collection[str]) -> None:
        """Store that a prediction may restart these jobs, as ``may_restart`` in their policy."""
        query = "UPDATE job SET document = json_set(document, '$.policy.may_restart', json('true')) WHERE key = ?"
        with self.transaction() as connection:
            connection.executemany(query, [(key,) for key in keys])
            self._insert_events(connection, [NewEvent(EventKind.APPROVE, key) for key in keys])

    def open_jobs(self) -> tuple[Job, ...]:
        """Return the jobs that still need work, in the order of submission."""
        return self._jobs("WHERE recorded = 0", ())

    def newest_jobs(self, limit: int | None = None) -> tuple[Job, ...]:
        """Return the last submitted jobs, newest first."""
        return self._jobs("", (), order="DESC", most=-1 if limit is None else limit)

    def jobs_by_key(self, keys: Iterable[str]) -> tuple[Job, ...]:
        """Return the existing jobs of these keys."""
        return tuple(job for chunk in chunks(keys) for job in self._jobs(f"WHERE key IN ({marks(chunk)})", chunk))

    def get(self, name: str) -> Job:
        """Return the job with that key, with a key that starts so, or with that id at a scheduler.

        Raises:
            UnknownName: no job or several jobs match.
        """
        rows = self.read("SELECT key FROM job WHERE substr(key, 1, length(?1)) = ?1", name) if name else []
        keys = [key for (key,) in rows if key == name] or [key for (key,) in rows]
        if not keys:
            query = "SELECT job FROM attempt WHERE json_extract(document, '$.scheduler_id') = ? ORDER BY rowid DESC"
            # A restarted controller may reuse ids, so the newest attempt counts.
            keys = [key for (key,) in self.read(query, name)[:1]]
        if len(keys) == 1:
            return self.jobs_by_key(keys)[0]
        suggestions = keys or [key for (key,) in self.read("SELECT key FROM job ORDER BY position DESC LIMIT 50")]
        raise UnknownName("job", name, suggestions, fix="no job was submitted yet" if not suggestions else "")

    def array_elements(self, name: str) -> tuple[Job, ...]:
        """Return the elements of an array."""
        return self._jobs("WHERE json_extract(document, '$.group') = ?", (name,))

    def find_jobs(self, name: str) -> tuple[Job, ...]:
        """Return the jobs that a user may mean by ``name``, in the order of submission.

        The candidates are, in this order: the job with that key, all jobs with that name, the array with that name or
        unique prefix, its element as ``ARRAY_7``, and the result of ``get``.

        Raises:
            UnknownName: no job or several jobs match.
        """
        if jobs := self.jobs_by_key([name]) or self._jobs("WHERE json_extract(document, '$.spec.name') = ?", (name,)):
            return jobs
        array, _, index = name.partition("_")
        condition = "substr(json_extract(document, '$.group'), 1, length(?1)) = ?1"
        query = f"SELECT DISTINCT json_extract(document, '$.group') FROM job WHERE {condition}"  # noqa: S608 - constants
        groups = [group for (group,) in self.read(query, array)] if array else []
        if len(groups) != 1 or (index and not index.isdecimal()):
            return (self.get(name),)
        elements = self.array_elements(groups[0])
        return tuple(element for element in elements if str(element.index) == index) if index else elements

    def latest_events(self, kind: EventKind, jobs: Iterable[str]) -> dict[str, JournalEvent]:
        """Return the newest event of one kind for each of these jobs that has one."""
        newest = {}
        for chunk in chunks(jobs):
            condition = f"job IN ({marks(chunk)}) AND kind = ? GROUP BY job"
            newest.update({event.job: event for event in self._events(condition, *chunk, kind, column="max(number)")})
        return newest

    def outage_events(self) -> tuple[JournalEvent, ...]:
        """Return the events about systems that stopped or resumed answering, in their order."""
        is_answer = "kind = ? AND json_extract(said, '$.answers') IS NOT NULL"
        condition = f"job = '' AND (kind = ? OR ({is_answer})) ORDER BY number"
        return self._events(condition, EventKind.FAULT, EventKind.POLL)

    def open_outages(self) -> dict[str, JournalEvent]:
        """Return system -> the event about its outage, for the systems that have not answered since."""
        outages: dict[str, JournalEvent] = {}
        for event in self.outage_events():
            system = str(event.details.get("system"))
            if event.kind is EventKind.POLL:
                outages.pop(system, None)
            elif "next_at" in event.details:  # other faults of a system, such as hidden jobs, are no outage
                outages[system] = event
        return outages

    def last_event(self) -> int:
        """Return the number of the newest event; 0 if there is none."""
        ((number,),) = self.read("SELECT coalesce(max(number), 0) FROM event")
        return int(number)

    def user_requests(self, since: int) -> tuple[int, tuple[str, ...]]:
        """Return the number of the newest event, and the jobs with user requests after ``since``."""
        newest = self.last_event()
        if newest <= since:
            return newest, ()
        query = "SELECT DISTINCT job FROM event WHERE number > ? AND number <= ? AND kind IN (?, ?, ?)"
        rows = self.read(query, since, newest, EventKind.HANDED_OVER, EventKind.CANCEL, EventKind.APPROVE)
        return newest, tuple(job for (job,) in rows)

    def events(
        self, *, job: str | None = None, kinds: Collection[EventKind] = (), since: int = 0, limit: int = -1
    ) -> tuple[JournalEvent, ...]:
        """Return events in their order, filtered by job and kind; at most the last ``limit``."""
        conditions, values = ["number > ?"], [since, *([job] if job is not None else []), *kinds]
        if job is not None:
            conditions.append("job = ?")
        if kinds:
            conditions.append(f"kind IN ({marks([*kinds])})")
        return self._events(f"{' AND '.join(conditions)} ORDER BY number DESC LIMIT ?", *values, limit)[::-1]

    def _insert_jobs(self, connection: Connection, jobs: Iterable[Job]) -> None:
        (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
        for position, job in enumerate(jobs, last + 1):
            # The parts that change are in columns and attempt rows.
            document = to_json(replace(job, attempts=(), plan=None), indent=0)
            cursor = connection.execute(
                "INSERT OR IGNORE INTO job (key, position, state, reason, plan, document) VALUES (?, ?, ?, ?, ?, ?)",
                (job.key, position, job.state.value, job.reason, _plan(job), document),
            )
            if cursor.rowcount:
                self._insert_events(connection, [NewEvent(EventKind.HANDED_OVER, job.key)])

    def _insert_events(self, connection: Connection, events: Iterable[NewEvent]) -> None:
        at = iso_utc(self._clock.now_s())
        rows = [
            (at, event.kind.value, event.job, event.attempt, to_json(dict(event.details), indent=0)) for event in events
        ]
        connection.executemany(f"INSERT INTO event ({_EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?)", rows)  # noqa: S608 - constants

    def _jobs(self, where: str, values: Collection[str], *, order: str = "ASC", most: int = -1) -> tuple[Job, ...]:
        query = f"SELECT {_COLUMNS} FROM job {where} ORDER BY position {order} LIMIT ?"  # noqa: S608 - constants
        rows = self.read(query, *values, most)
        attempts = self._attempts([row[0] for row in rows])
        return tuple(self._job(row, attempts.get(row[0], ())) for row in rows)

    def _attempts(self, keys: list[str]) -> dict[str, tuple[Attempt, ...]]:
        attempts: dict[str, tuple[Attempt, ...]] = {}
        for chunk in chunks(keys):
            query = f"SELECT document FROM attempt WHERE job IN ({marks(chunk)}) ORDER BY number, rowid"  # noqa: S608 - marks
            for (document,) in self.read(query, *chunk):
                with self._content("an attempt"):
                    attempt = msgspec.json.decode(document, type=Attempt)
                    check_value("attempt", attempt)
                attempts[attempt.job] = (*attempts.get(attempt.job, ()), attempt)
        return attempts

    def _job(self, row: tuple[object, ...], attempts: tuple[Attempt, ...]) -> Job:
        key, state, cancelled, recorded, reason, plan, document = row
        with self._content(f"job {key}"):
            job = replace(
                msgspec.json.decode(str(document), type=Job),
                state=JobState(str(state)),
                attempts=attempts,
                reason=str(reason),
                plan=None if plan is None else msgspec.json.decode(str(plan), type=AttemptPlan),
                cancelled=bool(cancelled),
                recorded=bool(recorded),
            )
            check_value("job", job)
            return job

    def _events(self, condition: str, *values: object, column: str = "number") -> tuple[JournalEvent, ...]:
        events = []
        query = f"SELECT {column}, {_EVENT_COLUMNS} FROM event WHERE {condition}"  # noqa: S608 - constants and marks
        for number, at, kind, job, attempt, details in self.read(query, *values):
            with self._content(f"event {number}"):
                epoch_s(str(at))
                decoded = msgspec.json.decode(str(details), type=_DETAILS)
                for name, value in decoded.items():
                    check_value(name, value)
                events.append(
                    JournalEvent(int(str(number)), str(at), EventKind(str(kind)), str(job), str(attempt), decoded)
                )
        return tuple(events)

    @contextmanager
    def _content(self, name: str) -> Iterator[None]:
        """Convert the errors of content that cannot be right."""
        try:
            yield
        except (ValueError, OverflowError, RecursionError, LeadlineError) as error:
            raise self.damaged(f"{name}: {error}") from error


def _plan(job: Job) -> str | None:
    return None if job.plan is None else to_json(job.plan, indent=0)
