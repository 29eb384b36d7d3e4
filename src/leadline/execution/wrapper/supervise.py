"""Enforce the limits of one command and measure it until it ends."""

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
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Measurement
from leadline.core.units import format_bytes, format_duration
from leadline.execution.clock import now_utc
from leadline.execution.processes import run_process, start_process
from leadline.execution.wrapper.cgroup import Cgroup, memory_cgroup
from leadline.execution.wrapper.instruments import Instruments, progress_measurements
from leadline.execution.wrapper.node import describe_node, read_fields
from leadline.execution.wrapper.outcome import MARKER_VARIABLE, JobOutcome, read_marker, read_walltime_s
from leadline.execution.wrapper.sampling import TreeSampler, adopt_orphans

GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL."""
FIRST_INTERIM_S, INTERIM_S = 5.0, 30.0
"""Interval of interim outcomes, for observers and in case the wrapper is killed.

A young job writes one after half its age, so that a far too small request shows early.
"""
EARLIEST_S = 90.0
"""Slurm sends a warning up to a minute early, and this process starts seconds after the job."""
PROBE_DONE = "the probe has seen enough of it"
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
WARNING = (signal.SIGUSR1, signal.SIGUSR2)


class WrapperLimits(Frozen):
    """Limits that the wrapper enforces.

    Attributes:
        walltime_s: time limit of the command.
        memory_bytes: memory limit of the process tree.
        site_walltime_s: time limit that the scheduler enforces.
        cpus: the only cores that the command may use, if any are named.
        warning: signal sent before the walltime to processes with a handler, but not in the first half.
        warning_s: seconds between warning and walltime.
        control: file that may change the walltime while the command runs.
        kill_after_s: seconds from a SIGTERM until remaining processes are killed (None: the sender does that).
        since_s: seconds of all walltimes that had passed when the command started.
        marker: file in which the command may write that it is done, or that it saved its state.
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
    marker: Path | None = None


