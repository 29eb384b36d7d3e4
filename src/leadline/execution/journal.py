"""Keep a queue of jobs in one SQLite file, so that no process that dies loses a job or repeats one."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, ClassVar

from leadline.core.documents import dump, load
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.queue import Entry
from leadline.execution.sqlite_file import SqliteFile
from leadline.execution.wrapper.outcome import Outcome

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


class Journal(SqliteFile):
    """The queue in the file ``path``, made if it is not there; a context manager that closes it."""

    tables: ClassVar[str] = TABLES
    application_id: ClassVar[int] = APPLICATION_ID

    def __init__(self, path: Path) -> None:
        super().__init__(path, tables=self.tables, application_id=self.application_id, version=VERSION)

    def add(self, jobs: Iterable[tuple[str, JobSpec, str]]) -> None:
        """Append jobs as (key, spec, note); of a key that is there already, spec and note change until it starts."""
        with self.writing() as connection:
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
            connection.executemany(
                f"{INSERT} ON CONFLICT (key) DO UPDATE SET spec = excluded.spec, note = excluded.note "
                "WHERE state = 'PENDING'",
                [(key, last + at, dump(spec, indent=0), note) for at, (key, spec, note) in enumerate(jobs, 1)],
            )

    def entries(self) -> tuple[Entry, ...]:
        """Return all jobs in the order they were added."""
        rows = self.read(f"SELECT {COLUMNS} FROM job ORDER BY position")  # noqa: S608 - a constant of this file
        return tuple(self._entry(row) for row in rows)

    def in_state(self, state: JobState) -> tuple[Entry, ...]:
        """Return the jobs in one state, in the order they were added."""
        query = f"SELECT {COLUMNS} FROM job WHERE state = ? ORDER BY position"  # noqa: S608 - a constant of this file
        return tuple(self._entry(row) for row in self.read(query, state.value))

    def get(self, key: str) -> Entry:
        """Return one job; its key must be there."""
        (row,) = self.read(f"SELECT {COLUMNS} FROM job WHERE key = ?", key)  # noqa: S608 - a constant of this file
        return self._entry(row)

    def begin(self, key: str, *, host: str | None = None, place: str | None = None) -> Entry:
        """Note that a job is about to be started, before it is: nobody else may start it."""
        with self.writing() as connection:
            self.note_begin(connection, key, host=host, place=place)
        return self.get(key)

    def note_begin(self, connection: Connection, key: str, *, host: str | None, place: str | None) -> None:
        """Note, within a transaction, that a job is about to be started."""
        connection.execute(
            "UPDATE job SET state = 'RUNNING', attempt = attempt + 1, host = ?, pid = NULL, pid_started = NULL, "
            "place = ?, started_at = ?, outcome = NULL, recorded = 0 WHERE key = ?",
            (host, place, _now(), key),
        )

    def attach(self, key: str, pid: int, pid_started: float) -> Entry:
        """Note the process of a job's wrapper."""
        return self._change(key, "pid = ?, pid_started = ?", pid, pid_started)

    def settle(self, key: str, outcome: Outcome) -> Entry:
        """Note how a job ended."""
        return self._change(key, "state = ?, outcome = ?", outcome.state.value, dump(outcome, indent=0))

    def put_back(self, key: str, *, lost_s: float = 0.0, lost: bool = False) -> Entry:
        """Let a job wait again; ``lost_s`` were spent on it, and ``lost`` says that its wrapper vanished."""
        return self._change(
            key,
            "state = 'PENDING', outcome = NULL, recorded = 0, pid = NULL, pid_started = NULL, place = NULL, "
            "lost_s = lost_s + ?, losses = losses + ?",
            lost_s, int(lost),
        )  # fmt: skip

    def record(self, key: str) -> Entry:
        """Note that the owner of the queue has taken the outcome over."""
        return self._change(key, "recorded = 1")

    def begin_batch(self, key: str, jobs: Iterable[tuple[str, str]]) -> None:
        """Note a batch that is about to be submitted, with the (key, place) of its jobs, all or none of them."""
        with self.writing() as connection:
            connection.execute("INSERT INTO batch (key, made_at) VALUES (?, ?)", (key, _now()))
            connection.executemany(
                "UPDATE job SET state = 'RUNNING', attempt = attempt + 1, host = NULL, pid = NULL, pid_started = NULL, "
                "place = ?, started_at = ?, outcome = NULL, recorded = 0 WHERE key = ?",
                [(place, _now(), job) for job, place in jobs],
            )

    def know_batch(self, key: str, scheduler_id: str) -> None:
        """Note the scheduler's own id of a batch."""
        with self.writing() as connection:
            connection.execute("UPDATE batch SET scheduler_id = ? WHERE key = ?", (scheduler_id, key))

    def batches(self) -> dict[str, tuple[str | None, str]]:
        """Return key → (the scheduler's id, ``None`` where it was never learned; when it was made)."""
        return {key: (known, at) for key, known, at in self.read("SELECT key, scheduler_id, made_at FROM batch")}

    def wish(self, name: str) -> None:
        """Leave a wish for the process that runs the queue."""
        with self.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO wish VALUES (?, ?)", (name, _now()))

    def wished(self, name: str) -> bool:
        """Whether somebody left that wish."""
        return bool(self.read("SELECT 1 FROM wish WHERE name = ?", name))

    def forget_wish(self, name: str) -> None:
        """Take a wish back."""
        with self.writing() as connection:
            connection.execute("DELETE FROM wish WHERE name = ?", (name,))

    def _change(self, key: str, assignments: str, *values: object) -> Entry:
        with self.writing() as connection:
            connection.execute(f"UPDATE job SET {assignments} WHERE key = ?", (*values, key))  # noqa: S608 - constants
        return self.get(key)

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        key, spec, note, state, attempt, losses, host, pid, pid_started, place, started_at, outcome, lost_s, done = row
        what = f"job {key} of {self.path}"
        return Entry(
            key,
            load(spec, JobSpec, what=what),
            note, JobState(state), attempt, losses, host, pid, pid_started, place, started_at,
            load(outcome, Outcome, what=what) if outcome else None,
            lost_s,
            bool(done),
        )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
