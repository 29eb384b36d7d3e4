"""What a queue of measured jobs is: the entries of its journal, and what every place that runs them can do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, ClassVar, Protocol

from leadline.core.documents import from_json, to_json
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.files.sqlite import SqliteFile


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One job of the queue.

    ``attempt`` counts from 1 once it was started, and ``losses`` how often its wrapper vanished under a living queue.
    ``pid`` with ``pid_started`` (seconds since the epoch) name the wrapper on ``host``; ``place`` names the job at a
    scheduler. ``outcome`` is there once it ended; ``lost_s`` is what attempts took that gave no result.
    ``recorded`` says whether whoever owns the queue has taken the outcome over; ``note`` is the owner's own.
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
"""A job whose wrapper was lost so often under a living queue has failed."""


class JobQueue(Protocol):
    """A place where the jobs of one journal run under the measuring wrapper."""

    @property
    def running(self) -> Mapping[str, QueueEntry]:
        """The jobs that were started here and have not been seen to end, by key."""

    def resume(self) -> None:
        """Take up what an earlier process left: wait for what lives, settle what ended, put back what vanished."""

    def start(self, candidates: Iterable[QueueEntry]) -> int:
        """Start candidates in their order while there is room; return how many were started."""

    def wait(self, timeout_s: float) -> list[QueueEntry]:
        """Return the jobs that ended, after ``timeout_s`` at the latest.

        An entry whose state is PENDING was put back: it ended without a result of its own.
        """

    def end(self) -> None:
        """Tell every running job to end; each is put back, and comes out of ``wait`` so."""


def result_path(folder: Path, entry: QueueEntry) -> Path:
    """Return the file of an attempt's outcome; every attempt has its own, so that none is taken for another's."""
    return folder / "runs" / f"{entry.key}-{entry.attempt}.json"


def log_path(folder: Path, entry: QueueEntry) -> Path:
    """Return the file of an attempt's output."""
    return result_path(folder, entry).with_suffix(".log")


def last_log_line(path: Path, *, max_characters: int = 300) -> str:
    """Return the last line of a job's log that is neither blank nor the wrapper's own, cut to ``max_characters`` characters.

    It is empty where there is none.
    """
    lines = read_tail(path, 8192).splitlines()
    said = next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("leadline: ")), "")
    return said if len(said) <= max_characters else f"{said[: max_characters - 1]}…"


def read_tail(path: Path, most_bytes: int) -> str:
    """Return the last of a file; nothing of one that cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - most_bytes, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def unmeasured_outcome(entry: QueueEntry, state: JobState, reason: str) -> JobOutcome:
    """Return the outcome of an attempt whose wrapper was ended before it could write one."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return JobOutcome(state, entry.started_at or now, entry.host or "", entry.spec.command, ended_at=now, reason=reason)


