"""The verbs ``pipeline run``, ``status`` and ``stop``."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from types import FrameType, TracebackType
from typing import Self

from leadline.app import settings
from leadline.app.composition import user_catalog
from leadline.app.jobs.inline_plane import InlinePlane
from leadline.app.jobs.journal import open_journal
from leadline.app.pipelines.find import remember_pipeline
from leadline.app.pipelines.places import place_tiers, resolve_commands, workload_estimates
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.pipelines import Pipeline
from leadline.core.runs import Run
from leadline.files.lock import file_lock, lock_holder
from leadline.history.sqlite import SqliteHistory
from leadline.pipelines.journal import JOURNAL, Batch, PipelineJournal, StageCounts
from leadline.pipelines.placement import StagePlanner
from leadline.pipelines.runner import PipelineRunner, RunnerReport
from leadline.pipelines.spec import read_pipeline

LOCK = "runner.lock"
STEP_S = 0.5
"""Longest pause between two steps of the plane."""


class PlaneThread:
    """The plane, stepped by a thread of this process unless another process runs it; a context manager."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._stop, self._wake = report, Event(), Event()
        self._error: LeadlineError | None = None
        self._thread = Thread(target=self._run, name="plane", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def nudge(self) -> None:
        """Let the plane look for new jobs at once; raise the error that ended it."""
        if not self._thread.is_alive():
            raise self._error or LeadlineError("the plane ended unexpectedly: run the pipeline again to go on")
        self._wake.set()

    def _run(self) -> None:
        try:
            with InlinePlane(self._report) as plane:
                while not self._stop.is_set():
                    wait_s = plane.step()
                    self._wake.wait(min(max(wait_s, 0.05), STEP_S))
                    self._wake.clear()
        except LeadlineError as error:
            self._error = error


class EventStatus(Frozen):
    """An event: its source, and how many of it are in the journal."""

    name: str
    source: str
    events: int


class StageStatus(Frozen):
    """A stage: what became of its events, its jobs in progress, its last run, and its last metrics."""

    name: str
    counts: StageCounts
    waiting_most: int
    jobs: tuple[str, ...]
    last: Batch | None
    metrics: dict[str, float]
    failed: tuple[Batch, ...]


class PipelineStatus(Frozen):
    """A pipeline: the process that runs it, its events, and its stages in the order of the graph."""

    name: str
    folder: str
    runner: str | None
    events: tuple[EventStatus, ...]
    stages: tuple[StageStatus, ...]


def run_pipeline(
    file: Path,
    *,
    idle_s: float | None = None,
    retry_failed: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> RunnerReport:
    """Run a pipeline until it is stopped or interrupted, or until nothing is left to do for ``idle_s``.

    Raises:
        InvalidInput: the file is not a valid pipeline, or a tier cannot be used from here.
        MissingExtra: a source needs a package that is not installed.
        LeadlineError: another process runs the pipeline, or a journal cannot be used.
    """
    pipeline = resolve_commands(read_pipeline(file))
    tiers = place_tiers(pipeline, user_catalog(), at_hand=True)
    folder = Path(pipeline.folder)
    settings.require_writable(folder, "make it writable, or name another folder under [pipeline]")
    folder.mkdir(parents=True, exist_ok=True)
    remember_pipeline(pipeline, file)
    history = SqliteHistory(settings.history_path())
    # An unreadable history must fail now, and not after hours of running.
    next(iter(history.runs(limit=1)), None)

    def measured(attempt: str) -> Run | None:
        with suppress(UnknownName):
            return history.get(attempt)
        return None

    with (
        _runner_lock(folder, file), PipelineJournal(folder) as journal, open_journal() as jobs,
        PlaneThread(report) as plane,
    ):  # fmt: skip
        planner = StagePlanner(
            pipeline=pipeline, tiers=tiers, past_runs=journal.past_runs, estimate_s=workload_estimates()
        )
        runner = PipelineRunner(
            planner=planner, journal=journal, plane=jobs, measured=measured, report=report, nudge=plane.nudge,
            idle_s=idle_s,
        )  # fmt: skip
        with _interrupts(runner.interrupt):
            return runner.run(retry_failed=retry_failed)


def pipeline_status(file: Path) -> PipelineStatus:
    """Return the status of a pipeline.

    Raises:
        InvalidInput: the file is not a valid pipeline, or it was never run.
    """
    pipeline = read_pipeline(file)
    with _open_existing(pipeline, file) as journal:
        counts, in_progress, failed = journal.source_counts(), journal.open_batches(), journal.failed_batches()
        events = tuple(EventStatus(name, str(source), counts.get(name, 0)) for name, source in pipeline.events.items())
        stages = tuple(
            StageStatus(
                name, journal.stage_counts(name, stage.on), stage.waiting,
                tuple(journal.job_key(batch) for batch in in_progress if batch.stage == name),
                next(iter(journal.past_runs(name)), None), journal.latest_metrics(name),
                tuple(batch for batch in failed if batch.stage == name),
            )
            for name, stage in pipeline.stages.items()
        )  # fmt: skip
    return PipelineStatus(pipeline.name, pipeline.folder, _find_runner(pipeline), events, stages)


def stop_pipeline(file: Path) -> str:
    """Ask the process that runs a pipeline to end in order; return the result in a sentence.

    Raises:
        InvalidInput: the file is not a valid pipeline, or it was never run.
    """
    pipeline = read_pipeline(file)
    with _open_existing(pipeline, file) as journal:
        runner = _find_runner(pipeline)
        if runner is None:
            return f"pipeline {pipeline.name!r} is not running"
        journal.set_fact("stop", "requested")
    return f"stopping pipeline {pipeline.name!r}: {runner} starts no more runs, and ends with those in progress"


def _open_existing(pipeline: Pipeline, file: Path) -> PipelineJournal:
    if not Path(pipeline.folder, JOURNAL).exists():
        raise InvalidInput(f"pipeline {pipeline.name!r} was never run: start it with leadline pipeline run {file}")
    return PipelineJournal(Path(pipeline.folder))


def _find_runner(pipeline: Pipeline) -> str | None:
    return lock_holder(Path(pipeline.folder, LOCK))


@contextmanager
def _runner_lock(folder: Path, file: Path) -> Iterator[None]:
    with file_lock(folder / LOCK) as acquired:
        if not acquired:
            holder = lock_holder(folder / LOCK) or "another process"
            raise LeadlineError(
                f"the pipeline in {folder} is being run by {holder}: stop it with leadline pipeline stop {file}"
            )
        yield


@contextmanager
def _interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call a function at SIGINT and SIGTERM while the context lasts."""

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        interrupt()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
