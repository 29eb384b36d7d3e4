"""This machine as a scheduler: a durable queue with slots and enforced limits, driven by its callers."""

import math
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

import psutil

from leadline.core.documents import to_json
from leadline.core.errors import LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.execution.clock import epoch_s, now_utc
from leadline.execution.launch import check_command, check_walltime
from leadline.execution.schedulers.attempt_files import last_log_line, read_tail, replace_link
from leadline.execution.schedulers.local.capacity import Capacity, CapacityUse, Slots, backfill_starts_s, or_infinite
from leadline.execution.schedulers.local.queue import LocalJobQueue, wrapper_is_alive
from leadline.execution.schedulers.local.submissions import (
    JobWithdrawn,
    LocalSubmissions,
    QueueEntry,
    StoredSubmission,
    log_path,
    output_link,
    result_path,
    unmeasured_outcome,
)
from leadline.execution.schedulers.port import (
    LivingJob,
    RequestRefused,
    SchedulerStatus,
    Submission,
    SubmissionText,
    SubmissionUncertain,
)
from leadline.execution.transport.port import LocalTransport, Transport, write_release_file
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome, set_walltime
from leadline.files.lock import file_lock
from leadline.files.private import make_private_folder

DEPTH = 100
"""Waiting jobs that are considered for a start at once."""


