"""Store the submissions to this machine's own scheduler, and the jobs of each."""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.clock import now_utc
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, log_name
from leadline.execution.schedulers.port import RequestRefused, Submission
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.files.sqlite import SqliteFile, chunks, marks

VERSION = 1
"""Version of the tables, stored in the file's ``user_version``."""
APPLICATION_ID = 0x4C53_4348
"""``LSCH`` in the file's header."""
# Files of earlier versions have more columns of a job, and a table of batches: nothing may read a row as a whole.
_TABLES = (Path(__file__).with_name("queue.sql"),)
_COLUMNS = "key, spec, note, state, attempt, host, pid, place, started_at, outcome"


class JobWithdrawn(LeadlineError):
    """A job that was about to start has been cancelled."""


class QueueEntry(Frozen):
    """One job of this machine's queue."""

    key: str
    spec: JobSpec
    note: str = ""  # its scheduler id, ``ID``, or ``ID_INDEX`` of an array element
    state: JobState = JobState.PENDING
    attempt: int = 0  # number of its starts; above 1 only if no command began before
    host: str | None = None  # machine of the wrapper
    pid: int | None = None  # process id of the wrapper
    place: str | None = None  # its slots
    started_at: str | None = None
    outcome: JobOutcome | None = None  # outcome once it ended

    @property
    def submission_id(self) -> int:
        """The scheduler id of its submission."""
        return int(self.note.partition("_")[0])

    @property
    def index(self) -> str | None:
        """The index of an array element; None for other jobs."""
        return self.note.partition("_")[2] or None


def result_path(folder: Path, entry: QueueEntry) -> Path:
    """Return the outcome file of an attempt; every attempt has its own."""
    return folder / "runs" / f"{entry.key}-{entry.attempt}.json"


def log_path(folder: Path, entry: QueueEntry) -> Path:
    """Return the output file of an attempt; a second start follows only if no command began in the first."""
    return folder / RUNS_FOLDER / log_name(entry.key)


def output_link(entry: QueueEntry, submission: Submission) -> Path | None:
    """Return the link to a job's output in its own folder; None if it has none."""
    name = f"leadline-{submission.link}{f'_{entry.index}' if entry.index else ''}.out"
    return Path(entry.spec.workdir, name) if submission.link and entry.spec.workdir else None


def unmeasured_outcome(entry: QueueEntry, state: JobState, reason: str) -> JobOutcome:
    """Return the outcome of an attempt whose wrapper could not write one."""
    now = now_utc()
    return JobOutcome(state, entry.started_at or now, entry.host or "", entry.spec.command, ended_at=now, reason=reason)


class StoredSubmission(Frozen):
    """A submission in the journal."""

    id: int  # its scheduler id
    submission: Submission  # the submission
    environment: dict[str, str]  # environment of the submitter
    made_s: float  # time of submission, in seconds since the epoch


