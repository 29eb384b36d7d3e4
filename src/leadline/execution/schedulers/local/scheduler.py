"""This machine as a scheduler: a durable queue that whoever asks it drives, with slots and enforced limits."""

import fcntl
import math
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import psutil

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.execution.launch import LaunchOptions
from leadline.execution.schedulers.job_queue import (
    QueueEntry,
    last_log_line,
    log_path,
    read_tail,
    result_path,
    unmeasured_outcome,
)
from leadline.execution.schedulers.local.capacity import Capacity, CapacityUse, Slots, backfill_starts_s
from leadline.execution.schedulers.local.queue import KILL_DELAY_S, LocalJobQueue, wrapper_is_alive
from leadline.execution.schedulers.local.submissions import (
    JobWithdrawn,
    LocalSubmissions,
    StoredSubmission,
    element_index,
    submission_number,
)
from leadline.execution.schedulers.port import RequestRefused, SchedulerStatus, Submission, SubmissionUncertain
from leadline.execution.transport.port import LocalTransport, Transport, write_release_file
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome, release_file_name, set_walltime

DEPTH = 100
"""How many waiting jobs are looked at when it is decided what starts."""
ARRAY_INDEX = ("LEADLINE_INDEX", "SLURM_ARRAY_TASK_ID")
"""Variables that tell an array's element its index; a script that was written for Slurm reads the second."""


