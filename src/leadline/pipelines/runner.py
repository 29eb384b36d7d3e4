"""The pipeline runner: stores events, starts runs of stages as jobs of the user's plane, and takes in their ends.

All it knows is in the pipeline's journal and in the plane's. After a kill at any moment, the next runner goes on from
them: a batch that was written gets its job, which has the same key, and events that were not stored come again.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePath
from threading import Event

from leadline.core.documents import parse_json, to_json
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Basis, Estimate, Target
from leadline.core.estimate import Tier as Evidence
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.pipelines import PipelineStage
from leadline.core.plane import AttemptPlan, Job, Policy
from leadline.core.runs import Run
from leadline.core.units import HOUR_S
from leadline.execution.clock import epoch_s, iso_utc, now_utc
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.execution.plane.journal import PlaneJournal
from leadline.files.atomic import write_atomically
from leadline.files.read import read_input
from leadline.pipelines.journal import Batch, PipelineJournal
from leadline.pipelines.placement import PlacedTier, StagePlanner, recommended_memory
from leadline.pipelines.sources import Source, open_sources
from leadline.pipelines.tier_files import DATA, HOME, RUNS_FOLDER, TierFiles

EVENTS_VARIABLE, RESULT_VARIABLE = "LEADLINE_PIPELINE_EVENTS", "LEADLINE_PIPELINE_RESULT"
TICK_S = 0.2
GROUP = 500
"""Events of a source that are stored in one write."""
RETRY_S = 2.0
"""Wait before the second try of a run; it doubles with each further one."""
FAILED_IN_A_ROW = 3
"""Batches of a stage that must fail one after the other to start no more of it: then the stage is at fault."""
WALLTIME_MARGIN, LEAST_WALLTIME_S = 1.5, 300.0
MOST_RESULT_BYTES, MOST_METRIC = 2**20, 1e300


class PipelineEnding(StrEnum):
    """Reason for the end of a call."""

    IDLE = "nothing is left to do"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by leadline pipeline stop"


class RunnerReport(Frozen):
    """Result of a call: the reason of its end, and the numbers of stored events and of ended runs."""

    ending: PipelineEnding
    events: int
    completed: int
    failed: int
    left: int  # runs that go on as jobs of the plane


@dataclass(kw_only=True)
class PipelineRunner:
    """One call that runs a pipeline; ``interrupt`` may be called from a signal handler."""

    planner: StagePlanner
    journal: PipelineJournal
    plane: PlaneJournal  # of the user's plane, which another thread or process runs
    measured: Callable[[str], Run | None]  # returns the run of an attempt from the history
    report: Callable[[str], None] = lambda _: None  # called with what a user should know
    nudge: Callable[[], None] = lambda: None  # called after jobs were added; raises if the plane has died
    idle_s: float | None = None  # end the call after so long without anything to do
    wake: Event = field(default_factory=Event)
    _open: dict[str, Batch] = field(default_factory=dict, init=False)  # job → its batch
    _sources: dict[str, Source] = field(default_factory=dict, init=False)
    _in_a_row: dict[str, int] = field(default_factory=dict, init=False)  # stage → batches that failed since a success
    _paused: set[str] = field(default_factory=set, init=False)
    _interrupts: int = field(default=0, init=False)
    _ending: PipelineEnding | None = field(default=None, init=False)
    _events: int = field(default=0, init=False)
    _ended: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0}, init=False)
    _busy_at_s: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        """Take the pipeline from the planner."""
        self.pipeline = self.planner.pipeline
        self.folder = Path(self.pipeline.folder)
        self._files = TierFiles(pipeline=self.pipeline, journal=self.journal, plane=self.plane, report=self.report)
        self.planner.copies_to = self._files.count

    def interrupt(self) -> None:
        """Start no more runs; the second call leaves those in progress to the plane."""
        self._interrupts += 1
        self.wake.set()

    def run(self, *, retry_failed: bool = False) -> RunnerReport:
        """Run the pipeline until it is stopped, interrupted, or idle for ``idle_s``.

        Raises:
            MissingExtra: a source needs a package that is not installed.
            LeadlineError: a journal cannot be written.
        """
        origin, began_at = self.journal.origin()
        self.journal.set_fact("stop", "")
        for batch in self.journal.open_batches():
            self._submit(batch)
        for batch in self.journal.failed_batches() if retry_failed else ():
            self._try_again(replace(batch, state=JobState.RUNNING, ended_at=None))
        self._sources = open_sources(
            self.pipeline, origin, epoch_s(began_at), self.journal.known, self.wake, self.report
        )
        self.journal.count_events(self.pipeline)
        self._busy_at_s = time.monotonic()
        try:
            while not self._step():
                self.wake.wait(TICK_S)
                self.wake.clear()
        except OSError as error:
            raise LeadlineError(
                f"{self.folder} cannot be used ({error.strerror or error}): check its free space and permissions, then "
                "run the pipeline again; no event is lost"
            ) from error
        finally:
            for source in self._sources.values():
                source.close()
        ending = self._ending or PipelineEnding.IDLE
        return RunnerReport(ending, self._events, self._ended[True], self._ended[False], len(self._open))

    def _step(self) -> bool:
        """Do all that is due; return True if the call is over."""
        self._check_stop()
        if self._ending is None:
            self._take_events()
        self._settle()
        self.nudge()
        if self._ending is None:
            self._start_runs()
            return self._is_idle()
        return not self._open or self._interrupts > 1

    def _check_stop(self) -> None:
        if self._ending is None and (self._interrupts or self.journal.fact("stop")):
            self._ending = PipelineEnding.INTERRUPTED if self._interrupts else PipelineEnding.STOPPED
            # A run whose files are on their way has no job yet: the next call starts it.
            started = {job.key for job in self.plane.jobs_by_key([*self._open])}
            self._open = {key: batch for key, batch in self._open.items() if key in started}
            if self._open:
                self.report(f"no more runs start; waiting for {len(self._open)} in progress (Ctrl-C again leaves them)")

    def _is_idle(self) -> bool:
        stages = [stage for stage in self.pipeline.stages.values() if not self._is_at_fault(stage)]
        arrives = any(source.has_more() for name, source in self._sources.items() if name not in self._paused)
        if self._open or arrives or any(self.journal.waiting(stage.name, stage.on) for stage in stages):
            self._busy_at_s = time.monotonic()
        return self.idle_s is not None and time.monotonic() - self._busy_at_s >= self.idle_s

    def _take_events(self) -> None:
        """Store the events of sources whose stages have room for them."""
        for name, source in self._sources.items():
            fed = self.pipeline.fed_by(name)
            room = min((stage.waiting - self.journal.waiting(stage.name, stage.on) for stage in fed), default=GROUP)
            self._note_pause(name, fed, paused=room <= 0)
            events = source.take(min(room, GROUP)) if room > 0 else []
            if not events:
                continue
            self._events += self.journal.add_events(events)
            source.stored()
            self.journal.count_events(self.pipeline)
            self._busy_at_s = time.monotonic()
            self.wake.set()  # there may be more

    def _note_pause(self, name: str, fed: Sequence[PipelineStage], *, paused: bool) -> None:
        if paused and name not in self._paused:
            self.report(f"{name}: paused, since {' and '.join(stage.name for stage in fed)} cannot keep up")
        self._paused = self._paused | {name} if paused else self._paused - {name}

    def _start_runs(self) -> None:
        """Start the runs of stages that have events and a free place."""
        for stage in self.pipeline.stages.values():
            if self._is_at_fault(stage):
                continue
            running = sum(batch.stage == stage.name for batch in self._open.values())
            while running < stage.running and self._start_run(stage):
                running += 1

    def _is_at_fault(self, stage: PipelineStage) -> bool:
        return self._in_a_row.get(stage.name, 0) >= FAILED_IN_A_ROW

    def _start_run(self, stage: PipelineStage) -> bool:
        """Start a run with the next events of a stage; False if it must wait for events."""
        waiting = self.journal.waiting(stage.name, stage.on)
        first = self.journal.next_events(stage.name, stage.on, 1)
        if not first or (waiting < stage.most and time.time() - epoch_s(first[0].at) < stage.wait_s):
            return False
        events = self.journal.next_events(stage.name, stage.on, stage.most)
        work = self.planner.work(stage, len(events))
        placement = self.planner.place(stage, work, self.planner.event_bytes(stage, events))
        batch = replace(
            self.journal.new_batch(stage.name, events, stage.on, placement.tier),
            work=work, predicted_s=placement.forecast.elapsed_s, why=placement.reason,
            evidence=tuple(str(forecast) for forecast in placement.forecasts),
        )  # fmt: skip
        self.journal.write_batch(batch)
        self._submit(batch)
        return True

    def _submit(self, batch: Batch) -> None:
        """Add the job of a batch to the plane, unless it is there already or its files are still copied to its tier."""
        if batch.stage not in self.pipeline.stages or batch.tier not in self.planner.tiers:
            raise InvalidInput(
                f"run {batch.label} is in progress at tier {batch.tier!r}, but the file has no such stage or tier any "
                "more: put it back until that run has ended"
            )
        events = self._run_folder(batch) / "events.jsonl"
        if not events.exists():
            lines = [to_json(event, indent=0) for event in self.journal.events_of(batch)]
            write_atomically(events, "".join(f"{line}\n" for line in lines))
        key, placed = self.journal.job_key(batch), self.planner.tiers[batch.tier]
        self._open[key] = batch
        home, folder = PurePath(self.pipeline.home), PurePath(self.folder)
        if placed.transport is not None:
            if self.plane.jobs_by_key([key]):
                return
            remote = self._files.send(key, batch, placed)
            if remote is None:
                return
            home, folder = remote / HOME, remote / DATA
        self.plane.add([self._job(batch, home, folder)])
        self.nudge()

    def _job(self, batch: Batch, home: PurePath, folder: PurePath) -> Job:
        """Return the job of a batch, with the paths that it has at its tier."""
        stage, placed = self.pipeline.stages[batch.stage], self.planner.tiers[batch.tier]
        run_folder = folder / RUNS_FOLDER / batch.label
        variables = {EVENTS_VARIABLE: run_folder / "events.jsonl", RESULT_VARIABLE: run_folder / _result_name(batch)}
        spec = JobSpec(
            f"{self.pipeline.name}-{stage.name}", stage.command_in(str(home)), self._resources(stage, placed, batch),
            system=None if placed.here else placed.place.system, partition=placed.place.partition,
            workdir=str(folder), environment={name: str(path) for name, path in variables.items()},
            watched=True,
        )  # fmt: skip
        now_s, plan = time.time(), None
        deadline = None if stage.deadline_s is None else iso_utc(now_s + stage.deadline_s)
        if batch.tries > 1:
            not_before = iso_utc(now_s + RETRY_S * 2.0 ** (batch.tries - 2))
            plan = AttemptPlan(placed.place, spec.resources, not_before, f"try {batch.tries}")
        return Job(
            self.journal.job_key(batch), spec, Policy((placed.place,), deadline_at=deadline), created_at=now_utc(),
            predicted=_as_estimate(batch, placed), plan=plan,
            tags={"pipeline": self.pipeline.name, "stage": stage.name, "tier": batch.tier, "batch": str(batch.number)},
        )  # fmt: skip

    def _resources(self, stage: PipelineStage, placed: PlacedTier, batch: Batch) -> ResourceSpec:
        """Return the request of a run: the tier's, and on a cluster the time and memory of past runs."""
        tier, limits_s = placed.tier, []
        memory = tier.memory_bytes
        if stage.budget_usd is not None and tier.usd_per_h:
            limits_s.append(stage.budget_usd / tier.usd_per_h * HOUR_S)
        if not placed.here:
            if batch.predicted_s is not None:
                limits_s.append(max(WALLTIME_MARGIN * batch.predicted_s.high, LEAST_WALLTIME_S))
            recommended = recommended_memory(self.journal.past_runs(stage.name))
            memory = memory if recommended is None else min(recommended, memory or recommended)
        walltime_s = math.ceil(min(limits_s)) if limits_s else None
        return ResourceSpec(
            cores_per_task=tier.cores, gpus_per_node=tier.gpus, memory_bytes_per_node=memory, walltime_s=walltime_s
        )

    def _settle(self) -> None:
        """Take in the ends of jobs that the plane is finished with."""
        jobs = {job.key: job for job in self.plane.jobs_by_key([*self._open])}
        for key, batch in [*self._open.items()]:
            job = jobs.get(key)
            if job is None:  # the plane's journal was removed
                self._submit(batch)
            elif job.closed and job.recorded and self._has_files(batch, job):
                del self._open[key]
                self._end(batch, job)

    def _has_files(self, batch: Batch, job: Job) -> bool:
        """Return whether the files that a run wrote are here; begin to fetch them from its tier otherwise."""
        placed = self.planner.tiers[batch.tier]
        if placed.transport is None or job.state is not JobState.COMPLETED:
            return True
        if self._files.fetch(job.key, batch, placed, job.spec.workdir or ""):
            return True
        if self._ending is not None and self._files.is_pausing(job.key):
            del self._open[job.key]  # the next call fetches them
        return False

    def _end(self, batch: Batch, job: Job) -> None:
        """Store the end of a run, or try it again."""
        attempt = job.attempts[-1] if job.attempts else None
        run = self.measured(attempt.key) if attempt else None
        measured = {name: value.value for name, value in run.measured.items()} if run else {}
        elapsed_s = measured.get("elapsed_s", attempt_elapsed_s(attempt, time.time()) if attempt else None)
        batch = replace(
            batch, state=job.state, reason=job.reason, ended_at=now_utc(), elapsed_s=elapsed_s,
            memory_bytes=measured.get("host_memory_bytes"),
        )  # fmt: skip
        self._busy_at_s = time.monotonic()
        done = job.state is JobState.COMPLETED
        # A job without an attempt was refused, and one that its user cancelled is not wanted.
        may_retry = bool(job.attempts) and not job.cancelled
        if not done and may_retry and batch.tries < self.pipeline.stages[batch.stage].tries:
            self.report(f"run {batch.label} ended {job.state.value} ({job.reason}): trying it again")
            self._try_again(replace(batch, state=JobState.RUNNING, ended_at=None))
            return
        self.journal.end_batch(batch, self._read_metrics(batch) if done else {}, self.pipeline)
        self.journal.count_events(self.pipeline)
        self._ended[done] += 1
        self._in_a_row[batch.stage] = 0 if done else self._in_a_row.get(batch.stage, 0) + 1
        if not done:
            self.report(f"run {batch.label} of {batch.events} events ended {job.state.value} ({job.reason}): {job.key}")
            if self._in_a_row[batch.stage] == FAILED_IN_A_ROW:
                self.report(
                    f"stage {batch.stage}: {FAILED_IN_A_ROW} runs failed in a row, so no more start; its events wait: "
                    f"see leadline logs {job.key}, then run the pipeline again with --retry-failed"
                )

    def _try_again(self, batch: Batch) -> None:
        """Start the next try of a batch, or leave that to the next call if this one ends."""
        batch = replace(batch, tries=batch.tries + 1)
        self.journal.write_batch(batch)
        if self._ending is None:
            self._submit(batch)

    def _read_metrics(self, batch: Batch) -> dict[str, float]:
        """Return the metrics that a run wrote; report those that cannot be used."""
        path = self._result(batch)
        try:
            metrics = read_metrics(path) if path.exists() else {}
        except LeadlineError as error:
            self.report(f"run {batch.label}: no metrics: {error}")
            return {}
        if odd := sorted(name for name, value in metrics.items() if value is None):
            self.report(f"run {batch.label}: no finite number: {', '.join(odd)} in {path}")
        return {name: value for name, value in metrics.items() if value is not None}

    def _run_folder(self, batch: Batch) -> Path:
        return self.folder / RUNS_FOLDER / batch.label

    def _result(self, batch: Batch) -> Path:
        """Return the result file of a try; another try must not find it."""
        return self._run_folder(batch) / _result_name(batch)


