"""The journal of a pipeline: its events, the batches of events that runs process, and the metrics of runs.

Every event and every end is written once, whatever happens to the runner. An event is unique by its source and its id.
A stage's batches partition its events in the order of their numbers, so each event is in one batch of each stage that
it starts.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection

from msgspec import field

from leadline.core.documents import from_json, parse_json, to_json
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.pipelines import CountSource, MetricSource, Pipeline
from leadline.execution.clock import now_utc
from leadline.execution.plane.journal import hash_key
from leadline.files.sqlite import SqliteFile, chunks, marks

JOURNAL = "events.sqlite"
VERSION = 1  # version of the tables, in the file's `user_version`
APPLICATION_ID = 0x4C50_4950  # `LPIP` in the file's header, so that another program's database is never written to
RUNS_READ = 50
"""Latest ended runs of a stage that a prediction rests on."""


class PipelineEvent(Frozen):
    """One event; ``file`` is relative to the pipeline's folder."""

    source: str
    id: str
    at: str
    file: str | None = None
    payload: dict[str, str | float | int | None] = field(default_factory=dict)
    number: int = 0  # place in the journal, from 1


class Batch(Frozen):
    """The events of one run of a stage: those of ``sources`` with numbers after ``after``, up to ``upto``."""

    stage: str
    number: int
    sources: tuple[str, ...]
    after: int
    upto: int
    events: int  # their number
    created_at: str
    tier: str
    work: float = 0.0  # bytes that the run reads, or its events where the stage reads no folder
    predicted_s: Interval | None = None
    why: str = ""  # reason for the tier
    evidence: tuple[str, ...] = ()  # the forecast of each tier in a sentence
    tries: int = 1
    state: JobState = JobState.RUNNING  # until it has ended
    reason: str = ""
    ended_at: str | None = None
    elapsed_s: float | None = None  # measured time of the last attempt
    memory_bytes: float | None = None  # measured peak

    @property
    def label(self) -> str:
        """Return the name of the batch in messages and of its folder."""
        return f"{self.stage}-{self.number}"


class StageCounts(Frozen):
    """Numbers of batches and of events of a stage, by what became of them."""

    completed: int = 0
    failed: int = 0
    running: int = 0
    events_done: int = 0
    events_failed: int = 0
    events_running: int = 0
    events_waiting: int = 0


