"""Hold one command to its limits and measure it until it ends."""

import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.runs import Measurement
from leadline.core.units import format_bytes, format_duration
from leadline.execution.processes import run_process, start_process
from leadline.execution.wrapper.cgroup import Cgroup, memory_cgroup
from leadline.execution.wrapper.instruments import Instruments, progress_measurements
from leadline.execution.wrapper.node import describe_node
from leadline.execution.wrapper.outcome import JobOutcome, read_walltime_s
from leadline.execution.wrapper.sampling import TreeSampler, adopt_orphans

GRACE_S = 5.0
"""How long the tree may take to end after SIGTERM before SIGKILL."""
FIRST_INTERIM_S, INTERIM_S = 5.0, 30.0
"""How often an interim result is written, for who follows the job and for the case that the wrapper is killed; of a
young job after half its age, so that a request that is much too small is seen early."""
PROBE_DONE = "the probe has seen enough of it"
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
WARNING = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class WrapperLimits:
    """What the wrapper enforces, and ``site_walltime_s``: what the scheduler enforces.

    ``cpus`` are the only cores that the command may use, where they are given; the wrapper may use others.
    ``warning`` is the number of a signal that is sent ``warning_s`` before the walltime to the processes that listen
    to it, but not in the first half. ``control`` is a file that may set another walltime while the command runs.
    ``kill_after_s`` is how long after a SIGTERM what still runs is killed (``None``: whoever sent it sees to that).
    ``since_s`` is how much of all walltimes was over when the command was started.
    """

    walltime_s: float | None = None
    memory_bytes: int | None = None
    site_walltime_s: float | None = None
    cpus: tuple[int, ...] = ()
    warning: int | None = None
    warning_s: float = 0.0
    control: Path | None = None
    kill_after_s: float | None = None
    since_s: float = 0.0


def supervise(
    argv: Sequence[str],
    limits: WrapperLimits,
    *,
    write: Callable[[JobOutcome], None],
    workdir: Path | None = None,
    instruments: Instruments | None = None,
) -> JobOutcome:
    """Run ``argv`` on this process's streams to its end; ``write`` gets interim outcomes and the last one.

    The command's streams and exit code are its own, and its environment but for what ``instruments`` need; signals
    sent to this process reach it.

    Raises:
        InvalidInput: the command cannot be started; the outcome that says so was written.
    """
    adopt_orphans()
    began = JobOutcome(JobState.RUNNING, _now(), socket.gethostname(), tuple(argv), node=describe_node())
    with memory_cgroup(limits.memory_bytes) as cgroup:
        watch = _Watch(began, limits, cgroup, cgroup.oom_kills(), time.monotonic(), instruments)
        handlers = {sign: signal.signal(sign, watch.on_signal) for sign in (*ENDING, *WARNING)}
        try:
            with _pinned(limits.cpus), cgroup.inside():
                watch.child = start_process(argv, env=watch.environment(), cwd=workdir, own_group=not os.isatty(0))
            watch.deliver()
            usage = watch.follow(write)
        except InvalidInput as error:
            write(replace(began, state=JobState.FAILED, ended_at=_now(), exit_code=127, reason=str(error)))
            raise
        finally:
            for sign, handler in handlers.items():
                signal.signal(sign, handler)
        ended = watch.ended(usage)
    write(ended)
    return ended


