"""Run the jobs of a journal on this machine, each under a measuring wrapper that outlives this process."""

import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.execution.launch import LaunchOptions, job_environment, wrapper_command
from leadline.execution.processes import run_process, start_process
from leadline.execution.schedulers.job_queue import (
    MAX_LOSSES,
    QueueEntry,
    QueueJournal,
    last_log_line,
    log_path,
    result_path,
    unmeasured_outcome,
)
from leadline.execution.schedulers.local.capacity import SlotAssignment, Slots
from leadline.execution.wrapper.command import GATE_OPEN
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome

MARK_VARIABLE = "LEADLINE_RUN"
"""Variable of the wrapper and of everything it starts; its value, the outcome's file, names the attempt."""
KILL_DELAY_S = 30.0
"""How long a job that was told to end may take; Slurm's KillWait."""


@dataclass(slots=True)
class _Alive:
    """A wrapper that runs: its entry, and a descriptor that becomes readable when it ends."""

    entry: QueueEntry
    pidfd: int
    child: "subprocess.Popen[bytes] | None"


class LocalJobQueue:
    """Runs jobs side by side as ``slots`` allow (implements ``JobQueue``); files go to ``folder``/runs.

    ``terms`` says under which terms a job is started. A job whose wrapper vanished is put back, or ended as
    ``vanished`` says of it and its last interim outcome.
    """

    def __init__(
        self,
        journal: QueueJournal,
        folder: Path,
        slots: Slots,
        *,
        launch_options: Callable[[QueueEntry], LaunchOptions] = lambda _: LaunchOptions(),
        vanished: Callable[[QueueEntry, JobOutcome | None], JobOutcome] | None = None,
    ) -> None:
        self.journal = journal
        self.folder = folder
        self.slots = slots
        self.terms = launch_options
        self.vanished = vanished
        self.ending = False
        self._alive: dict[str, _Alive] = {}
        self._done: list[QueueEntry] = []

    @property
    def running(self) -> Mapping[str, QueueEntry]:
        """The jobs whose wrappers run, by key."""
        return {key: one.entry for key, one in self._alive.items()}

    def resume(self, *, forget_other_hosts: bool = False) -> None:
        """Take up what another process left; the journal says what became of it.

        Args:
            forget_other_hosts: put back what was started on another machine, which is gone.

        Raises:
            LeadlineError: a job was started on another machine, where alone it can be told whether it runs, or was
                given to a scheduler.
        """
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        running = {entry.key: entry for entry in self.journal.in_state(JobState.RUNNING)}
        for key in [key for key, one in self._alive.items() if not _same(one.entry, running.get(key))]:
            self._let_go(key)
        for key in running.keys() - self._alive.keys():
            self._take_up(running[key], forget_other_hosts=forget_other_hosts)
        self._done.clear()

    def _take_up(self, entry: QueueEntry, *, forget_other_hosts: bool) -> None:
        """Watch what lives of a job that another process started, or settle what it left."""
        if entry.host is None:
            raise LeadlineError(f"job {entry.key} was given to Slurm: resume the campaign there, or stop it first")
        elsewhere = entry.host != socket.gethostname() and not self._has_ended(entry)
        if elsewhere and not forget_other_hosts:
            raise LeadlineError(
                f"job {entry.key} was started on {entry.host}, and only there can be told whether it still runs: "
                "resume there, or stop the campaign here first, if that machine is gone"
            )
        if not elsewhere and wrapper_is_alive(self.folder, entry) and self._watch(entry, None):
            self.slots.hold(entry.key, _assignment(entry.place))
        else:
            self._settle(entry, lost=False)

    def start(self, candidates: Iterable[QueueEntry]) -> int:
        """Start candidates in their order until one finds no room; return how many were started.

        Raises:
            InvalidInput: a job asks for more than the slots ever have.
        """
        started = 0
        for entry in candidates:
            asked = entry.spec.resources
            if never := self.slots.rejection_reason(asked):
                raise InvalidInput(f"job {entry.key} cannot run on this machine: {never}")
            given = self.slots.take(entry.key, asked)
            if given is None:
                break
            try:
                self._start(entry, given)
            except BaseException:
                self.slots.release(entry.key)
                raise
            started += 1
        return started

    def wait(self, timeout_s: float) -> list[QueueEntry]:
        """Return the jobs that ended, after ``timeout_s`` at the latest."""
        if self._alive and not self._done:
            poll = select.poll()
            by_fd = {one.pidfd: key for key, one in self._alive.items()}
            for pidfd in by_fd:
                poll.register(pidfd, select.POLLIN)
            for pidfd, _ in poll.poll(1000 * timeout_s):
                self._ended(by_fd[pidfd])
        elif not self._done:
            time.sleep(timeout_s)
        done, self._done = self._done, []
        return done

    def end(self) -> None:
        """Tell every running job to end; each is put back, and comes out of ``wait`` so."""
        self.ending = True
        for one in self._alive.values():
            if one.entry.pid is not None:
                _signal_wrapper(one.entry.pid)

    def close(self) -> None:
        """Follow nothing any longer; what runs goes on."""
        for one in self._alive.values():
            os.close(one.pidfd)
            if one.child is not None and one.child.poll() is None:
                one.child.returncode = 0  # else its destructor complains that it runs on
        self._alive.clear()

    def _start(self, entry: QueueEntry, given: SlotAssignment) -> None:
        """Start a wrapper, and let it begin only once its process is noted: it is never started unknown."""
        begun = self.journal.begin(entry.key, host=socket.gethostname(), place=_place(given))
        result, terms = result_path(self.folder, begun), self.terms(begun)
        env = {**terms.environment, **job_environment(begun.spec), "CUDA_VISIBLE_DEVICES": ",".join(given.gpus)}
        gate, opener = (
            os.fdopen(number, mode, buffering=0) for number, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        with gate, opener, log_path(self.folder, begun).open("ab") as log, Path(os.devnull).open("rb") as nothing:
            child = start_process(
                wrapper_command(begun.spec, result, cpus=given.cores, options=terms, gate=gate.fileno()),
                env={**env, MARK_VARIABLE: str(result)}, stdin=nothing.fileno(), stdout=log.fileno(), stderr=log.fileno(),
                own_session=True, pass_fds=(gate.fileno(),),
            )  # fmt: skip
            try:
                started = self.journal.attach(entry.key, child.pid, psutil.Process(child.pid).create_time())
            except BaseException:
                opener.close()
                child.wait()
                raise
            opener.write(GATE_OPEN)
        self._watch(started, child)

    def _watch(self, entry: QueueEntry, child: "subprocess.Popen[bytes] | None") -> bool:
        """Follow a wrapper; ``False`` if it has just ended."""
        try:
            pidfd = os.pidfd_open(entry.pid or 0)
        except ProcessLookupError:
            return False
        self._alive[entry.key] = _Alive(entry, pidfd, child)
        return True

    def _let_go(self, key: str) -> None:
        """Follow a wrapper no longer."""
        one = self._alive.pop(key)
        os.close(one.pidfd)
        if one.child is not None:
            one.child.wait()
        self.slots.release(key)

    def _ended(self, key: str) -> None:
        entry = self._alive[key].entry
        self._let_go(key)
        self._settle(entry, lost=not self.ending)

    def _has_ended(self, entry: QueueEntry) -> bool:
        outcome = _outcome(result_path(self.folder, entry))
        return outcome is not None and outcome.state.final

    def _settle(self, entry: QueueEntry, *, lost: bool) -> None:
        """Note how a job ended whose wrapper is gone, or put it back; what the wrapper left running is ended."""
        result = result_path(self.folder, entry)
        outcome = _outcome(result)
        end_leftovers(str(result))
        spent = outcome.measured.get("elapsed_s") if outcome else None
        begun = entry.pid is not None and (outcome is None or outcome.state is not JobState.PENDING)
        if outcome is not None and outcome.state.final and not (self.ending and outcome.state is JobState.CANCELLED):
            self._done.append(self.journal.settle(entry.key, outcome))
        elif self.vanished is not None and begun:
            self._done.append(self.journal.settle(entry.key, self.vanished(entry, outcome)))
        elif lost and entry.losses + 1 >= MAX_LOSSES:
            said = last_log_line(log_path(self.folder, entry)) or "it wrote no result"
            reason = f"its wrapper was lost {MAX_LOSSES} times: {said}"
            self._done.append(self.journal.settle(entry.key, unmeasured_outcome(entry, JobState.FAILED, reason)))
        else:
            self._done.append(self.journal.requeue(entry.key, lost_s=spent.value if spent else 0.0, lost=lost))


def wrapper_is_alive(folder: Path, entry: QueueEntry) -> bool:
    """Whether a job's wrapper lives on this machine; one whose process was not noted never began.

    It is known by its mark, for a start time by the clock moves when the clock is set.
    """
    if entry.pid is None:
        return False
    process = _process(entry.pid)
    try:
        return process is not None and process.environ().get(MARK_VARIABLE) == str(result_path(folder, entry))
    except (psutil.Error, OSError):
        return False


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the living processes of an attempt."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK_VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def end_leftovers(mark: str) -> None:
    """Kill what is left of an attempt whose wrapper is gone, until nothing is."""
    for _ in range(50):
        left = marked_processes(mark)
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=0.1)


