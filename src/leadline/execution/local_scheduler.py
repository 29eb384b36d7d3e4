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
from leadline.core.plane import After
from leadline.execution.local_order import Room, Stay, starts_s
from leadline.execution.local_queue import KILL_S, LocalQueue, runs
from leadline.execution.local_status import status_of, vanished
from leadline.execution.local_submissions import LocalSubmissions, Taken, Withdrawn, index_of, number_of
from leadline.execution.queue import Entry, ended_outcome, log_path, result_path, tail
from leadline.execution.scheduler import Refused, Status, Submission, Unsure
from leadline.execution.slots import Slots
from leadline.execution.transport import Here, Transport, write_word
from leadline.execution.wrapper.control import set_walltime
from leadline.execution.wrapper.outcome import Outcome, read_outcome, word_name
from leadline.execution.wrapping import Terms

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
        self._queue = LocalQueue(self._journal, self.folder, slots, terms=self._terms, vanished=self._vanished)
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
        if never := self._queue.slots.why_never(spec.resources):
            raise Refused(f"job {spec.name!r} cannot run on this machine: {never}")
        with _reachable(Unsure):
            for one in submission.after:
                if not self._journal.states(one):
                    raise Refused(f"job {spec.name!r} is to wait for job {one}, and there is none on this machine")
            return self._journal.take(replace(submission, spec=spec), os.environ, now_s=time.time())

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key → id of the submissions that were taken."""
        with _reachable():
            return self._journal.ids(keys)

    def query(self, ids: Collection[str]) -> Mapping[str, Status]:
        """Take up what ended, start what has room, and say how the jobs are; an array's id stands for its elements."""
        with _reachable():
            self._turn()
            return {one: self._status(entry) for one, entry in self._journal.at(ids).items()}

    def account(self, ids: Collection[str]) -> Mapping[str, Status]:
        """Return what the journal holds of those that ended."""
        with _reachable():
            entries = self._journal.at(ids)
            return {one: self._status(entry) for one, entry in entries.items() if entry.state.final}

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, Outcome]:
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
            tails = {entry.key: tail(log_path(self.folder, entry), most_bytes) for entry in self._journal.keyed(keys)}
            return {key: text for key, text in tails.items() if text}

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs: a waiting one at once, a running one by SIGTERM, and by SIGKILL after a while."""
        with _reachable():
            for entry in self._journal.at(ids).values():
                gone = ended_outcome(entry, JobState.CANCELLED, "cancelled before it was started")
                if entry.state.final or self._journal.settle_waiting(entry.key, gone):
                    continue
                self._journal.wish(_cancelled(entry.key))
                self._end(self._journal.get(entry.key))

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the word beside the outcomes of held attempts."""
        (self.folder / "runs").mkdir(exist_ok=True)
        for key in keys:
            write_word(Here(), PurePosixPath(self.folder, "runs"), key)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return how a job's files are reached, and its folder."""
        return Here(), PurePosixPath(_completed(spec).workdir or ".")

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
                    raise Refused(f"the limit of job {scheduler_id} cannot be changed: it has ended, or never was here")
                changed = [self._limit(entry, walltime_s) for entry in left]
                if all(changed):
                    return

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return when such a job would start at the latest (epoch); ``None`` where a job without a limit is before."""
        spec = _completed(submission.spec)
        with _reachable():
            if self._queue.slots.why_never(spec.resources):
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

    def _start(self, entry: Entry) -> None:
        """Start a job; one that is cancelled meanwhile is told to end as soon as it has a process."""
        try:
            self._queue.start([entry])
        except Withdrawn:
            return
        if self._journal.wished(_cancelled(entry.key)):
            self._end(self._journal.get(entry.key))

    def _release(self, taken: Taken) -> None:
        """Let a submission start once what it waits for ended so, or end it once that cannot be."""
        states = {state for one in taken.submission.after for state in self._journal.states(one)}
        kind = taken.submission.after_kind
        hopeless = kind is After.OK and any(state.final and state is not JobState.COMPLETED for state in states)
        if not hopeless and not all(state.final for state in states):
            return
        hopeless = hopeless or (kind is After.NOT_OK and states == {JobState.COMPLETED})
        if hopeless:
            for entry in self._journal.at([str(taken.id)]).values():
                gone = ended_outcome(entry, JobState.CANCELLED, "DependencyNeverSatisfied")
                self._journal.settle_waiting(entry.key, gone)
        self._journal.release(taken.id)

    def _waiting(self) -> list[Entry]:
        """Return the first jobs that wait for room only, in their order; an array's while it may have more at once."""
        found: list[Entry] = []
        for number, wait, run in self._journal.waiting():
            most = self._journal.taken(number).submission.most
            more = min(wait, DEPTH - len(found), wait if most is None else most - run)
            if more > 0:
                found += self._journal.waiting_of(number, more)
            if len(found) >= DEPTH:
                break
        return found

    def _starts_s(self, waiting: list[Stay]) -> list[float]:
        """Return in how many seconds those that wait start, beside what runs."""
        slots, now_s = self._queue.slots, time.time()
        free = Room(len(slots.cores), len(slots.gpus), _or_inf(slots.memory_bytes), _or_inf(slots.most))
        running = []
        for entry in self._journal.in_state(JobState.RUNNING):
            stay = _stay(entry.spec.resources)
            free = free.plus(stay.room, -1)
            left_s = datetime.fromisoformat(entry.started_at or _now()).timestamp() + stay.lasts_s - now_s
            running.append(Stay(stay.room, max(left_s, 1.0)))  # one beyond its limit is being ended
        return starts_s(free, running, waiting)

    def _terms(self, entry: Entry) -> Terms:
        """Start a job as it was submitted."""
        taken = self._journal.taken(number_of(entry.note))
        index, submission = index_of(entry.note), taken.submission
        told = {} if index is None else dict.fromkeys(ARRAY_INDEX, index)
        return Terms(
            environment={**taken.environment, **told},
            warning=submission.checkpoint_signal,
            warning_s=submission.checkpoint_s,
            controlled=True,
            kill_after_s=KILL_S,
            word=str(self.folder / "runs" / word_name(entry.key)) if submission.held else None,
        )

    def _vanished(self, entry: Entry, interim: Outcome | None) -> Outcome:
        """Say how a job ended whose wrapper did not: it is not started again."""
        return vanished(self.folder, entry, interim, cancelled=self._journal.wished(_cancelled(entry.key)))

    def _end(self, entry: Entry) -> None:
        """Tell a running job to end; one that is being started will be told by who starts it."""
        if entry.state is JobState.RUNNING and entry.pid is not None and runs(self.folder, entry):
            psutil.Process(entry.pid).send_signal(signal.SIGTERM)

    def _limit(self, entry: Entry, walltime_s: float) -> bool:
        """Note a job's limit, first for its wrapper if it runs; ``False`` if its state has changed meanwhile."""
        resources = replace(entry.spec.resources, walltime_s=walltime_s)
        if entry.state is JobState.RUNNING:
            set_walltime(result_path(self.folder, entry), walltime_s)
        return self._journal.respecify(entry, replace(entry.spec, resources=resources))

    def _status(self, entry: Entry) -> Status:
        return status_of(self.folder, entry, self._journal.taken(number_of(entry.note)), self._expected_s)


def _completed(spec: JobSpec) -> JobSpec:
    """Return the job with what holds where it names nothing: one core a task, and the folder of who submits it."""
    resources = replace(spec.resources, cores_per_task=spec.resources.cores_per_task or 1)
    return replace(spec, resources=resources, workdir=str(Path(spec.workdir or ".").absolute()))


def _stay(asked: ResourceSpec) -> Stay:
    cores = (asked.cores_per_task or 0) * asked.tasks_per_node
    room = Room(cores, asked.gpus_per_node, asked.memory_bytes_per_node or 0)
    return Stay(room, _or_inf(asked.walltime_s))


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
    except (Refused, SchedulerUnreachable):
        raise
    except (LeadlineError, OSError) as error:
        raise otherwise(f"this machine's queue cannot be used: {error}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat()