def _result_name(batch: Batch) -> str:
    return f"result-{batch.tries}.json"


def read_metrics(path: Path) -> dict[str, float | None]:
    """Return the metrics in a result file: name → value, ``None`` for what is no finite number.

    Raises:
        InvalidInput: the file cannot be read, or has another form.
    """
    document = parse_json(read_input(path, most=MOST_RESULT_BYTES), label=str(path))
    metrics = document.get("metrics", {}) if isinstance(document, dict) else None
    if not isinstance(metrics, dict):
        raise InvalidInput(f'{path} is no result: write {{"metrics": {{"NAME": 0.5}}}}')
    return {
        name: float(value) if isinstance(value, int | float) and abs(value) < MOST_METRIC else None
        for name, value in metrics.items()
    }


def _as_estimate(batch: Batch, placed: PlacedTier) -> Estimate | None:
    """Return the prediction of a batch as the plane and the history keep it."""
    if batch.predicted_s is None:
        return None
    target = Target(
        placed.tier.device or "unknown device", None if placed.here else placed.place.system, placed.place.partition
    )
    basis = Basis(Evidence.LEARNED, (f"past runs of stage {batch.stage} at tier {batch.tier}",))
    return Estimate(target, "stage runs", basis, elapsed_s=batch.predicted_s)