class LocalScheduler:
    """Runs jobs on this machine (implements ``Scheduler``). Journal, outcomes and output are in ``folder``.

    Any process of the user may open the folder. ``query`` also settles ended jobs and starts waiting ones, one process
    at a time. Running jobs reach their end or their limits without any such process. A job without a number of cores
    gets one per task, as in Slurm. It runs with the environment of its submission and is never started twice: if its
    wrapper vanishes, it ends as NODE_FAIL. With ``forget_other_hosts``, so do the jobs of a machine that is gone.
    """

    abreast = 1
    submits_once = True

    def __init__(self, folder: Path, slots: Slots, *, name: str = "local", forget_other_hosts: bool = False) -> None:
        self.name = name
        self.folder = folder.absolute()
        with _reachable():
            self._journal = LocalSubmissions(self.folder / "jobs.sqlite")
        self._queue = LocalJobQueue(self._journal, self.folder, slots, forget_other_hosts)
        self._version: tuple[int, int] | None = None
        self._expected_s: dict[str, float] = {}

    def close(self) -> None:
        """Close the journal; the jobs continue."""
        self._queue.close()
        self._journal.close()

    @staticmethod
    def render(submission: Submission) -> SubmissionText:
        """Return the entry in the queue, from which ``query`` starts the wrapper."""
        return SubmissionText((), to_json(_with_defaults(submission), indent=0))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of a job that this process watches; False after ``timeout_s``."""
        return self._queue.wait(timeout_s)

    def has_room(self, resources: ResourceSpec) -> bool:
        """True if such a job would start at once: no other waits, and its slots are free."""
        use = CapacityUse.of(_one_core_a_task(resources))
        with _reachable():
            return not self._journal.waiting() and self._starts_s([use]) == [0.0]

    def submit(self, submission: Submission) -> str:
        """Store the jobs, which the next query starts; a known key is not stored twice."""
        submission = _with_defaults(submission)
        spec = submission.spec
        for each in (spec, *submission.specs):
            check_command(each)
        if rejection := self._queue.slots.rejection_reason(spec.resources):
            raise RequestRefused(f"job {spec.name!r} cannot run on this machine: {rejection}")
        with _reachable(SubmissionUncertain):
            unknown_ids = [job_id for job_id in submission.after if not self._journal.states(job_id)]
            if unknown_ids:
                refusal = f"job {spec.name!r} depends on job {unknown_ids[0]}, which this machine does not have"
                raise RequestRefused(refusal)
            return self._journal.take(submission, os.environ, now_s=time.time())

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key -> id of the stored submissions."""
        with _reachable():
            return self._journal.ids(keys)

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Settle ended jobs, start waiting ones and return the states; an array's id means its elements."""
        with _reachable():
            self._advance()
            return {job_id: self._status(entry) for job_id, entry in self._journal.at(ids).items()}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return the final states in the journal."""
        with _reachable():
            entries = self._journal.at(ids)
            return {job_id: self._status(entry) for job_id, entry in entries.items() if entry.state.final}

    def living(self) -> Collection[LivingJob]:
        """Return the waiting and running jobs in the journal."""
        with _reachable():
            entries = (*self._journal.in_state(JobState.PENDING), *self._journal.in_state(JobState.RUNNING))
            taken = [(self._journal.taken(entry.submission_id).submission, entry) for entry in entries]
        return [LivingJob(submission.key, entry.note, entry.state, entry.spec) for submission, entry in taken]

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return the outcomes, interim or final, that these attempts' wrappers wrote after ``since_s``."""
        outcomes = {}
        with _reachable():
            for entry in self._journal.keyed(keys):
                path = result_path(self.folder, entry)
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime > since_s:
                        outcomes[entry.key] = read_outcome(path)
        return {key: outcome for key, outcome in outcomes.items() if outcome.state is not JobState.PENDING}

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the ends of the output of these attempts."""
        with _reachable():
            entries = list(self._journal.keyed(keys))
        paths = {entry.key: log_path(self.folder, entry) for entry in entries}
        return {key: read_tail(path, most_bytes) for key, path in paths.items() if path.exists()}

    def cancel(self, ids: Collection[str], *, waiting: bool = False) -> None:
        """Cancel jobs: a waiting one at once, a running one by SIGTERM and, after a delay, SIGKILL."""
        with _reachable():
            for entry in self._journal.at(ids).values():
                cancelled = unmeasured_outcome(entry, JobState.CANCELLED, "cancelled before it was started")
                if entry.state.final or self._journal.settle(entry.key, cancelled, if_waiting=True) or waiting:
                    continue
                self._journal.mark_cancelled(entry.key)
                self._end(self._journal.get(entry.key))

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the release files of held attempts."""
        make_private_folder(self.folder / "runs")
        for key in keys:
            write_release_file(LocalTransport(), PurePosixPath(self.folder, "runs"), key)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return the transport and the folder of a job."""
        return LocalTransport(), PurePosixPath(_workdir(spec))

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Change a job's limit, counted from its start; the wrapper of a running job reads it within seconds."""
        check_walltime(walltime_s)
        with _reachable():
            while True:
                open_entries = [entry for entry in self._journal.at([scheduler_id]).values() if not entry.state.final]
                if not open_entries:
                    raise RequestRefused(
                        f"the limit of job {scheduler_id} cannot be changed: it has ended or is unknown"
                    )
                changed = [self._limit(entry, walltime_s) for entry in open_entries]
                # A job that started or ended meanwhile gets the limit in the next round.
                if all(changed):
                    return

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return the latest start time of such a job (epoch); None behind a job without a limit."""
        spec = _with_defaults(submission).spec
        with _reachable():
            if self._queue.slots.rejection_reason(spec.resources):
                return None
            waiting = self._waiting()
            # Beyond DEPTH jobs the order is not computed, so no start can be predicted.
            if len(waiting) >= DEPTH or any(
                not state.final for dependency in submission.after for state in self._journal.states(dependency)
            ):
                return None
            requests = [*(entry.spec.resources for entry in waiting), spec.resources]
            start_s = self._starts_s([CapacityUse.of(request) for request in requests])[-1]
        return None if start_s == math.inf else time.time() + start_s

    def _advance(self) -> None:
        """Settle ended jobs and start waiting ones, unless another process does so or nothing changed."""
        with file_lock(self.folder / "lock", retry_after_s=()) as is_owner:
            if not is_owner:
                return
            self._queue.settle_ended()
            # Nothing was written since the last turn, so nothing can start or end.
            if self._version == self._journal.version():
                return
            self._queue.resume()
            # Before the waiting jobs are listed: a released submission may start at once.
            for number in self._journal.held_submissions():
                self._release(self._journal.taken(number))
            waiting = self._waiting()
            starts = self._starts_s([CapacityUse.of(entry.spec.resources) for entry in waiting])
            now_s = time.time()
            self._expected_s = {}
            for entry, start_s in zip(waiting, starts, strict=True):
                if start_s > 0.0:
                    self._expected_s[entry.key] = now_s + start_s
                else:
                    self._start(entry)
            self._version = self._journal.version()

    def _start(self, entry: QueueEntry) -> None:
        """Start a job; one that is cancelled meanwhile is terminated as soon as it has a process."""
        try:
            self._queue.start(entry)
        except JobWithdrawn:
            return
        submission = self._journal.taken(entry.submission_id).submission
        if (link := output_link(entry, submission)) is not None:
            replace_link(link, log_path(self.folder, entry))
        # The cancellation may have come between the listing and the start.
        if self._journal.is_cancelled(entry.key):
            self._end(self._journal.get(entry.key))

    def _release(self, stored: StoredSubmission) -> None:
        """Release a submission once its dependencies ended as required; cancel it if they never can."""
        states = {state for dependency in stored.submission.after for state in self._journal.states(dependency)}
        kind = stored.submission.after_kind
        failed = any(state.final and state is not JobState.COMPLETED for state in states)
        if {DependencyKind.OK: failed, DependencyKind.NOT_OK: states == {JobState.COMPLETED}}.get(kind):
            for entry in self._journal.at([str(stored.id)]).values():
                cancelled = unmeasured_outcome(entry, JobState.CANCELLED, "DependencyNeverSatisfied")
                self._journal.settle(entry.key, cancelled, if_waiting=True)
        elif not all(state.final for state in states):
            return
        self._journal.release(stored.id)

    def _waiting(self) -> list[QueueEntry]:
        """Return the first jobs that only wait for free slots, within the arrays' limits."""
        entries: list[QueueEntry] = []
        for number, waiting_count, running_count in self._journal.waiting():
            max_running = self._journal.taken(number).submission.most
            room = waiting_count if max_running is None else max_running - running_count
            if (take_count := min(waiting_count, DEPTH - len(entries), room)) > 0:
                entries += self._journal.waiting_of(number, take_count)
            if len(entries) >= DEPTH:
                break
        return entries

    def _starts_s(self, waiting: list[CapacityUse]) -> list[float]:
        """Return in how many seconds the waiting jobs start, given the running ones."""
        slots, now_s = self._queue.slots, time.time()
        free = Capacity(len(slots.cores), len(slots.gpus), or_infinite(slots.memory_bytes), or_infinite(slots.max_jobs))
        running = []
        for entry in self._journal.in_state(JobState.RUNNING):
            use = CapacityUse.of(entry.spec.resources)
            free = free.plus(use.capacity, -1)
            remaining_s = epoch_s(entry.started_at or now_utc()) + use.limit_s - now_s
            # A job past its limit is already being ended.
            running.append(CapacityUse(use.capacity, max(remaining_s, 1.0)))
        return backfill_starts_s(free, running, waiting)

    def _end(self, entry: QueueEntry) -> None:
        """Terminate a running job. If it is being started, the starter terminates it."""
        if entry.state is JobState.RUNNING and entry.pid is not None and wrapper_is_alive(self.folder, entry):
            psutil.Process(entry.pid).send_signal(signal.SIGTERM)

    def _limit(self, entry: QueueEntry, walltime_s: float) -> bool:
        """Store a job's limit, first for its wrapper if it runs; False if its state has changed."""
        resources = replace(entry.spec.resources, walltime_s=walltime_s)
        if entry.state is JobState.RUNNING:
            # The wrapper first: a limit that only the journal knows would not be enforced.
            set_walltime(result_path(self.folder, entry), walltime_s)
        return self._journal.respecify(entry, replace(entry.spec, resources=resources))

    def _status(self, entry: QueueEntry) -> SchedulerStatus:
        stored = self._journal.taken(entry.submission_id)
        common = SchedulerStatus(
            entry.state, submitted_s=stored.made_s, walltime_s=entry.spec.resources.walltime_s, nodes=1
        )
        if entry.state is JobState.PENDING:
            start_s = self._expected_s.get(entry.key, math.inf)
            reason = _why_waiting(entry, stored, self._expected_s)
            return replace(common, reason=reason, expected_start_s=start_s if start_s < math.inf else None)
        was_started = entry.pid is not None
        started_s = epoch_s(entry.started_at) if was_started and entry.started_at else None
        common = replace(common, started_s=started_s, node=entry.host)
        return common if entry.outcome is None else _final_status(self.folder, entry, entry.outcome, common)