@dataclass(slots=True)
class _Watch:
    """The life of one child."""

    began: JobOutcome
    limits: WrapperLimits
    cgroup: Cgroup
    oom_kills: int
    start_s: float
    instruments: Instruments | None = None
    child: "subprocess.Popen[bytes] | None" = None
    sampler: TreeSampler = field(default_factory=lambda: TreeSampler(run_process))
    cut: JobState | None = None
    reason: str = ""
    kill_at_s: float | None = None
    news: bool = False
    warned: bool = False
    heard: bool = False
    walltime_s: float | None = field(init=False)
    pending: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.walltime_s = self.limits.walltime_s

    def environment(self) -> dict[str, str]:
        """Return what is added to the command's environment."""
        return self.instruments.environment() if self.instruments else {}

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Remember a signal and pass it on."""
        self.pending.append(number)
        self.deliver()

    def deliver(self) -> None:
        """Send what came to the child; a warning only to who listens, for by default a process would die of it."""
        if self.child is None:
            return
        while self.pending:
            number = self.pending.pop(0)
            if number in ENDING:
                self.cut = self.cut or self._ended_by_site()
                self.reason = self.reason or f"ended by {signal.Signals(number).name}"
                self._send(number)
                if number == signal.SIGTERM and self.limits.kill_after_s is not None and self.kill_at_s is None:
                    self.kill_at_s = time.monotonic() + self.limits.kill_after_s
            else:
                self.news = True
                self._warn(number)

    def follow(self, write: Callable[[JobOutcome], None]) -> tuple[int, float]:
        """Sample and enforce until the child ends; return its wait status and the CPU seconds of its rusage."""
        child = self.child
        if child is None:
            raise RuntimeError("there is no child to follow")
        ending = os.pidfd_open(child.pid)
        poll = select.poll()
        poll.register(ending, select.POLLIN)
        written_s = time.monotonic()
        try:
            while True:
                self.sampler.sample()
                self._enforce()
                if self.news or time.monotonic() - written_s > interim_wait_s(self._elapsed_s()):
                    self.news, written_s = False, time.monotonic()
                    write(replace(self.began, pid=child.pid, **self._seen()))
                if poll.poll(1000 * self._wait_s()):
                    break
        finally:
            os.close(ending)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.sampler.saw_peak(usage.ru_maxrss * 1024)
        if self.instruments is not None:
            self.instruments.finish()
        self._reap()
        return child.returncode, usage.ru_utime + usage.ru_stime

    def ended(self, usage: tuple[int, float]) -> JobOutcome:
        """Return the last outcome: why it ended and all figures."""
        code, cpu_s = usage
        state, reason = self.cut, self.reason
        if state is None and self._killed_for_memory() and (code != 0 or self.cgroup.made):
            state, reason = JobState.OUT_OF_MEMORY, self._why_killed()
        if state is None:
            state = JobState.COMPLETED if code == 0 else JobState.FAILED
        return replace(
            self.began,
            state=state,
            pid=self.child.pid if self.child else None,
            ended_at=_now(),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            reason=reason,
            **self._seen(cpu_s),
        )

    def _ended_by_site(self) -> JobState:
        """Tell the scheduler's limit from a cancellation by the clock; schedulers are late, never early."""
        site = self.limits.site_walltime_s
        late = site is not None and self._used_s() >= site - 1.0
        return JobState.TIMEOUT if late else JobState.CANCELLED

    def _enforce(self) -> None:
        limits = self.limits
        self._read_control()
        if self.kill_at_s is not None:
            if time.monotonic() >= self.kill_at_s:
                self._send_tree(signal.SIGKILL)
            return
        if self.instruments is not None and self.instruments.poll():
            self._cut(JobState.CANCELLED, PROBE_DONE)
            return
        if limits.warning is not None and self._used_s() >= self._warning_due_s():
            self._warn(limits.warning)
        if self.walltime_s is not None and self._used_s() >= self.walltime_s:
            self._cut(JobState.TIMEOUT, f"longer than the walltime of {format_duration(self.walltime_s)}")
        elif self.cgroup.made and self._killed_for_memory():
            self._cut(JobState.OUT_OF_MEMORY, self._why_killed())
        elif limits.memory_bytes is not None and self.sampler.memory_bytes > limits.memory_bytes:
            used = format_bytes(self.sampler.memory_bytes)
            self._cut(
                JobState.OUT_OF_MEMORY, f"used {used}, more than the {format_bytes(limits.memory_bytes)} asked for"
            )

    def _read_control(self) -> None:
        """Take over a walltime that was asked for meanwhile; a warning comes before that one too."""
        asked = None if self.limits.control is None else read_walltime_s(self.limits.control)
        if asked is not None and asked != self.walltime_s:
            self.walltime_s, self.warned = asked, False

    def _warning_due_s(self) -> float:
        """Return when the warning is due, counted from the start; never, once it was heard."""
        if self.walltime_s is None or self.warned:
            return math.inf
        return max(self.walltime_s - self.limits.warning_s, self.walltime_s / 2)

    def _warn(self, number: int) -> None:
        """Send a warning to every process of the tree that listens."""
        for process in psutil.Process().children(recursive=True):
            if _catches(process.pid, number):
                self.warned = self.heard = self.news = True
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def _killed_for_memory(self) -> bool:
        return self.cgroup.oom_kills() > self.oom_kills

    def _why_killed(self) -> str:
        """Say what the kernel did; at the job's own limit if the group is its own."""
        if self.cgroup.made is None or self.limits.memory_bytes is None:
            return "the kernel killed a process of the job for memory"
        most = format_bytes(self.limits.memory_bytes)
        return f"the kernel killed a process that would use more than the {most} asked for"

    def _cut(self, state: JobState, reason: str) -> None:
        self.cut, self.reason = self.cut or state, reason
        self.kill_at_s = time.monotonic() + GRACE_S
        self._send_tree(signal.SIGTERM)

    def _wait_s(self) -> float:
        """Wait for the next sample, but not past a limit."""
        wait = self.sampler.next_interval_s(self._elapsed_s())
        if self.kill_at_s is not None:
            return max(min(wait, self.kill_at_s - time.monotonic()), 0.01)
        for due_s in (self.walltime_s, self._warning_due_s() if self.limits.warning else None):
            if due_s is not None and due_s > self._used_s():
                wait = min(wait, due_s - self._used_s() + 0.001)
        return wait

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def _used_s(self) -> float:
        """Return how much of its walltimes is over."""
        return self._elapsed_s() + self.limits.since_s

    def _send(self, number: int) -> None:
        """Signal the child's group, or the child alone where the terminal signals the group itself."""
        if self.child is None:
            return
        try:
            if os.getpgid(self.child.pid) == self.child.pid:
                os.killpg(self.child.pid, number)
            else:
                os.kill(self.child.pid, number)
        except ProcessLookupError:
            self.reason = self.reason or "already ended when it was signalled"

    def _send_tree(self, number: int) -> None:
        """Signal every process of the tree, those that left the child's group included."""
        for process in psutil.Process().children(recursive=True):
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def _reap(self) -> None:
        """Let go of adopted processes that ended; after a limit, end those that are left."""
        flags = os.WNOHANG
        if self.kill_at_s is not None:
            self._send_tree(signal.SIGKILL)
            flags = 0
        with suppress(ChildProcessError):
            while os.waitpid(-1, flags)[0]:
                pass

    def _seen(self, cpu_s: float | None = None) -> dict[str, Any]:
        """Return the fields of an outcome that hold what was measured and what the job itself has shown."""
        progress = self.instruments.progress() if self.instruments else None
        seen = {**self._figures(cpu_s), **progress_measurements(progress)}
        return {"measured": seen, "progress": progress, "warned": self.heard}

    def _figures(self, cpu_s: float | None = None) -> dict[str, Measurement]:
        sampler, interval = self.sampler, self.sampler.longest_interval_s
        figures = {
            "elapsed_s": Measurement(self._elapsed_s(), "s", "monotonic clock around the command"),
            "host_memory_bytes": Measurement(sampler.peak_memory_bytes, "bytes", sampler.memory_method, interval),
            "processes": Measurement(sampler.processes, "", "most processes in the tree", interval),
            "read_bytes": Measurement(sampler.read_bytes, "bytes", "/proc/PID/io over the tree", interval),
            "written_bytes": Measurement(sampler.written_bytes, "bytes", "/proc/PID/io over the tree", interval),
        }
        if cpu_s is None or sampler.cpu_s > cpu_s:
            figures["cpu_s"] = Measurement(sampler.cpu_s, "s", "CPU times over the process tree", interval)
        else:
            figures["cpu_s"] = Measurement(cpu_s, "s", "rusage of the command and the children it waited for")
        if (peak := self.cgroup.peak_bytes()) is not None:
            how = "peak of the control group, page cache and all else in it included"
            figures["cgroup_memory_bytes"] = Measurement(peak, "bytes", how)
        if (gpu := sampler.peak_gpu_memory_bytes) is not None:
            how = "NVML through nvidia-smi, summed over the process tree"
            figures["gpu_memory_bytes"] = Measurement(gpu, "bytes", how, max(interval, 2.0))
        return figures


def interim_wait_s(age_s: float) -> float:
    """Return how long after the last interim result of a command of that age the next one is due."""
    return min(max(age_s / 2, FIRST_INTERIM_S), INTERIM_S)


@contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Hold this process to some cores; what it starts meanwhile stays there."""
    mine = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, by the kernel's own mask."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    masks = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Sig"))
    return bool(int(masks["SigCgt"], 16) >> (number - 1) & 1)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