class PipelineJournal(SqliteFile):
    """The journal in a pipeline's folder, created if missing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder / JOURNAL, tables=(Path(__file__).with_name("journal.sql"),), application_id=APPLICATION_ID,
            version=VERSION, noun="journal",
        )  # fmt: skip

    def origin(self) -> tuple[str, str]:
        """Return what tells this journal from every other one, and when it began."""
        if self.fact("origin") is None:
            with self.transaction() as connection:
                facts = [("origin", uuid.uuid4().hex), ("began_at", now_utc())]
                connection.executemany("INSERT OR IGNORE INTO fact VALUES (?, ?)", facts)
        return str(self.fact("origin")), str(self.fact("began_at"))

    def fact(self, name: str) -> str | None:
        """Return a fact; None if it is not stored."""
        rows = self.read("SELECT value FROM fact WHERE name = ?", name)
        return rows[0][0] if rows else None

    def set_fact(self, name: str, value: str) -> None:
        """Store or replace a fact."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))

    def job_key(self, batch: Batch) -> str:
        """Return the key of the job that runs a batch; adding that job twice changes nothing."""
        # The plane remembers the jobs of a journal that was deleted: a new journal needs new keys.
        return hash_key("pipeline", self.origin()[0], batch.stage, str(batch.number), str(batch.tries))

    def add_events(self, events: Iterable[PipelineEvent]) -> int:
        """Add events and return the number of new ones; known ones change nothing."""
        with self.transaction() as connection:
            return _insert(connection, events)

    def count_events(self, pipeline: Pipeline) -> int:
        """Add the events of counts that were reached, and return the number of new ones."""
        reached = []
        for name, source in pipeline.events.items():
            if not isinstance(source, CountSource):
                continue
            query, values = "SELECT count(*) FROM event WHERE source = ?", [source.of]
            if source.metric:
                query, values = (
                    "SELECT total(value) FROM metric WHERE stage = ? AND name = ?",
                    [source.of, source.metric],
                )
            total = self.read(query, *values)[0][0]
            if total >= source.reaches:
                times = str(int(total // source.reaches))
                reached.append(PipelineEvent(name, times, now_utc(), payload={"total": total}))
        new = [event for event in reached if not self.known(event.source, [event.id])]
        return self.add_events(new) if new else 0

    def known(self, source: str, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that events of a source have."""
        return {
            key
            for chunk in chunks(ids)
            for (key,) in self.read(f"SELECT id FROM event WHERE source = ? AND id IN ({marks(chunk)})", source, *chunk)  # noqa: S608 - question marks
        }

    def waiting(self, stage: str, sources: Sequence[str]) -> int:
        """Return how many events wait for a stage."""
        query = f"SELECT count(*) FROM event WHERE source IN ({marks(sources)}) AND number > ?"  # noqa: S608 - question marks
        return int(self.read(query, *sources, self._taken(stage))[0][0])

    def next_events(self, stage: str, sources: Sequence[str], most: int) -> tuple[PipelineEvent, ...]:
        """Return the first events that wait for a stage."""
        return self._events(sources, self._taken(stage), most=most)

    def events_of(self, batch: Batch) -> tuple[PipelineEvent, ...]:
        """Return the events of a batch."""
        return self._events(batch.sources, batch.after, upto=batch.upto)

    def _taken(self, stage: str) -> int:
        """Return the number of the last event in a batch of a stage."""
        return int(self.read("SELECT coalesce(max(upto), 0) FROM batch WHERE stage = ?", stage)[0][0])

    def _events(
        self, sources: Sequence[str], after: int, *, upto: int = 2**62, most: int = -1
    ) -> tuple[PipelineEvent, ...]:
        query = (
            f"SELECT source, id, at, file, payload, number FROM event WHERE source IN ({marks(sources)}) "  # noqa: S608 - question marks
            "AND number > ? AND number <= ? ORDER BY number LIMIT ?"
        )
        return tuple(
            PipelineEvent(source, key, at, file, parse_json(payload, label=f"an event of {self.path}"), number)
            for source, key, at, file, payload, number in self.read(query, *sources, after, upto, most)
        )

    def new_batch(self, stage: str, events: Sequence[PipelineEvent], sources: Sequence[str], tier: str) -> Batch:
        """Return the next batch of a stage, with these events; nothing is written."""
        (number,) = self.read("SELECT coalesce(max(number), 0) + 1 FROM batch WHERE stage = ?", stage)[0]
        after, upto = self._taken(stage), events[-1].number
        return Batch(stage, number, tuple(sources), after, upto, len(events), now_utc(), tier)

    def write_batch(self, batch: Batch) -> None:
        """Add or replace a batch."""
        with self.transaction() as connection:
            _write_batch(connection, batch)

    def end_batch(self, batch: Batch, metrics: Mapping[str, float], pipeline: Pipeline) -> None:
        """Store the end of a batch with its metrics, and the events that follow: its end, and crossed lines."""
        payload: dict[str, str | float | int | None] = {"stage": batch.stage, "batch": batch.number, **metrics}
        with self.transaction() as connection:
            _write_batch(connection, batch)
            if batch.state is not JobState.COMPLETED:
                return
            events = [PipelineEvent(batch.stage, str(batch.number), batch.ended_at or now_utc(), payload=payload)]
            for name, source in pipeline.events.items():
                if isinstance(source, MetricSource) and source.stage == batch.stage and source.name in metrics:
                    query = "SELECT value FROM metric WHERE stage = ? AND name = ? ORDER BY rowid DESC LIMIT 1"
                    row = connection.execute(query, (batch.stage, source.name)).fetchone()
                    if source.crosses(metrics[source.name], None if row is None else row[0]):
                        events.append(replace(events[0], source=name))
            rows = [(batch.stage, name, batch.number, value) for name, value in metrics.items()]
            connection.executemany("INSERT OR IGNORE INTO metric VALUES (?, ?, ?, ?)", rows)
            _insert(connection, events)

    def open_batches(self) -> tuple[Batch, ...]:
        """Return the batches that have not ended."""
        return self._batches("WHERE state = 'RUNNING' ORDER BY stage, number")

    def failed_batches(self) -> tuple[Batch, ...]:
        """Return the batches that failed for good."""
        return self._batches("WHERE state NOT IN ('RUNNING', 'COMPLETED') ORDER BY stage, number")

    def past_runs(self, stage: str) -> tuple[Batch, ...]:
        """Return the latest completed batches of a stage, the newest first."""
        where = "WHERE stage = ? AND state = 'COMPLETED' ORDER BY number DESC LIMIT ?"
        return self._batches(where, stage, RUNS_READ)

    def ended_batches(self) -> tuple[Batch, ...]:
        """Return all batches that have ended, in order of their stages and numbers."""
        return self._batches("WHERE state != 'RUNNING' ORDER BY stage, number")

    def event_times(self) -> list[tuple[int, str, str]]:
        """Return number, source and time of all events, in order."""
        return self.read("SELECT number, source, at FROM event ORDER BY number")

    def events_from(self, source: str) -> tuple[PipelineEvent, ...]:
        """Return all events of a source, in order."""
        return self._events([source], 0)

    def metric_values(self) -> list[tuple[str, str, int, float]]:
        """Return stage, name, batch and value of all metrics, in the order of their runs' ends."""
        return self.read("SELECT stage, name, batch, value FROM metric ORDER BY rowid")

    def latest_metrics(self, stage: str) -> dict[str, float]:
        """Return the last value of each metric of a stage."""
        query = "SELECT name, value FROM metric WHERE stage = ? ORDER BY rowid"
        return dict(self.read(query, stage))

    def source_counts(self) -> dict[str, int]:
        """Return source → number of its events."""
        return dict(self.read("SELECT source, count(*) FROM event GROUP BY source"))

    def stage_counts(self, stage: str, sources: Sequence[str]) -> StageCounts:
        """Return what became of the events of a stage."""
        query = "SELECT state, count(*), sum(events) FROM batch WHERE stage = ? GROUP BY state"
        counts = {JobState(state): (batches, events) for state, batches, events in self.read(query, stage)}
        done, running = counts.pop(JobState.COMPLETED, (0, 0)), counts.pop(JobState.RUNNING, (0, 0))
        failed = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0]
        waiting = self.waiting(stage, sources)
        return StageCounts(done[0], failed[0], running[0], done[1], failed[1], running[1], waiting)

    def _batches(self, where: str, *values: object) -> tuple[Batch, ...]:
        rows = self.read(f"SELECT document FROM batch {where}", *values)  # noqa: S608 - constants
        return tuple(from_json(document, Batch, label=f"a batch of {self.path}") for (document,) in rows)


def _write_batch(connection: Connection, batch: Batch) -> None:
    values = (batch.stage, batch.number, batch.state.value, batch.upto, batch.events, to_json(batch, indent=0))
    connection.execute("INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?, ?, ?)", values)


def _insert(connection: Connection, events: Iterable[PipelineEvent]) -> int:
    rows = [(event.source, event.id, event.at, event.file, to_json(event.payload, indent=0)) for event in events]
    statement = "INSERT OR IGNORE INTO event (source, id, at, file, payload) VALUES (?, ?, ?, ?, ?)"
    return connection.executemany(statement, rows).rowcount
