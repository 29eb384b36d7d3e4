"""Keep what was handed to this machine's own scheduler: submissions, and the jobs that each of them made."""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.schedulers.job_queue import COLUMNS, INSERT, TABLES, QueueEntry, QueueJournal
from leadline.execution.schedulers.port import RequestRefused, Submission
from leadline.execution.wrapper.outcome import JobOutcome

APPLICATION_ID = 0x4C53_4348
"""``LSCH`` in the file's header."""
_MORE = """
CREATE TABLE submission (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    document TEXT NOT NULL,
    environment TEXT NOT NULL,
    made_at REAL NOT NULL,
    held INTEGER NOT NULL
) STRICT;
CREATE TABLE element (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    submission INTEGER NOT NULL
) STRICT;
CREATE INDEX element_of ON element (submission);
CREATE INDEX job_in ON job (state, position);
"""
_AT_ONCE = 500
"""Values in one query."""

T = TypeVar("T")


class JobWithdrawn(LeadlineError):
    """A job that was to be started has been cancelled."""


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A submission that was taken under ``id``; ``made_s`` is when (epoch), ``environment`` that of who submitted."""

    id: int
    submission: Submission
    environment: dict[str, str]
    made_s: float


class LocalSubmissions(QueueJournal):
    """The journal of a scheduler; a job's note is its id there, ``ID`` or of an array's element ``ID_INDEX``."""

    tables = TABLES + _MORE
    application_id = APPLICATION_ID

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.taken = lru_cache(4096)(self._taken)
        path.chmod(0o600)  # it holds environments

    def take(self, submission: Submission, environment: Mapping[str, str], *, now_s: float) -> str:
        """Note a submission and its jobs, all or nothing, and return its id; that of one whose key is there already.

        Raises:
            Refused: a job has the key of another submission's.
        """
        spec = to_json(submission.spec, indent=0)
        with self.transaction() as connection:
            known = connection.execute("SELECT id FROM submission WHERE key = ?", (submission.key,)).fetchone()
            if known is not None:
                return str(known[0])
            self._refuse_known(connection, submission.keys)
            number = connection.execute(
                "INSERT INTO submission (key, document, environment, made_at, held) VALUES (?, ?, ?, ?, ?)",
                (submission.key, to_json(submission, indent=0), json.dumps(dict(environment)), now_s,
                 int(bool(submission.after))),
            ).lastrowid  # fmt: skip
            ids = [f"{number}_{index}" for index in submission.indices] or [str(number)]
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
            jobs = list(zip(submission.keys, ids, strict=True))
            connection.executemany(INSERT, [(key, last + at, spec, one) for at, (key, one) in enumerate(jobs, 1)])
            connection.executemany("INSERT INTO element VALUES (?, ?, ?)", [(one, key, number) for key, one in jobs])
        return str(number)

    def begin(self, key: str, *, host: str | None = None, place: str | None = None) -> QueueEntry:
        """Note that a waiting job is about to be started.

        Raises:
            Withdrawn: it waits no longer.
        """
        with self.transaction() as connection:
            held = connection.execute("UPDATE job SET recorded = 0 WHERE key = ? AND state = 'PENDING'", (key,))
            if not held.rowcount:
                raise JobWithdrawn(f"job {key} waits no longer")
            self.note_begin(connection, key, host=host, place=place)
        return self.get(key)

    def ids(self, keys: Collection[str]) -> dict[str, str]:
        """Return key → id of the submissions that are known."""
        return {
            key: str(number)
            for chunk in _chunks(keys)
            for key, number in self.read(f"SELECT key, id FROM submission WHERE key IN ({_marks(chunk)})", *chunk)  # noqa: S608 - question marks
        }

    def at(self, ids: Collection[str]) -> dict[str, QueueEntry]:
        """Return id → job; an array's own id stands for all its elements."""
        found: dict[str, QueueEntry] = {}
        for chunk in _chunks(ids):
            marks = _marks(chunk)
            where = f"key IN (SELECT key FROM element WHERE id IN ({marks}) OR submission IN ({marks}))"  # noqa: S608 - question marks
            whole = [int(one) if one.isdigit() else -1 for one in chunk]
            found.update({entry.note: entry for entry in self._where(where, *chunk, *whole)})
        return found

    def keyed(self, keys: Collection[str]) -> Iterator[QueueEntry]:
        """Yield the jobs of these keys."""
        for chunk in _chunks(keys):
            yield from self._where(f"key IN ({_marks(chunk)})", *chunk)

    def states(self, scheduler_id: str) -> dict[JobState, int]:
        """Return how many jobs of an id are in which state; empty if nobody knows the id."""
        rows = self.read(
            "SELECT state, count(*) FROM job JOIN element USING (key) WHERE element.id = ?1 OR "
            "element.submission = CASE WHEN ?1 GLOB '*[^0-9]*' THEN -1 ELSE CAST(?1 AS INTEGER) END GROUP BY state",
            scheduler_id,
        )
        return {JobState(state): count for state, count in rows}

    def held(self) -> list[int]:
        """Return the submissions that wait for others to end."""
        return [number for (number,) in self.read("SELECT id FROM submission WHERE held ORDER BY id")]

    def release(self, number: int) -> None:
        """Let a submission's jobs wait for room only."""
        with self.transaction() as connection:
            connection.execute("UPDATE submission SET held = 0 WHERE id = ?", (number,))

    def waiting(self) -> list[tuple[int, int, int]]:
        """Return (submission, how many of its jobs wait, how many run) in their order, of those not held."""
        return self.read(
            "SELECT submission, sum(state = 'PENDING') AS wait, sum(state = 'RUNNING') FROM job JOIN element USING "
            "(key) JOIN submission ON submission.id = element.submission WHERE state IN ('PENDING', 'RUNNING') AND "
            "NOT held GROUP BY submission HAVING wait ORDER BY submission"
        )

    def waiting_of(self, number: int, most: int) -> tuple[QueueEntry, ...]:
        """Return the first waiting jobs of a submission."""
        where = "state = 'PENDING' AND key IN (SELECT key FROM element WHERE submission = ?) ORDER BY position LIMIT ?"
        return self._where(where, number, most)

    def settle_waiting(self, key: str, outcome: JobOutcome) -> bool:
        """Note the end of a job that has not been started; ``False`` if it was."""
        with self.transaction() as connection:
            changed = connection.execute(
                "UPDATE job SET state = ?, outcome = ? WHERE key = ? AND state = 'PENDING'",
                (outcome.state.value, to_json(outcome, indent=0), key),
            )
            return changed.rowcount > 0

    def respecify(self, entry: QueueEntry, spec: JobSpec) -> bool:
        """Note what else a job asks for; ``False`` if its state has changed meanwhile."""
        with self.transaction() as connection:
            changed = connection.execute(
                "UPDATE job SET spec = ? WHERE key = ? AND state = ? AND attempt = ?",
                (to_json(spec, indent=0), entry.key, entry.state.value, entry.attempt),
            )
            return changed.rowcount > 0

    def version(self) -> tuple[int, int]:
        """Return what differs as soon as somebody, or this connection itself, has written."""
        ((others,),) = self.read("PRAGMA data_version")
        return others, self._connection.total_changes

    def _taken(self, number: int) -> StoredSubmission:
        ((document, environment, made_at),) = self.read(
            "SELECT document, environment, made_at FROM submission WHERE id = ?", number
        )
        submission = from_json(document, Submission, label=f"submission {number} of {self.path}")
        return StoredSubmission(number, submission, json.loads(environment), made_at)

    def _where(self, where: str, *values: object) -> tuple[QueueEntry, ...]:
        return tuple(
            self._entry(row)
            for row in self.read(f"SELECT {COLUMNS} FROM job WHERE {where}", *values)  # noqa: S608 - constants and question marks
        )

    def _refuse_known(self, connection: sqlite3.Connection, keys: Sequence[str]) -> None:
        for chunk in _chunks(keys):
            query = f"SELECT key FROM element WHERE key IN ({_marks(chunk)})"  # noqa: S608 - question marks
            if (known := connection.execute(query, chunk).fetchone()) is not None:
                raise RequestRefused(
                    f"job {known[0]} was submitted before, under another key: give every attempt its own"
                )


def submission_number(scheduler_id: str) -> int:
    """Return the submission of an id."""
    return int(scheduler_id.partition("_")[0])


def element_index(scheduler_id: str) -> str | None:
    """Return an array element's index; ``None`` of a job that is none."""
    return scheduler_id.partition("_")[2] or None


def _chunks(values: Collection[T]) -> Iterator[list[T]]:
    left = iter(values)
    while chunk := list(islice(left, _AT_ONCE)):
        yield chunk


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))