def _final_status(folder: Path, entry: QueueEntry, outcome: JobOutcome, common: SchedulerStatus) -> SchedulerStatus:
    elapsed, memory = (outcome.measured.get(name) for name in ("elapsed_s", "host_memory_bytes"))
    last_words = "" if entry.state is JobState.COMPLETED else last_log_line(log_path(folder, entry))
    return replace(
        common,
        reason=outcome.reason,
        ended_s=epoch_s(outcome.ended_at) if outcome.ended_at else None,
        elapsed_s=elapsed.value if elapsed else None,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        memory_bytes=round(memory.value) if memory else None,
        evidence=(last_words,) if last_words else (),
    )


def _why_waiting(entry: QueueEntry, stored: StoredSubmission, expected: Mapping[str, float]) -> str:
    """Return why a job waits, as Slurm's reason code."""
    if entry.key in expected:
        return "Resources" if entry.key == next(iter(expected)) else "Priority"
    if stored.submission.after:
        return "Dependency"
    return "JobArrayTaskLimit" if stored.submission.most is not None else "Priority"


def _with_defaults(submission: Submission) -> Submission:
    """Return the submission with defaults: one core per task, and the folder of the submitter."""
    spec, *specs = (
        replace(spec, resources=_one_core_a_task(spec.resources), workdir=_workdir(spec))
        for spec in (submission.spec, *submission.specs)
    )
    return replace(submission, spec=spec, specs=tuple(specs))


def _one_core_a_task(resources: ResourceSpec) -> ResourceSpec:
    return replace(resources, cores_per_task=resources.cores_per_task or 1)


def _workdir(spec: JobSpec) -> str:
    return str(Path(spec.workdir or ".").absolute())


@contextmanager
def _reachable(error_type: type[SchedulerUnreachable] = SchedulerUnreachable) -> Iterator[None]:
    """Turn errors of the folder into the scheduler's own error."""
    try:
        yield
    except (RequestRefused, SchedulerUnreachable):
        raise
    except (LeadlineError, OSError) as error:
        raise error_type(f"this machine's queue cannot be used: {error}") from error
