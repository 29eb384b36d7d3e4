"""The queue of measured jobs: its journal in SQLite, and the port of the places that run its jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, ClassVar, Protocol

from leadline.core.documents import from_json, to_json
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.clock import now_utc
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.files.sqlite import SqliteFile


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One job of the queue.

    Attributes:
        attempt: number of the attempt, from 1 once it was started.
        losses: how often its wrapper vanished while the queue was alive.
        host: machine of the wrapper.
        pid: process id of the wrapper.
        pid_started: start of the wrapper, in seconds since the epoch.
        place: name of the job at a scheduler, or its slots.
        outcome: outcome of the last attempt once it ended.
        lost_s: seconds of attempts without a result.
        recorded: the owner of the queue has stored the outcome.
        note: free text of the owner.
    """

    key: str
    spec: JobSpec
    note: str = ""
    state: JobState = JobState.PENDING
    attempt: int = 0
    losses: int = 0
    host: str | None = None
    pid: int | None = None
    pid_started: float | None = None
    place: str | None = None
    started_at: str | None = None
    outcome: JobOutcome | None = None
    lost_s: float = 0.0
    recorded: bool = False


MAX_LOSSES = 3
"""A job whose wrapper vanished so often under a living queue has failed."""


class JobQueue(Protocol):
    """A place that runs the jobs of one journal under the measuring wrapper."""

    @property
    def running(self) -> Mapping[str, QueueEntry]:
        """The started jobs that have not ended, by key."""

    def resume(self) -> None:
        """Continue an earlier process: wait for living jobs, settle ended ones, requeue vanished ones."""

    def start(self, candidates: Iterable[QueueEntry]) -> int:
        """Start candidates in their order while they fit; return how many were started."""

    def wait(self, timeout_s: float) -> list[QueueEntry]:
        """Return the jobs that ended, after ``timeout_s`` at the latest.

        A returned entry in state PENDING was requeued: it ended without a result of its own.
        """

    def end(self) -> None:
        """Terminate every running job. Each is requeued, and ``wait`` returns it so."""


def result_path(folder: Path, entry: QueueEntry) -> Path:
    """Return the outcome file of an attempt; every attempt has its own."""
    return folder / "runs" / f"{entry.key}-{entry.attempt}.json"


def log_path(folder: Path, entry: QueueEntry) -> Path:
    """Return the output file of an attempt."""
    return result_path(folder, entry).with_suffix(".log")


def last_log_line(path: Path, *, max_characters: int = 300) -> str:
    """Return the last line of a log that is neither blank nor the wrapper's own; empty if there is none."""
    lines = read_tail(path, 8192).splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("leadline: ")), "")
    return last if len(last) <= max_characters else f"{last[: max_characters - 1]}…"


def read_tail(path: Path, max_bytes: int) -> str:
    """Return the end of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - max_bytes, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def unmeasured_outcome(entry: QueueEntry, state: JobState, reason: str) -> JobOutcome:
    """Return the outcome of an attempt whose wrapper could not write one."""
    now = now_utc()
    return JobOutcome(state, entry.started_at or now, entry.host or "", entry.spec.command, ended_at=now, reason=reason)


VERSION = 1
"""Version of the tables, stored in the file's ``user_version``."""
APPLICATION_ID = 0x4C51_5545
"""``LQUE`` in the file header, so that other databases are never written."""

TABLES = """
CREATE TABLE job (
    key TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    spec TEXT NOT NULL,
    note TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0,
    host TEXT,
    pid INTEGER,
    pid_started REAL,
    place TEXT,
    started_at TEXT,
    outcome TEXT,
    lost_s REAL NOT NULL DEFAULT 0,
    recorded INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE batch (
    key TEXT PRIMARY KEY,
    scheduler_id TEXT,
    made_at TEXT NOT NULL
) STRICT;
CREATE TABLE wish (name TEXT PRIMARY KEY, at TEXT NOT NULL) STRICT;
"""
COLUMNS = (
    "key, spec, note, state, attempt, losses, host, pid, pid_started, place, started_at, outcome, lost_s, recorded"
)
INSERT = "INSERT INTO job (key, position, spec, note, state) VALUES (?, ?, ?, ?, 'PENDING')"