VERSION = 1
"""Of the tables; kept in the file's ``user_version``."""
APPLICATION_ID = 0x4C51_5545
"""``LQUE`` in the file's header: another program's database is never written to."""

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
    """The queue in the file ``path``, made if it is not there; a context manager that closes it."""

    tables: ClassVar[str] = TABLES
    application_id: ClassVar[int] = APPLICATION_ID

    def __init__(self, path: Path) -> None:
        super().__init__(path, tables=self.tables, application_id=self.application_id, version=VERSION)

    def add(self, jobs: Iterable[tuple[str, JobSpec, str]]) -> None:
        """Append jobs as (key, spec, note); of a key that is there already, spec and note change until it starts."""
        with self.transaction() as connection:
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
            connection.executemany(
                f"{INSERT} ON CONFLICT (key) DO UPDATE SET spec = excluded.spec, note = excluded.note "
                "WHERE state = 'PENDING'",
                [(key, last + at, to_json(spec, indent=0), note) for at, (key, spec, note) in enumerate(jobs, 1)],
            )

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return all jobs in the order they were added."""
        rows = self.read(f"SELECT {COLUMNS} FROM job ORDER BY position")  # noqa: S608 - a constant of this file
        return tuple(self._entry(row) for row in rows)

    def in_state(self, state: JobState) -> tuple[QueueEntry, ...]:
        """Return the jobs in one state, in the order they were added."""
        query = f"SELECT {COLUMNS} FROM job WHERE state = ? ORDER BY position"  # noqa: S608 - a constant of this file
        return tuple(self._entry(row) for row in self.read(query, state.value))

    def get(self, key: str) -> QueueEntry:
        """Return one job; its key must be there."""
        (row,) = self.read(f"SELECT {COLUMNS} FROM job WHERE key = ?", key)  # noqa: S608 - a constant of this file
        return self._entry(row)

    def begin(self, key: str, *, host: str | None = None, place: str | None = None) -> QueueEntry:
        """Note that a job is about to be started, before it is: nobody else may start it."""
        with self.transaction() as connection:
            self.note_begin(connection, key, host=host, place=place)
        return self.get(key)

    def note_begin(self, connection: Connection, key: str, *, host: str | None, place: str | None) -> None:
        """Note, within a transaction, that a job is about to be started."""
        connection.execute(
            "UPDATE job SET state = 'RUNNING', attempt = attempt + 1, host = ?, pid = NULL, pid_started = NULL, "
            "place = ?, started_at = ?, outcome = NULL, recorded = 0 WHERE key = ?",
            (host, place, _now(), key),
        )

    def attach(self, key: str, pid: int, pid_started: float) -> QueueEntry:
        """Note the process of a job's wrapper."""
        return self._change(key, "pid = ?, pid_started = ?", pid, pid_started)

    def settle(self, key: str, outcome: JobOutcome) -> QueueEntry:
        """Note how a job ended."""
        return self._change(key, "state = ?, outcome = ?", outcome.state.value, to_json(outcome, indent=0))

    def requeue(self, key: str, *, lost_s: float = 0.0, lost: bool = False) -> QueueEntry:
        """Let a job wait again; ``lost_s`` were spent on it, and ``lost`` says that its wrapper vanished."""
        return self._change(
            key,
            "state = 'PENDING', outcome = NULL, recorded = 0, pid = NULL, pid_started = NULL, place = NULL, "
            "lost_s = lost_s + ?, losses = losses + ?",
            lost_s, int(lost),
        )  # fmt: skip

    def mark_recorded(self, key: str) -> QueueEntry:
        """Note that the owner of the queue has taken the outcome over."""
        return self._change(key, "recorded = 1")

    def begin_batch(self, key: str, jobs: Iterable[tuple[str, str]]) -> None:
        """Note a batch that is about to be submitted, with the (key, place) of its jobs, all or none of them."""
        with self.transaction() as connection:
            connection.execute("INSERT INTO batch (key, made_at) VALUES (?, ?)", (key, _now()))
            connection.executemany(
                "UPDATE job SET state = 'RUNNING', attempt = attempt + 1, host = NULL, pid = NULL, pid_started = NULL, "
                "place = ?, started_at = ?, outcome = NULL, recorded = 0 WHERE key = ?",
                [(place, _now(), job) for job, place in jobs],
            )

    def set_batch_id(self, key: str, scheduler_id: str) -> None:
        """Note the scheduler's own id of a batch."""
        with self.transaction() as connection:
            connection.execute("UPDATE batch SET scheduler_id = ? WHERE key = ?", (scheduler_id, key))

    def batches(self) -> dict[str, tuple[str | None, str]]:
        """Return key → (the scheduler's id, ``None`` where it was never learned; when it was made)."""
        return {key: (known, at) for key, known, at in self.read("SELECT key, scheduler_id, made_at FROM batch")}

    def set_flag(self, name: str) -> None:
        """Leave a wish for the process that runs the queue."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO wish VALUES (?, ?)", (name, _now()))

    def has_flag(self, name: str) -> bool:
        """Whether somebody left that wish."""
        return bool(self.read("SELECT 1 FROM wish WHERE name = ?", name))

    def clear_flag(self, name: str) -> None:
        """Take a wish back."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM wish WHERE name = ?", (name,))

    def _change(self, key: str, assignments: str, *values: object) -> QueueEntry:
        with self.transaction() as connection:
            connection.execute(f"UPDATE job SET {assignments} WHERE key = ?", (*values, key))  # noqa: S608 - constants
        return self.get(key)

    def _entry(self, row: tuple[Any, ...]) -> QueueEntry:
        key, spec, note, state, attempt, losses, host, pid, pid_started, place, started_at, outcome, lost_s, done = row
        what = f"job {key} of {self.path}"
        return QueueEntry(
            key,
            from_json(spec, JobSpec, label=what),
            note, JobState(state), attempt, losses, host, pid, pid_started, place, started_at,
            from_json(outcome, JobOutcome, label=what) if outcome else None,
            lost_s,
            bool(done),
        )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
