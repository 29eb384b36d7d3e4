"""Sample a process tree: memory without double counting, CPU time, I/O and GPU memory.

``ru_maxrss`` covers only the largest process, and a sum of RSS counts shared pages many times, so the proportional set
size (PSS) is summed over the tree. PSS leaves out pages shared with unrelated processes, and a sample misses peaks
between samples. So the largest process's resident set and the kernel's record of its peak serve as lower bounds.
Processes whose parent died stay in the tree, because the wrapper adopts them.
"""

import ctypes
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from leadline.core.errors import LeadlineError
from leadline.core.processes import ProcessRunner
from leadline.core.units import MIB
from leadline.execution.wrapper.node import read_fields

FIRST_INTERVAL_S = 0.1
LAST_INTERVAL_S = 1.0
OVERHEAD = 0.01
"""Share of one core that sampling may use."""
GPU_INTERVAL_S = 2.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


@dataclass(slots=True)
class TreeSampler:
    """Peaks and totals over the descendants of this process."""

    run: ProcessRunner
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    memory_method: str = "peak of PSS summed over the process tree, or peak RSS of its largest process if more"
    processes: int = 0
    peak_gpu_memory_bytes: int | None = None
    longest_interval_s: float = 0.0
    _last_s: float | None = None
    _cost_s: float = 0.0
    _gpu_due_s: float = 0.0
    _cpu_s: dict[tuple[int, float], float] = field(default_factory=dict)
    _read: dict[tuple[int, float], int] = field(default_factory=dict)
    _written: dict[tuple[int, float], int] = field(default_factory=dict)

    def sample(self) -> None:
        """Take one sample of every process; a process that ends meanwhile counts with its last values."""
        began, cpu_began = time.monotonic(), time.process_time()
        if self._last_s is not None:
            self.longest_interval_s = max(self.longest_interval_s, began - self._last_s)
        self._last_s = began
        tree = psutil.Process().children(recursive=True)
        # PSS first: reading it takes longest, and the resident set is only a lower bound.
        proportional = sum(self._sample_process(process) for process in tree)
        resident = [_resident_bytes(process.pid) for process in tree]
        self.memory_bytes = max(proportional, *(now for now, _ in resident), 0)
        self.peak_memory_bytes = max(self.peak_memory_bytes, self.memory_bytes, *(peak for _, peak in resident))
        self.processes = max(self.processes, len(tree))
        if began >= self._gpu_due_s:
            self._sample_gpus({process.pid for process in tree}, began)
        self._cost_s = max(time.process_time() - cpu_began, 0.0)

    def saw_peak(self, resident_bytes: int) -> None:
        """Add the peak resident set that the kernel reports for an ended process."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, resident_bytes)

    def next_interval_s(self, elapsed_s: float) -> float:
        """Return the time to the next sample: a twentieth of the age, within bounds, longer if samples are costly."""
        target_s = min(max(elapsed_s / 20, FIRST_INTERVAL_S), LAST_INTERVAL_S)
        return max(target_s, min(self._cost_s / OVERHEAD, 10 * LAST_INTERVAL_S))

    def totals(self) -> tuple[float, int, int]:
        """Return the CPU seconds of all processes, including running ones, and the bytes they read and wrote."""
        return sum(self._cpu_s.values()), sum(self._read.values()), sum(self._written.values())

    def _sample_process(self, process: psutil.Process) -> int:
        memory = 0
        try:
            key = (process.pid, process.create_time())
            times = process.cpu_times()
            self._cpu_s[key] = times.user + times.system
            memory = self._memory_of(process)
            counters = process.io_counters()
            self._read[key], self._written[key] = counters.read_bytes, counters.write_bytes
        except psutil.NoSuchProcess:
            return 0
        except psutil.AccessDenied:
            # Only the I/O counters of another user's process are hidden.
            pass
        return memory

    def _memory_of(self, process: psutil.Process) -> int:
        try:
            return int(process.memory_full_info().pss)
        except psutil.AccessDenied:
            self.memory_method = "peak of PSS (RSS where PSS may not be read) over the process tree, or of its largest"
            return int(process.memory_info().rss)

    def _sample_gpus(self, pids: set[int], now_s: float) -> None:
        """Sum the GPU memory of the tree through nvidia-smi, if there is one."""
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        try:
            answer = self.run(query, timeout_s=5.0)
        except LeadlineError:
            # Without a driver there is nothing to ask, now or later.
            self._gpu_due_s = float("inf")
            return
        # At most a twentieth of the time goes to nvidia-smi, which is slow on some nodes.
        self._gpu_due_s = now_s + max(GPU_INTERVAL_S, 20 * (time.monotonic() - now_s))
        if answer.returncode == 0:
            used = gpu_memory_bytes(answer.stdout, pids)
            self.peak_gpu_memory_bytes = max(self.peak_gpu_memory_bytes or 0, used)


def gpu_memory_bytes(listing: str, pids: set[int]) -> int:
    """Return the sum of the ``PID, MIB`` lines of nvidia-smi that belong to ``pids``."""
    fields = [line.split(",") for line in listing.splitlines() if line.count(",") == 1]
    return sum(
        int(used) * MIB for pid, used in fields if used.strip().isdigit() and pid.strip().isdigit() and int(pid) in pids
    )


def _resident_bytes(pid: int) -> tuple[int, int]:
    """Return the resident set of a process and its peak; zeros for an ended process."""
    fields = read_fields(Path(f"/proc/{pid}/status"))
    now, peak = (int(fields.get(name, "0").split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, max(now, peak)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, so that they stay in the tree (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