class LocalScheduler:
    """Runs jobs on this machine (implements ``Scheduler``); journal, outcomes and output lie in ``folder``.

    Any process of the user may open the folder. ``query`` also takes up what ended and starts what has room, one
    process at a time; nobody has to be there for a job to go on to its end or to its limits. A job that names no
    cores gets one a task, as Slurm gives it. A job is started with the environment of who submitted it, and never
    twice: one whose wrapper vanished ends as NODE_FAIL.
    """

    def __init__(self, folder: Path, slots: Slots, *, name: str = "local") -> None:
        self._name = name
        self.folder = folder.absolute()
        with _reachable():
            self._journal = LocalSubmissions(self.folder / "jobs.sqlite")
        self._queue = LocalJobQueue(
            self._journal, self.folder, slots, launch_options=self._terms, vanished=self._vanished
        )
        self._version: tuple[int, int] | None = None
        self._expected_s: dict[str, float] = {}

    def close(self) -> None:
        """Let go of the journal; the jobs go on."""
        self._queue.close()
        self._journal.close()

    @property
    def name(self) -> str:
        """The system's name."""
        return self._name

    @property
    def abreast(self) -> int:
        """How many submissions it may be handed at once."""
        return 1

    def submit(self, submission: Submission) -> str:
        """Note the jobs, which start when somebody queries; a key that is known is not taken twice.

        Raises:
            InvalidInput: there is no command.
            Refused: this machine can never run it, or it waits for a job that nobody knows.
            Unsure: the journal could not be written.
        """
        if not submission.spec.command:
            raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
        spec = _completed(submission.spec)
        if never := self._queue.slots.rejection_reason(spec.resources):
            raise RequestRefused(f"job {spec.name!r} cannot run on this machine: {never}")
        with _reachable(SubmissionUncertain):
            for one in submission.after:
                if not self._journal.states(one):
                    raise RequestRefused(
                        f"job {spec.name!r} is to wait for job {one}, and there is none on this machine"
                    )
            return self._journal.take(replace(submission, spec=spec), os.environ, now_s=time.time())

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key → id of the submissions that were taken."""
        with _reachable():
            return self._journal.ids(keys)

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Take up what ended, start what has room, and say how the jobs are; an array's id stands for its elements."""
        with _reachable():
            self._turn()
            return {one: self._status(entry) for one, entry in self._journal.at(ids).items()}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return what the journal holds of those that ended."""
        with _reachable():
            entries = self._journal.at(ids)
            return {one: self._status(entry) for one, entry in entries.items() if entry.state.final}

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return the outcomes, interim or final, that the wrappers of these attempts wrote after ``since_s``."""
        found = {}
        with _reachable():
            for entry in self._journal.keyed(keys):
                path = result_path(self.folder, entry)
                try:
                    new = path.stat().st_mtime > since_s
                except FileNotFoundError:
                    continue
                if new:
                    found[entry.key] = read_outcome(path)
        return {key: outcome for key, outcome in found.items() if outcome.state is not JobState.PENDING}

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the last of what these attempts wrote to their streams."""
        with _reachable():
            tails = {
                entry.key: read_tail(log_path(self.folder, entry), most_bytes) for entry in self._journal.keyed(keys)
            }
            return {key: text for key, text in tails.items() if text}

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs: a waiting one at once, a running one by SIGTERM, and by SIGKILL after a while."""
        with _reachable():
            for entry in self._journal.at(ids).values():
                gone = unmeasured_outcome(entry, JobState.CANCELLED, "cancelled before it was started")
                if entry.state.final or self._journal.settle_waiting(entry.key, gone):
                    continue
                self._journal.set_flag(_cancelled(entry.key))
                self._end(self._journal.get(entry.key))

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the word beside the outcomes of held attempts."""
        (self.folder / "runs").mkdir(exist_ok=True)
        for key in keys:
            write_release_file(LocalTransport(), PurePosixPath(self.folder, "runs"), key)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return how a job's files are reached, and its folder."""
        return LocalTransport(), PurePosixPath(_completed(spec).workdir or ".")

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Give a job another limit, counted from its start; a running job's wrapper takes it over within seconds.

        Raises:
            InvalidInput: that is no limit.
            Refused: there is no such job, or it has ended.
        """
        if not walltime_s > 0 or math.isinf(walltime_s):
            raise InvalidInput(f"a walltime of {walltime_s} s cannot be asked for: name a finite time above zero")
        with _reachable():
            while True:
                left = [entry for entry in self._journal.at([scheduler_id]).values() if not entry.state.final]
                if not left:
                    raise RequestRefused(
                        f"the limit of job {scheduler_id} cannot be changed: it has ended, or never was here"
                    )
                changed = [self._limit(entry, walltime_s) for entry in left]
                if all(changed):
                    return

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return when such a job would start at the latest (epoch); ``None`` where a job without a limit is before."""
        spec = _completed(submission.spec)
        with _reachable():
            if self._queue.slots.rejection_reason(spec.resources):
                return None
            waiting = self._waiting()
            if len(waiting) >= DEPTH or any(
                not state.final for one in submission.after for state in self._journal.states(one)
            ):
                return None
            start_s = self._starts_s([*(_stay(entry.spec.resources) for entry in waiting), _stay(spec.resources)])[-1]
        return None if start_s == math.inf else time.time() + start_s

    def _turn(self) -> None:
        """Take up what ended and start what has room, unless another process is at it or nothing has changed."""
        with _alone(self.folder / "lock") as alone:
            if not alone:
                return
            self._queue.wait(0.0)
            if self._version == self._journal.version():
                return
            self._queue.resume()
            for number in self._journal.held():
                self._release(self._journal.taken(number))
            waiting = self._waiting()
            starts = self._starts_s([_stay(entry.spec.resources) for entry in waiting])
            now_s = time.time()
            self._expected_s = {}
            for entry, start_s in zip(waiting, starts, strict=True):
                if start_s > 0.0:
                    self._expected_s[entry.key] = now_s + start_s
                else:
                    self._start(entry)
            self._version = self._journal.version()

    def _start(self, entry: QueueEntry) -> None:
        """Start a job; one that is cancelled meanwhile is told to end as soon as it has a process."""
        try:
            self._queue.start([entry])
        except JobWithdrawn:
            return
        if self._journal.has_flag(_cancelled(entry.key)):
            self._end(self._journal.get(entry.key))

    def _release(self, taken: StoredSubmission) -> None:
        """Let a submission start once what it waits for ended so, or end it once that cannot be."""
        states = {state for one in taken.submission.after for state in self._journal.states(one)}
        kind = taken.submission.after_kind
        hopeless = kind is DependencyKind.OK and any(
            state.final and state is not JobState.COMPLETED for state in states
        )
        if not hopeless and not all(state.final for state in states):
            return
        hopeless = hopeless or (kind is DependencyKind.NOT_OK and states == {JobState.COMPLETED})
        if hopeless:
            for entry in self._journal.at([str(taken.id)]).values():
                gone = unmeasured_outcome(entry, JobState.CANCELLED, "DependencyNeverSatisfied")
                self._journal.settle_waiting(entry.key, gone)
        self._journal.release(taken.id)

    def _waiting(self) -> list[QueueEntry]:
        """Return the first jobs that wait for room only, in their order; an array's while it may have more at once."""
        found: list[QueueEntry] = []
        for number, wait, run in self._journal.waiting():
            most = self._journal.taken(number).submission.most
            more = min(wait, DEPTH - len(found), wait if most is None else most - run)
            if more > 0:
                found += self._journal.waiting_of(number, more)
            if len(found) >= DEPTH:
                break
        return found

    def _starts_s(self, waiting: list[CapacityUse]) -> list[float]:
        """Return in how many seconds those that wait start, beside what runs."""
        slots, now_s = self._queue.slots, time.time()
        free = Capacity(len(slots.cores), len(slots.gpus), _or_inf(slots.memory_bytes), _or_inf(slots.max_jobs))
        running = []
        for entry in self._journal.in_state(JobState.RUNNING):
            stay = _stay(entry.spec.resources)
            free = free.plus(stay.capacity, -1)
            left_s = datetime.fromisoformat(entry.started_at or _now()).timestamp() + stay.limit_s - now_s
            running.append(CapacityUse(stay.capacity, max(left_s, 1.0)))  # one beyond its limit is being ended
        return backfill_starts_s(free, running, waiting)

    def _terms(self, entry: QueueEntry) -> LaunchOptions:
        """Start a job as it was submitted."""
        taken = self._journal.taken(submission_number(entry.note))
        index, submission = element_index(entry.note), taken.submission
        told = {} if index is None else dict.fromkeys(ARRAY_INDEX, index)
        return LaunchOptions(
            environment={**taken.environment, **told},
            warning=submission.checkpoint_signal,
            warning_s=submission.checkpoint_s,
            adjustable=True,
            kill_after_s=KILL_DELAY_S,
            release_file=str(self.folder / "runs" / release_file_name(entry.key)) if submission.held else None,
        )

    def _vanished(self, entry: QueueEntry, interim: JobOutcome | None) -> JobOutcome:
        """Say how a job ended whose wrapper did not: it is not started again."""
        return vanished_outcome(self.folder, entry, interim, cancelled=self._journal.has_flag(_cancelled(entry.key)))

    def _end(self, entry: QueueEntry) -> None:
        """Tell a running job to end; one that is being started will be told by who starts it."""
        if entry.state is JobState.RUNNING and entry.pid is not None and wrapper_is_alive(self.folder, entry):
            psutil.Process(entry.pid).send_signal(signal.SIGTERM)

    def _limit(self, entry: QueueEntry, walltime_s: float) -> bool:
        """Note a job's limit, first for its wrapper if it runs; ``False`` if its state has changed meanwhile."""
        resources = replace(entry.spec.resources, walltime_s=walltime_s)
        if entry.state is JobState.RUNNING:
            set_walltime(result_path(self.folder, entry), walltime_s)
        return self._journal.respecify(entry, replace(entry.spec, resources=resources))

    def _status(self, entry: QueueEntry) -> SchedulerStatus:
        return job_status(self.folder, entry, self._journal.taken(submission_number(entry.note)), self._expected_s)


