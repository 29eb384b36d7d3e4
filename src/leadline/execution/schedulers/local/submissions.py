"""Store the submissions to this machine's own scheduler, and the jobs of each."""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.schedulers.attempt_files import chunks
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


class JobWithdrawn(LeadlineError):
    """A job that was about to start has been cancelled."""


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A submission in the journal.

    Attributes:
        id: its scheduler id.
        submission: the submission.
        environment: environment of the submitter.
        made_s: time of submission, in seconds since the epoch.
    """

    id: int
    submission: Submission
    environment: dict[str, str]
    made_s: float


class LocalSubmissions(QueueJournal):
    """The journal of the local scheduler. A job's note is its id: ``ID``, or ``ID_INDEX`` of an array element."""

    tables = TABLES + _MORE
    application_id = APPLICATION_ID

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Submissions never change, and status queries read the same ones again and again.
        self.taken = lru_cache(4096)(self._load)
        # Environments may contain secrets.
        path.chmod(0o600)

    def take(self, submission: Submission, environment: Mapping[str, str], *, now_s: float) -> str:
        """Store a submission and its jobs in one transaction and return its id; a known key keeps its id.

        Raises:
            RequestRefused: a job has the key of another submission.
        """
        spec = to_json(submission.spec, indent=0)
        with self.transaction() as connection:
            row = connection.execute("SELECT id FROM submission WHERE key = ?", (submission.key,)).fetchone()
            if row is not None:
                return str(row[0])
            self._refuse_known(connection, submission.keys)
            number = connection.execute(
                "INSERT INTO submission (key, document, environment, made_at, held) VALUES (?, ?, ?, ?, ?)",
                (submission.key, queue_document(submission), json.dumps(dict(environment)), now_s,
                 int(bool(submission.after))),
            ).lastrowid  # fmt: skip
            ids = [f"{number}_{index}" for index in submission.indices] or [str(number)]
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
            jobs = list(zip(submission.keys, ids, strict=True))
            connection.executemany(
                INSERT, [(key, last + offset, spec, job_id) for offset, (key, job_id) in enumerate(jobs, 1)]
            )
            connection.executemany(
                "INSERT INTO element VALUES (?, ?, ?)", [(job_id, key, number) for key, job_id in jobs]
            )
        return str(number)

    def begin(self, key: str, *, host: str | None = None, place: str | None = None) -> QueueEntry:
        """Mark a waiting job as about to start.

        Raises:
            JobWithdrawn: it no longer waits.
        """
        with self.transaction() as connection:
            cursor = connection.execute("UPDATE job SET recorded = 0 WHERE key = ? AND state = 'PENDING'", (key,))
            # The condition in the statement makes cancel and start exclude each other.
            if not cursor.rowcount:
                raise JobWithdrawn(f"job {key} no longer waits")
            self.note_begin(connection, key, host=host, place=place)
        return self.get(key)

    def ids(self, keys: Collection[str]) -> dict[str, str]:
        """Return key -> id of the known submissions."""
        return {
            key: str(number)
            for chunk in chunks(keys, _AT_ONCE)
            for key, number in self.read(f"SELECT key, id FROM submission WHERE key IN ({_marks(chunk)})", *chunk)  # noqa: S608 - question marks
        }

    def at(self, ids: Collection[str]) -> dict[str, QueueEntry]:
        """Return id -> job; an array's id means all its elements."""
        entries: dict[str, QueueEntry] = {}
        for chunk in chunks(ids, _AT_ONCE):
            marks = _marks(chunk)
            where = f"key IN (SELECT key FROM element WHERE id IN ({marks}) OR submission IN ({marks}))"  # noqa: S608 - question marks
            array_ids = [int(text) if text.isdigit() else -1 for text in chunk]
            entries.update({entry.note: entry for entry in self._where(where, *chunk, *array_ids)})
        return entries

    def keyed(self, keys: Collection[str]) -> Iterator[QueueEntry]:
        """Yield the jobs with these keys."""
        for chunk in chunks(keys, _AT_ONCE):
            yield from self._where(f"key IN ({_marks(chunk)})", *chunk)

    def states(self, scheduler_id: str) -> dict[JobState, int]:
        """Return the number of jobs in each state under an id; empty if the id is unknown."""
        rows = self.read(
            "SELECT state, count(*) FROM job JOIN element USING (key) WHERE element.id = ?1 OR "
            "element.submission = CASE WHEN ?1 GLOB '*[^0-9]*' THEN -1 ELSE CAST(?1 AS INTEGER) END GROUP BY state",
            scheduler_id,
        )
        return {JobState(state): count for state, count in rows}

    def held_submissions(self) -> list[int]:
        """Return the submissions that wait for their dependencies."""
        return [number for (number,) in self.read("SELECT id FROM submission WHERE held ORDER BY id")]

    def release(self, number: int) -> None:
        """Let a submission's jobs wait for free slots only."""
        with self.transaction() as connection:
            connection.execute("UPDATE submission SET held = 0 WHERE id = ?", (number,))

    def waiting(self) -> list[tuple[int, int, int]]:
        """Return (submission, waiting jobs, running jobs) in order, without the held ones."""
        return self.read(
            "SELECT submission, sum(state = 'PENDING') AS wait, sum(state = 'RUNNING') FROM job JOIN element USING "
            "(key) JOIN submission ON submission.id = element.submission WHERE state IN ('PENDING', 'RUNNING') AND "
            "NOT held GROUP BY submission HAVING wait ORDER BY submission"
        )

    def waiting_of(self, number: int, limit: int) -> tuple[QueueEntry, ...]:
        """Return the first waiting jobs of a submission."""
        where = "state = 'PENDING' AND key IN (SELECT key FROM element WHERE submission = ?) ORDER BY position LIMIT ?"
        return self._where(where, number, limit)

    def settle_waiting(self, key: str, outcome: JobOutcome) -> bool:
        """Store the end of a job that was not started; False if it was."""
        with self.transaction() as connection:
            cursor = connection.execute(
                "UPDATE job SET state = ?, outcome = ? WHERE key = ? AND state = 'PENDING'",
                (outcome.state.value, to_json(outcome, indent=0), key),
            )
            return cursor.rowcount > 0

    def respecify(self, entry: QueueEntry, spec: JobSpec) -> bool:
        """Store a changed request of a job; False if its state has changed."""
        with self.transaction() as connection:
            cursor = connection.execute(
                "UPDATE job SET spec = ? WHERE key = ? AND state = ? AND attempt = ?",
                (to_json(spec, indent=0), entry.key, entry.state.value, entry.attempt),
            )
            return cursor.rowcount > 0

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever this or another connection writes."""
        ((data_version,),) = self.read("PRAGMA data_version")
        return data_version, self._connection.total_changes

    def _load(self, number: int) -> StoredSubmission:
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
        for chunk in chunks(keys, _AT_ONCE):
            query = f"SELECT key FROM element WHERE key IN ({_marks(chunk)})"  # noqa: S608 - question marks
            if (row := connection.execute(query, chunk).fetchone()) is not None:
                raise RequestRefused(
                    f"job {row[0]} was already submitted under another key: use a new key for every attempt"
                )


def queue_document(submission: Submission) -> str:
    """Return the entry of a submission."""
    return to_json(submission, indent=0)


def submission_number(scheduler_id: str) -> int:
    """Return the submission of an id."""
    return int(scheduler_id.partition("_")[0])


def element_index(scheduler_id: str) -> str | None:
    """Return the index of an array element; None for other jobs."""
    return scheduler_id.partition("_")[2] or None


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))