def supervise(
    argv: Sequence[str],
    limits: WrapperLimits,
    *,
    write: Callable[[JobOutcome], None],
    workdir: Path | None = None,
    instruments: Instruments | None = None,
) -> JobOutcome:
    """Run ``argv`` on this process's streams to its end and return the last outcome.

    The command keeps its streams, its exit code and its environment, except for the variables of ``instruments``.
    Signals to this process reach the command. ``write`` gets interim outcomes and the last one.

    Raises:
        InvalidInput: the command cannot be started; the outcome was written.
    """
    # Before anything is started, so that no descendant can leave the tree.
    adopt_orphans()
    environment = instruments.environment() if instruments else {}
    if limits.marker is not None:
        environment[MARKER_VARIABLE] = str(limits.marker)
    began = JobOutcome(JobState.RUNNING, now_utc(), socket.gethostname(), tuple(argv), node=describe_node())
    with memory_cgroup(limits.memory_bytes) as cgroup:
        watch = _Watch(began, limits, cgroup, cgroup.oom_kills(), time.monotonic(), instruments)
        # Before the start: a signal must not be lost between start and supervision.
        signals = {*ENDING, *WARNING, *([limits.warning] if limits.warning is not None else [])}
        handlers = {sign: signal.signal(sign, watch.on_signal) for sign in signals}
        try:
            # Affinity and control group are inherited at the start, so this process only takes them on for a moment.
            with _pinned(limits.cpus), cgroup.inside():
                watch.child = start_process(argv, env=environment, cwd=workdir, own_group=not os.isatty(0))
            watch.deliver()
            usage = watch.follow(write)
        except InvalidInput as error:
            write(replace(began, state=JobState.FAILED, ended_at=now_utc(), exit_code=127, reason=str(error)))
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
    end_state: JobState | None = None
    reason: str = ""
    kill_at_s: float | None = None
    has_news: bool = False
    warned: bool = False
    warning_delivered: bool = False
    unheard: int | None = None
    """Warning that no process has handled yet, because the command is still starting."""
    pending: list[int] = field(default_factory=list)
    walltime_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.walltime_s = self.limits.walltime_s

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Queue a signal and forward it."""
        self.pending.append(number)
        self.deliver()

    def deliver(self) -> None:
        """Forward queued signals to the child. Warnings only go to processes with a handler; others would die."""
        if self.child is None:
            return
        while self.pending:
            number = self.pending.pop(0)
            # The warning may be a signal that ends other commands, such as SIGTERM.
            is_asked = number == self.limits.warning and not self.warning_delivered
            is_timely = is_asked and self._nears_site_limit()
            if number in ENDING and not is_timely:
                self.end_state = self.end_state or self._ended_by_site()
                self.reason = self.reason or f"ended by {signal.Signals(number).name}"
            if number not in ENDING or is_timely or (is_asked and self._may_be_untimely(number)):
                self.has_news = True
                self._warn(number)
                continue
            self._send(number)
            # Only once: repeated SIGTERMs must not postpone the kill.
            if number == signal.SIGTERM and self.limits.kill_after_s is not None and self.kill_at_s is None:
                self.kill_at_s = time.monotonic() + self.limits.kill_after_s

    def follow(self, write: Callable[[JobOutcome], None]) -> tuple[int, float]:
        """Sample and enforce until the child ends; return its exit status and the CPU seconds of its rusage."""
        child = self.child
        if child is None:
            raise RuntimeError("there is no child to follow")
        pidfd = os.pidfd_open(child.pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        written_s = time.monotonic()
        try:
            while True:
                self.sampler.sample()
                self._enforce()
                if self.has_news or time.monotonic() - written_s > interim_wait_s(self._elapsed_s()):
                    self.has_news, written_s = False, time.monotonic()
                    write(replace(self.began, pid=child.pid, **self._measured_fields()))
                if poll.poll(1000 * self._wait_s()):
                    break
        finally:
            os.close(pidfd)
        _, status, usage = os.wait4(child.pid, 0)
        # Popen did not wait itself and would otherwise wait for a reused process id.
        child.returncode = os.waitstatus_to_exitcode(status)
        # Linux reports ru_maxrss in KiB.
        self.sampler.saw_peak(usage.ru_maxrss * 1024)
        if self.instruments is not None:
            self.instruments.finish()
        self._reap()
        return child.returncode, usage.ru_utime + usage.ru_stime

    def ended(self, usage: tuple[int, float]) -> JobOutcome:
        """Return the last outcome with its reason and all measurements."""
        code, cpu_s = usage
        state, reason = self.end_state, self.reason
        # A group that is shared with others may count their kills, so only a failed command counts there.
        if state is None and self._killed_for_memory() and (code != 0 or self.cgroup.job_folder):
            state, reason = JobState.OUT_OF_MEMORY, self._why_killed()
        if state is None:
            state = JobState.COMPLETED if code == 0 else JobState.FAILED
        return replace(
            self.began,
            state=state,
            pid=self.child.pid if self.child else None,
            ended_at=now_utc(),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            reason=reason,
            marker="" if self.limits.marker is None else read_marker(self.limits.marker),
            **self._measured_fields(cpu_s),
        )

    def _ended_by_site(self) -> JobState:
        """Tell the scheduler's limit from a cancellation by the clock; schedulers may be late, never early."""
        site_limit_s = self.limits.site_walltime_s
        at_limit = site_limit_s is not None and self._used_s() >= site_limit_s - 1.0
        return JobState.TIMEOUT if at_limit else JobState.CANCELLED

    def _nears_site_limit(self) -> bool:
        """True if the scheduler's limit is near: a signal is then the warning before it, and no cancellation."""
        limit_s = self.limits.site_walltime_s
        return limit_s is not None and limit_s - self.limits.warning_s - EARLIEST_S <= self._used_s() < limit_s - 1.0

    def _may_be_untimely(self, number: int) -> bool:
        """True if a process handles a signal that is a warning unless it is a cancellation, which the scheduler tells.

        Sites shorten and extend limits. With a walltime of its own, this process sends the warning.
        """
        if self.limits.site_walltime_s is None or self.limits.walltime_s is not None:
            return False
        return any(_catches(process.pid, number) for process in psutil.Process().children(recursive=True))

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
        elif self.unheard is not None:
            self._warn(self.unheard)
        # Time before memory: both may be exceeded by a command that hangs.
        if self.walltime_s is not None and self._used_s() >= self.walltime_s:
            self._cut(JobState.TIMEOUT, f"longer than the walltime of {format_duration(self.walltime_s)}")
        elif self.cgroup.job_folder and self._killed_for_memory():
            self._cut(JobState.OUT_OF_MEMORY, self._why_killed())
        elif limits.memory_bytes is not None and self.sampler.memory_bytes > limits.memory_bytes:
            used, limit = format_bytes(self.sampler.memory_bytes), format_bytes(limits.memory_bytes)
            self._cut(JobState.OUT_OF_MEMORY, f"used {used}, more than the requested {limit}")

    def _read_control(self) -> None:
        """Apply a changed walltime, which gets a new warning."""
        walltime_s = None if self.limits.control is None else read_walltime_s(self.limits.control)
        if walltime_s is not None and walltime_s != self.walltime_s:
            self.walltime_s, self.warned = walltime_s, False

    def _warning_due_s(self) -> float:
        """Return when the warning is due, counted from the start; infinite once a process got it."""
        limit_s, site_s, warning_s = self.walltime_s, self.limits.site_walltime_s, self.limits.warning_s
        # A scheduler that warns by itself may have done so before this process could hear it.
        if limit_s is None and site_s is not None and self.limits.since_s > site_s - warning_s - EARLIEST_S:
            limit_s = site_s
        return math.inf if limit_s is None or self.warned else max(limit_s - warning_s, limit_s / 2)

    def _warn(self, number: int) -> None:
        """Send a warning to every process of the tree with a handler; without one, it is sent later."""
        self.unheard = number
        for process in psutil.Process().children(recursive=True):
            if _catches(process.pid, number):
                self.warned = self.warning_delivered = self.has_news = True
                self.unheard = None
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def _killed_for_memory(self) -> bool:
        return self.cgroup.oom_kills() > self.oom_kills

    def _why_killed(self) -> str:
        """Return what the kernel did: at the job's own limit if the control group is its own."""
        if self.cgroup.job_folder is None or self.limits.memory_bytes is None:
            return "the kernel killed a process of the job for memory"
        limit = format_bytes(self.limits.memory_bytes)
        return f"the kernel killed a process that would use more than the requested {limit}"

    def _cut(self, state: JobState, reason: str) -> None:
        self.end_state, self.reason = self.end_state or state, reason
        self.kill_at_s = time.monotonic() + GRACE_S
        self._send_tree(signal.SIGTERM)

    def _wait_s(self) -> float:
        """Return the time to the next sample or limit."""
        wait = self.sampler.next_interval_s(self._elapsed_s())
        if self.kill_at_s is not None:
            return max(min(wait, self.kill_at_s - time.monotonic()), 0.01)
        for due_s in (self.walltime_s, self._warning_due_s() if self.limits.warning else None):
            if due_s is not None and due_s > self._used_s():
                # A millisecond later, so that the limit has passed for certain.
                wait = min(wait, due_s - self._used_s() + 0.001)
        return wait

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def _used_s(self) -> float:
        """Return the seconds of the walltimes that have passed."""
        return self._elapsed_s() + self.limits.since_s

    def _send(self, number: int) -> None:
        """Signal the child's group, or only the child if the terminal signals the group itself."""
        if self.child is None:
            return
        try:
            send = os.killpg if os.getpgid(self.child.pid) == self.child.pid else os.kill
            send(self.child.pid, number)
        except ProcessLookupError:
            self.reason = self.reason or "already ended when it was signalled"

    def _send_tree(self, number: int) -> None:
        """Signal every process of the tree, including those that left the child's group."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _reap(self) -> None:
        """Collect adopted processes that ended; after a limit, kill the remaining ones."""
        # Background processes that the command left on purpose may go on.
        flags = os.WNOHANG
        if self.kill_at_s is not None:
            self._send_tree(signal.SIGKILL)
            flags = 0
        with suppress(ChildProcessError):
            while os.waitpid(-1, flags)[0]:
                pass

    def _measured_fields(self, cpu_s: float | None = None) -> dict[str, Any]:
        """Return the outcome fields with measurements and the job's own progress."""
        progress = self.instruments.progress() if self.instruments else None
        measurements = {**self._measurements(cpu_s), **progress_measurements(progress)}
        return {"measured": measurements, "progress": progress, "warned": self.warning_delivered}

    def _measurements(self, cpu_s: float | None) -> dict[str, Measurement]:
        sampler, interval = self.sampler, self.sampler.longest_interval_s
        sampled_cpu_s, read_bytes, written_bytes = sampler.totals()
        measurements = {
            "elapsed_s": Measurement(self._elapsed_s(), "s", "monotonic clock around the command"),
            "host_memory_bytes": Measurement(sampler.peak_memory_bytes, "bytes", sampler.memory_method, interval),
            "processes": Measurement(sampler.processes, "", "most processes in the tree", interval),
            "read_bytes": Measurement(read_bytes, "bytes", "/proc/PID/io over the tree", interval),
            "written_bytes": Measurement(written_bytes, "bytes", "/proc/PID/io over the tree", interval),
        }
        if cpu_s is None or sampled_cpu_s > cpu_s:
            measurements["cpu_s"] = Measurement(sampled_cpu_s, "s", "CPU times over the process tree", interval)
        else:
            measurements["cpu_s"] = Measurement(cpu_s, "s", "rusage of the command and the children it waited for")
        if (peak := self.cgroup.peak_bytes()) is not None:
            how = "peak of the control group, page cache and all else in it included"
            measurements["cgroup_memory_bytes"] = Measurement(peak, "bytes", how)
        if (gpu := sampler.peak_gpu_memory_bytes) is not None:
            how = "NVML through nvidia-smi, summed over the process tree"
            measurements["gpu_memory_bytes"] = Measurement(gpu, "bytes", how, max(interval, 2.0))
        return measurements


def interim_wait_s(age_s: float) -> float:
    """Return the seconds between interim outcomes of a command of that age."""
    return min(max(age_s / 2, FIRST_INTERIM_S), INTERIM_S)


@contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Restrict this process to some cores, which its children inherit."""
    previous = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, previous)


def _catches(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal, by the kernel's mask."""
    mask = read_fields(Path(f"/proc/{pid}/status")).get("SigCgt", "0")
    return bool(int(mask, 16) >> (number - 1) & 1)
