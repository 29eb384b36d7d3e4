"""Run the jobs of the local scheduler, each under a measuring wrapper that outlives this process."""

import os
import select
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.execution.launch import job_environment, wrapper_command
from leadline.execution.processes import run_process, start_process
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, last_log_line
from leadline.execution.schedulers.local.capacity import SlotAssignment, Slots
from leadline.execution.schedulers.local.submissions import (
    LocalSubmissions,
    QueueEntry,
    log_path,
    result_path,
    unmeasured_outcome,
)
from leadline.execution.wrapper.command import GATE_OPEN
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome, release_file_name
from leadline.files.private import make_private_folder, open_private

MARK_VARIABLE = "LEADLINE_RUN"
"""Environment variable of the wrapper and all its descendants. Its value, the outcome file, names the attempt."""
ARRAY_INDEX = ("LEADLINE_INDEX", "SLURM_ARRAY_TASK_ID")
"""Variables with the index of an array element. Scripts written for Slurm read the second one."""
KILL_DELAY_S = 30.0
"""Time that a job has between SIGTERM and SIGKILL; Slurm's KillWait."""


@dataclass(slots=True)
class _Alive:
    """A running wrapper: its entry, and a descriptor that becomes readable when it ends."""

    entry: QueueEntry
    pidfd: int
    child: "subprocess.Popen[bytes] | None"


@dataclass(slots=True)
class LocalJobQueue:
    """Runs jobs in parallel as ``slots`` allow. Files go to ``folder``/runs.

    A job whose command never began is requeued; another one whose wrapper vanished ends with its last interim outcome.
    """

    journal: LocalSubmissions
    folder: Path
    slots: Slots
    forget_other_hosts: bool = False
    _alive: dict[str, _Alive] = field(default_factory=dict)

    def resume(self) -> None:
        """Continue the work of an earlier process, as the journal describes it.

        Raises:
            LeadlineError: a job was started on another machine, so its state is unknown here.
        """
        make_private_folder(self.folder / "runs")
        running = {entry.key: entry for entry in self.journal.in_state(JobState.RUNNING)}
        attempts = {key: (entry.attempt, entry.pid) for key, entry in running.items()}
        watched = {key: (alive.entry.attempt, alive.entry.pid) for key, alive in self._alive.items()}
        for key in [key for key, attempt in watched.items() if attempts.get(key) != attempt]:
            self._unwatch(key)
        for key in running.keys() - self._alive.keys():
            self._adopt(running[key])

    def _adopt(self, entry: QueueEntry) -> None:
        """Watch the running wrapper of a job that another process started, or settle the job."""
        outcome = _outcome(result_path(self.folder, entry))
        has_ended = outcome is not None and outcome.state.final
        elsewhere = entry.host != socket.gethostname() and not has_ended
        # Starting it again here could run it twice.
        if elsewhere and not self.forget_other_hosts:
            raise LeadlineError(
                f"job {entry.key} was started on {entry.host}, and its state is only known there: "
                "resume there, or stop the campaign here first if that machine is gone"
            )
        if not elsewhere and wrapper_is_alive(self.folder, entry) and self._watch(entry, None):
            self.slots.assignments[entry.key] = _assignment(entry.place)
        else:
            self._settle(entry)

    def start(self, entry: QueueEntry) -> None:
        """Start a job if it fits.

        Raises:
            InvalidInput: it requests more than the slots ever have.
        """
        resources = entry.spec.resources
        if rejection := self.slots.rejection_reason(resources):
            raise InvalidInput(f"job {entry.key} cannot run on this machine: {rejection}")
        assignment = self.slots.take(entry.key, resources)
        if assignment is None:
            return
        try:
            self._start(entry, assignment)
        except BaseException:
            del self.slots.assignments[entry.key]
            raise

    def settle_ended(self) -> None:
        """Settle the jobs whose wrappers ended."""
        for key in self._ended(0.0):
            entry = self._alive[key].entry
            self._unwatch(key)
            self._settle(entry)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of a wrapper, which ``settle_ended`` settles; False after ``timeout_s``."""
        return bool(self._ended(timeout_s))

    def _ended(self, timeout_s: float) -> list[str]:
        """Return the jobs whose wrappers ended, after ``timeout_s`` at the latest."""
        poll = select.poll()
        by_fd = {alive.pidfd: key for key, alive in self._alive.items()}
        for pidfd in by_fd:
            poll.register(pidfd, select.POLLIN)
        return [by_fd[pidfd] for pidfd, _ in poll.poll(1000 * timeout_s)]

    def close(self) -> None:
        """Stop watching; running jobs continue."""
        for alive in self._alive.values():
            os.close(alive.pidfd)
            if alive.child is not None and alive.child.poll() is None:
                # Popen's destructor warns about a child that still runs.
                alive.child.returncode = 0
        self._alive.clear()

    def _start(self, entry: QueueEntry, assignment: SlotAssignment) -> None:
        """Start a wrapper that begins its command only after its process is in the journal."""
        place = f"{','.join(map(str, assignment.cores))}/{','.join(assignment.gpus)}/{assignment.memory_bytes}"
        entry_started = self.journal.begin(entry.key, host=socket.gethostname(), place=place)
        result, stored = result_path(self.folder, entry_started), self.journal.taken(entry.submission_id)
        index = {} if entry.index is None else dict.fromkeys(ARRAY_INDEX, entry.index)
        env = stored.environment | index | stored.submission.restart_variables | job_environment(entry_started.spec)
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(assignment.gpus), MARK_VARIABLE: str(result)}
        options = stored.submission.wrapper_options(str(self.folder / RUNS_FOLDER / release_file_name(entry.key)))
        options |= {"--controlled": True, "--kill-after-s": KILL_DELAY_S}
        options["--cpus"] = ",".join(map(str, assignment.cores)) or None
        readable, writable = os.pipe()
        gate, opener = os.fdopen(readable, "rb", buffering=0), os.fdopen(writable, "wb", buffering=0)
        log_file = log_path(self.folder, entry_started)
        # Path.open takes no opener.
        with gate, opener, open(log_file, "ab", opener=open_private) as log:
            child = start_process(
                wrapper_command(entry_started.spec, result, {**options, "--gate": gate.fileno()}),
                env=env, stdin=subprocess.DEVNULL, stdout=log.fileno(), stderr=log.fileno(), own_session=True,
                pass_fds=(gate.fileno(),),
            )  # fmt: skip
            try:
                started = self.journal.attach(entry.key, child.pid, psutil.Process(child.pid).create_time())
            except BaseException:
                opener.close()
                child.wait()
                raise
            # Only now may the command begin: whoever restarts can find its process.
            opener.write(GATE_OPEN)
        self._watch(started, child)

    def _watch(self, entry: QueueEntry, child: "subprocess.Popen[bytes] | None") -> bool:
        """Watch a wrapper; False if it has just ended."""
        try:
            pidfd = os.pidfd_open(entry.pid or 0)
        except ProcessLookupError:
            return False
        self._alive[entry.key] = _Alive(entry, pidfd, child)
        return True

    def _unwatch(self, key: str) -> None:
        """Stop watching a wrapper and free its slots."""
        alive = self._alive.pop(key)
        os.close(alive.pidfd)
        if alive.child is not None:
            alive.child.wait()
        self.slots.assignments.pop(key, None)

    def _settle(self, entry: QueueEntry) -> None:
        """Settle or requeue a job whose wrapper is gone, and kill the processes that it left."""
        result = result_path(self.folder, entry)
        outcome = _outcome(result)
        kill_leftovers(str(result))
        was_started = entry.pid is not None and (outcome is None or outcome.state is not JobState.PENDING)
        if outcome is not None and outcome.state.final:
            self.journal.settle(entry.key, outcome)
        elif was_started:
            self.journal.settle(entry.key, self._vanished_outcome(entry, outcome))
        else:
            self.journal.requeue(entry.key)

    def _vanished_outcome(self, entry: QueueEntry, interim: JobOutcome | None) -> JobOutcome:
        """Return the outcome of a job whose wrapper wrote none; measured amounts are lower bounds.

        The job is not started again.
        """
        cancelled = self.journal.is_cancelled(entry.key)
        state = JobState.CANCELLED if cancelled else JobState.NODE_FAIL
        last_words = last_log_line(log_path(self.folder, entry))
        reason = "cancelled" if cancelled else f"its wrapper was killed{f': {last_words}' if last_words else ''}"
        ended = unmeasured_outcome(entry, state, reason)
        return ended if interim is None else replace(interim, state=state, ended_at=ended.ended_at, reason=reason)


def wrapper_is_alive(folder: Path, entry: QueueEntry) -> bool:
    """True if the wrapper of a job lives on this machine.

    It is recognized by its mark, because process start times shift when the clock is set. A wrapper whose process is
    not in the journal never started its command.
    """
    if entry.pid is None:
        return False
    with suppress(psutil.NoSuchProcess):
        # Process ids are reused, so the id alone proves nothing.
        return _is_marked(psutil.Process(entry.pid), str(result_path(folder, entry)))
    return False


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the living processes of an attempt."""
    return [process for process in psutil.process_iter() if _is_marked(process, mark)]