def _completed(spec: JobSpec) -> JobSpec:
    """Return the job with what holds where it names nothing: one core a task, and the folder of who submits it."""
    resources = replace(spec.resources, cores_per_task=spec.resources.cores_per_task or 1)
    return replace(spec, resources=resources, workdir=str(Path(spec.workdir or ".").absolute()))


def _stay(asked: ResourceSpec) -> CapacityUse:
    cores = (asked.cores_per_task or 0) * asked.tasks_per_node
    room = Capacity(cores, asked.gpus_per_node, asked.memory_bytes_per_node or 0)
    return CapacityUse(room, _or_inf(asked.walltime_s))


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


def _cancelled(key: str) -> str:
    """Return the name of the wish that a job be cancelled."""
    return f"cancel {key}"


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Yield whether no other process is at it, and let none until this ends; the kernel frees it if this dies."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def _reachable(otherwise: type[SchedulerUnreachable] = SchedulerUnreachable) -> Iterator[None]:
    """Turn what keeps the folder from being read or written into the scheduler's own error."""
    try:
        yield
    except (RequestRefused, SchedulerUnreachable):
        raise
    except (LeadlineError, OSError) as error:
        raise otherwise(f"this machine's queue cannot be used: {error}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat()


def job_status(
    folder: Path, entry: QueueEntry, taken: StoredSubmission, expected: Mapping[str, float]
) -> SchedulerStatus:
    """Return a job's status; ``expected`` are the starts (epoch) of those that wait for room, by key in their order."""
    common = SchedulerStatus(entry.state, submitted_s=taken.made_s, walltime_s=entry.spec.resources.walltime_s, nodes=1)
    if entry.state is JobState.PENDING:
        start_s = expected.get(entry.key, math.inf)
        why = _why_waiting(entry, taken, expected)
        return replace(common, reason=why, expected_start_s=start_s if start_s < math.inf else None)
    begun = entry.pid is not None
    started_s = _optional_epoch_s(entry.started_at) if begun else None
    common = replace(common, started_s=started_s, node=entry.host)
    return common if entry.outcome is None else _ended(folder, entry, entry.outcome, common)


def vanished_outcome(folder: Path, entry: QueueEntry, interim: JobOutcome | None, *, cancelled: bool) -> JobOutcome:
    """Return the outcome of a job whose wrapper ended without one: what was measured up to then is a lower bound."""
    state = JobState.CANCELLED if cancelled else JobState.NODE_FAIL
    said = last_log_line(log_path(folder, entry))
    reason = "cancelled" if cancelled else f"its wrapper was killed{f': {said}' if said else ''}"
    ended = unmeasured_outcome(entry, state, reason)
    if interim is None:
        return ended
    return replace(interim, state=state, ended_at=ended.ended_at, reason=reason)


def _ended(folder: Path, entry: QueueEntry, outcome: JobOutcome, common: SchedulerStatus) -> SchedulerStatus:
    elapsed, memory = (outcome.measured.get(name) for name in ("elapsed_s", "host_memory_bytes"))
    said = "" if entry.state is JobState.COMPLETED else last_log_line(log_path(folder, entry))
    return replace(
        common,
        reason=outcome.reason,
        ended_s=_optional_epoch_s(outcome.ended_at),
        elapsed_s=elapsed.value if elapsed else None,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        memory_bytes=round(memory.value) if memory else None,
        evidence=(said,) if said else (),
    )


def _why_waiting(entry: QueueEntry, taken: StoredSubmission, expected: Mapping[str, float]) -> str:
    """Say why a job waits, in Slurm's words."""
    if entry.key in expected:
        return "Resources" if entry.key == next(iter(expected)) else "Priority"
    if taken.submission.after:
        return "Dependency"
    return "JobArrayTaskLimit" if taken.submission.most is not None else "Priority"


def _optional_epoch_s(at: str | None) -> float | None:
    return None if at is None else datetime.fromisoformat(at).timestamp()