class LocalSubmissions(SqliteFile):
    """The journal of the local scheduler, created if missing; a context manager that closes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, tables=_TABLES, application_id=APPLICATION_ID, version=VERSION)
        # Submissions never change, and status queries read the same ones again and again.
        self.taken = lru_cache(4096)(self._load)

    def take(self, submission: Submission, environment: Mapping[str, str], *, now_s: float) -> str:
        """Store a submission and its jobs in one transaction and return its id; a known key keeps its id.

        Raises:
            RequestRefused: a job has the key of another submission.
        """
        with self.transaction() as connection:
            row = connection.execute("SELECT id FROM submission WHERE key = ?", (submission.key,)).fetchone()
            if row is not None:
                return str(row[0])
            self._refuse_known(connection, submission.keys)
            number = connection.execute(
                "INSERT INTO submission (key, document, environment, made_at, held) VALUES (?, ?, ?, ?, ?)",
                (submission.key, to_json(submission, indent=0), json.dumps(dict(environment)), now_s,
                 int(bool(submission.after))),
            ).lastrowid  # fmt: skip
            ids = [f"{number}_{index}" for index in submission.indices] or [str(number)]
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM job").fetchone()
            # Encoded once for all elements, which usually have one spec.
            specs = [to_json(spec, indent=0) for spec in submission.specs or (submission.spec,)]
            specs *= 1 if submission.specs else len(ids)
            positions = range(last + 1, last + 1 + len(ids))
            connection.executemany(
                "INSERT INTO job (key, position, spec, note, state) VALUES (?, ?, ?, ?, 'PENDING')",
                zip(submission.keys, positions, specs, ids, strict=True),
            )
            elements = zip(ids, submission.keys, repeat(number), strict=False)
            connection.executemany("INSERT INTO element VALUES (?, ?, ?)", elements)
        return str(number)

    def begin(self, key: str, *, host: str, place: str) -> QueueEntry:
        """Mark a waiting job as about to start, so that no other process starts it.

        Raises:
            JobWithdrawn: it no longer waits.
        """
        # The condition in the statement makes cancel and start exclude each other.
        if not self._change(
            "state = 'RUNNING', attempt = attempt + 1, host = ?, pid = NULL, pid_started = NULL, place = ?, "
            "started_at = ?, outcome = NULL WHERE key = ? AND state = 'PENDING'",
            host, place, now_utc(), key,
        ):  # fmt: skip
            raise JobWithdrawn(f"job {key} no longer waits")
        return self.get(key)

    def attach(self, key: str, pid: int, pid_started: float) -> QueueEntry:
        """Store the process of a job's wrapper."""
        self._change("pid = ?, pid_started = ? WHERE key = ?", pid, pid_started, key)
        return self.get(key)

    def settle(self, key: str, outcome: JobOutcome, *, if_waiting: bool = False) -> bool:
        """Store the outcome of a job; with ``if_waiting`` only that of one which was not started, else return False."""
        condition = "key = ? AND state = 'PENDING'" if if_waiting else "key = ?"
        change = f"state = ?, outcome = ? WHERE {condition}"
        return self._change(change, outcome.state.value, to_json(outcome, indent=0), key)

    def requeue(self, key: str) -> None:
        """Let a job whose command never began wait again."""
        reset = "state = 'PENDING', outcome = NULL, pid = NULL, pid_started = NULL, place = NULL WHERE key = ?"
        self._change(reset, key)

    def mark_cancelled(self, key: str) -> None:
        """Store for the process that runs the queue that a job is cancelled."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO wish VALUES (?, ?)", (f"cancel {key}", now_utc()))

    def is_cancelled(self, key: str) -> bool:
        """True if the job was marked as cancelled."""
        return bool(self.read("SELECT 1 FROM wish WHERE name = ?", f"cancel {key}"))

    def get(self, key: str) -> QueueEntry:
        """Return one job, which must exist."""
        (entry,) = self._where("key = ?", key)
        return entry

    def in_state(self, state: JobState) -> tuple[QueueEntry, ...]:
        """Return the jobs in one state, in the order in which they were added."""
        return self._where("state = ? ORDER BY position", state.value)

    def ids(self, keys: Collection[str]) -> dict[str, str]:
        """Return key -> id of the known submissions."""
        return {
            key: str(number)
            for chunk in chunks(keys)
            for key, number in self.read(f"SELECT key, id FROM submission WHERE key IN ({marks(chunk)})", *chunk)  # noqa: S608 - question marks
        }

    def at(self, ids: Collection[str]) -> dict[str, QueueEntry]:
        """Return id -> job; an array's id means all its elements."""
        entries: dict[str, QueueEntry] = {}
        for chunk in chunks(ids):
            listed = marks(chunk)
            where = f"key IN (SELECT key FROM element WHERE id IN ({listed}) OR submission IN ({listed}))"  # noqa: S608 - question marks
            array_ids = [int(text) if text.isdigit() else -1 for text in chunk]
            entries.update({entry.note: entry for entry in self._where(where, *chunk, *array_ids)})
        return entries

    def keyed(self, keys: Collection[str]) -> Iterator[QueueEntry]:
        """Yield the jobs with these keys."""
        for chunk in chunks(keys):
            yield from self._where(f"key IN ({marks(chunk)})", *chunk)

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

    def respecify(self, entry: QueueEntry, spec: JobSpec) -> bool:
        """Store a changed request of a job; False if its state has changed."""
        change = "spec = ? WHERE key = ? AND state = ? AND attempt = ?"
        return self._change(change, to_json(spec, indent=0), entry.key, entry.state.value, entry.attempt)

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever this or another connection writes."""
        ((data_version,),) = self.read("PRAGMA data_version")
        return data_version, self._connection.total_changes

    def _load(self, number: int) -> StoredSubmission:
        ((document, environment, made_at),) = self.read(
            "SELECT document, environment, made_at FROM submission WHERE id = ?", number
        )
        label = f"submission {number} of {self.path}"
        submission = from_json(document, Submission, label=label)
        variables = from_json(environment, dict[str, str], label=f"the environment of {label}")
        return StoredSubmission(number, submission, variables, made_at)

    def _change(self, change: str, *values: object) -> bool:
        """Change jobs, as SQL says after ``SET``; False if no job satisfies its condition."""
        with self.transaction() as connection:
            return connection.execute(f"UPDATE job SET {change}", values).rowcount > 0  # noqa: S608 - constants

    def _where(self, where: str, *values: object) -> tuple[QueueEntry, ...]:
        rows = self.read(f"SELECT {_COLUMNS} FROM job WHERE {where}", *values)  # noqa: S608 - constants and question marks
        return tuple(map(self._entry, rows))

    def _entry(self, row: tuple[Any, ...]) -> QueueEntry:
        key, spec, note, state, attempt, host, pid, place, started_at, outcome = row
        label = f"job {key} of {self.path}"
        job, ended = from_json(spec, JobSpec, label=label), outcome and from_json(outcome, JobOutcome, label=label)
        return QueueEntry(key, job, note, JobState(state), attempt, host, pid, place, started_at, ended or None)

    def _refuse_known(self, connection: sqlite3.Connection, keys: Sequence[str]) -> None:
        for chunk in chunks(keys):
            query = f"SELECT key FROM element WHERE key IN ({marks(chunk)})"  # noqa: S608 - question marks
            if (row := connection.execute(query, chunk).fetchone()) is not None:
                raise RequestRefused(
                    f"job {row[0]} was already submitted under another key: use a new key for every attempt"
                )