def _is_marked(process: psutil.Process, mark: str) -> bool:
    """True if a process is alive and belongs to an attempt."""
    try:
        return bool(process.environ().get(MARK_VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):
        return False


def kill_leftovers(mark: str) -> None:
    """Kill the remaining processes of an attempt whose wrapper is gone, until none is left."""
    for _ in range(50):
        processes = marked_processes(mark)
        if not processes:
            return
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # New children may appear between listing and killing, so the loop looks again.
        psutil.wait_procs(processes, timeout=0.1)


def machine_slots() -> Slots:
    """Return all cores, GPUs and memory that this process may use."""
    # A site or user may have given this process only some of the GPUs.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(_gpu_count())))
    gpu_names = tuple(name.strip() for name in visible.split(",") if name.strip())
    return Slots(tuple(sorted(os.sched_getaffinity(0))), gpu_names, psutil.virtual_memory().total)


def _gpu_count() -> int:
    """Return the number of GPUs that nvidia-smi lists; 0 without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return 0
    answer = run_process(["nvidia-smi", "-L"], timeout_s=20.0)
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0


def _outcome(result: Path) -> JobOutcome | None:
    return read_outcome(result) if result.exists() else None


def _assignment(place: str | None) -> SlotAssignment:
    cores, gpus, memory = (place or "//0").split("/")
    return SlotAssignment(
        tuple(int(core) for core in cores.split(",") if core), tuple(gpu for gpu in gpus.split(",") if gpu), int(memory)
    )