def machine_slots(*, gpus: int | None = None) -> Slots:
    """Return all that this process may use here; ``gpus`` says how many GPUs there are, without asking."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        found = tuple(one.strip() for one in named.split(",") if one.strip())
    else:
        found = tuple(str(number) for number in range(gpus if gpus is not None else _gpu_count()))
    return Slots(tuple(sorted(os.sched_getaffinity(0))), found, psutil.virtual_memory().total)


def _gpu_count() -> int:
    """Count the GPUs that nvidia-smi lists; none where there is no such program."""
    if shutil.which("nvidia-smi") is None:
        return 0
    answer = run_process(["nvidia-smi", "-L"], timeout_s=20.0)
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0


def _same(mine: QueueEntry, noted: QueueEntry | None) -> bool:
    return noted is not None and (mine.attempt, mine.pid) == (noted.attempt, noted.pid)


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def _signal_wrapper(pid: int) -> None:
    process = _process(pid)
    if process is not None:
        process.terminate()


def _outcome(result: Path) -> JobOutcome | None:
    return read_outcome(result) if result.exists() else None


def _place(given: SlotAssignment) -> str:
    return f"{','.join(map(str, given.cores))}/{','.join(given.gpus)}/{given.memory_bytes}"


def _assignment(place: str | None) -> SlotAssignment:
    cores, gpus, memory = (place or "//0").split("/")
    return SlotAssignment(
        tuple(int(core) for core in cores.split(",") if core), tuple(gpu for gpu in gpus.split(",") if gpu), int(memory)
    )