class QueueJournal(SqliteFile):
    """The queue in the file ``path``, created if missing; a context manager that closes it."""

    tables: ClassVar[str] = TABLES
    application_id: ClassVar[int] = APPLICATION_ID

    def __init__(self, path: Path) -> None:
        super().__init__(path, tables=self.tables, application_id=self.application_id, version=VERSION)

    def add(self, jobs: Iterable[tuple[str, JobSpec, str]]) -> None:
        """Append jobs as (key, spec, note). A known key gets the new spec and note until it starts."""
        with self.transaction() as connection:
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
            connection.executemany(
                f"{INSERT} ON CONFLICT (key) DO UPDATE SET spec = excluded.spec, note = excluded.note "
                "WHERE state = 'PENDING'",
                [
                    (key, last + offset, to_json(spec, indent=0), note)
                    for offset, (key, spec, note) in enumerate(jobs, 1)
                ],
            )

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return all jobs in the order in which they were added."""
        rows = self.read(f"SELECT {COLUMNS} FROM job ORDER BY position")  # noqa: S608 - a constant of this file
        return tuple(self._entry(row) for row in rows)

    def in_state(self, state: JobState) -> tuple[QueueEntry, ...]:
        """Return the jobs in one state, in the order in which they were added."""
        query = f"SELECT {COLUMNS} FROM job WHERE state = ? ORDER BY position"  # noqa: S608 - a constant of this file
        return tuple(self._entry(row) for row in self.read(query, state.value))

    def get(self, key: str) -> QueueEntry:
        """Return one job, which must exist."""
        (row,) = self.read(f"SELECT {COLUMNS} FROM job WHERE key = ?", key)  # noqa: S608 - a constant of this file
        return self._entry(row)

    def begin(self, key: str, *, host: str | None = None, place: str | None = None) -> QueueEntry:
        """Mark a job as about to start, so that no other process starts it."""
        with self.transaction() as connection:
            self.note_begin(connection, key, host=host, place=place)
        return self.get(key)

    def note_begin(self, connection: Connection, key: str, *, host: str | None, place: str | None) -> None:
        """Mark a job as about to start, within a transaction."""
        connection.execute(
            "UPDATE job SET state = 'RUNNING', attempt = attempt + 1, host = ?, pid = NULL, pid_started = NULL, "
            "place = ?, started_at = ?, outcome = NULL, recorded = 0 WHERE key = ?",
            (host, place, now_utc(), key),
        )

    def attach(self, key: str, pid: int, pid_started: float) -> QueueEntry:
        """Store the process of a job's wrapper."""
        return self._change(key, "pid = ?, pid_started = ?", pid, pid_started)

    def settle(self, key: str, outcome: JobOutcome) -> QueueEntry:
        """Store the outcome of a job."""
        return self._change(key, "state = ?, outcome = ?", outcome.state.value, to_json(outcome, indent=0))

    def requeue(self, key: str, *, lost_s: float = 0.0, lost: bool = False) -> QueueEntry:
        """Let a job wait again.

        Args:
            key: the job.
            lost_s: seconds spent without a result.
            lost: its wrapper vanished.
        """
        return self._change(
            key,
            "state = 'PENDING', outcome = NULL, recorded = 0, pid = NULL, pid_started = NULL, place = NULL, "
            "lost_s = lost_s + ?, losses = losses + ?",
            lost_s, int(lost),
        )  # fmt: skip

    def mark_recorded(self, key: str) -> QueueEntry:
        """Store that the owner of the queue has the outcome."""
        return self._change(key, "recorded = 1")

    def begin_batch(self, key: str, jobs: Iterable[tuple[str, str]]) -> None:
        """Store a batch that is about to be submitted, with the (key, place) of its jobs."""
        with self.transaction() as connection:
            connection.execute("INSERT INTO batch (key, made_at) VALUES (?, ?)", (key, now_utc()))
            connection.executemany(
                "UPDATE job SET state = 'RUNNING', attempt = attempt + 1, host = NULL, pid = NULL, pid_started = NULL, "
                "place = ?, started_at = ?, outcome = NULL, recorded = 0 WHERE key = ?",
                [(place, now_utc(), job) for job, place in jobs],
            )

    def set_batch_id(self, key: str, scheduler_id: str) -> None:
        """Store the scheduler's id of a batch."""
        with self.transaction() as connection:
            connection.execute("UPDATE batch SET scheduler_id = ? WHERE key = ?", (scheduler_id, key))

    def batches(self) -> dict[str, tuple[str | None, str]]:
        """Return key -> (scheduler id or None if unknown, creation time)."""
        return {
            key: (scheduler_id, made_at)
            for key, scheduler_id, made_at in self.read("SELECT key, scheduler_id, made_at FROM batch")
        }

    def set_flag(self, name: str) -> None:
        """Set a flag for the process that runs the queue."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO wish VALUES (?, ?)", (name, now_utc()))

    def has_flag(self, name: str) -> bool:
        """True if the flag is set."""
        return bool(self.read("SELECT 1 FROM wish WHERE name = ?", name))

    def clear_flag(self, name: str) -> None:
        """Clear a flag."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM wish WHERE name = ?", (name,))

    def _change(self, key: str, assignments: str, *values: object) -> QueueEntry:
        with self.transaction() as connection:
            connection.execute(f"UPDATE job SET {assignments} WHERE key = ?", (*values, key))  # noqa: S608 - constants
        return self.get(key)

    def _entry(self, row: tuple[Any, ...]) -> QueueEntry:
        (
            key,
            spec,
            note,
            state,
            attempt,
            losses,
            host,
            pid,
            pid_started,
            place,
            started_at,
            outcome,
            lost_s,
            recorded,
        ) = row
        description = f"job {key} of {self.path}"
        return QueueEntry(
            key,
            from_json(spec, JobSpec, label=description),
            note, JobState(state), attempt, losses, host, pid, pid_started, place, started_at,
            from_json(outcome, JobOutcome, label=description) if outcome else None,
            lost_s,
            bool(recorded),
        )  # fmt: skip
