"""State of one trace, and what else the worker's modules share: clocks, exceptions and a wrapper of functions."""

import collections
import contextlib
import ctypes
import functools
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Tuple

from leadline.graphs.torch.worker.libraries import last_user_line

STATM, STATUS, CLEAR_REFS = (Path("/proc/self", name) for name in ("statm", "status", "clear_refs"))
COMPILER = "torch._dynamo.eval_frame"
"""A module that is loaded only with the whole compiler, by torchvision or by the first optimizer."""
SMALLEST_MAPPED, LARGEST_MAPPED, IS_MAPPED = 128 * 1024, 32 * 2**20, 2
"""Bounds of glibc's mapping threshold (``man 3 mallopt``), and the flag in the header of a mapped block."""
TASKS, THIS_THREAD = Path("/proc/self/task"), Path("/proc/thread-self")


class ThreadTimes(NamedTuple):
    """Readings of the clocks of a process, or differences of two.

    Waiting for a processor is known, so that other processes need not lengthen a time.

    Attributes:
        wall_s: Monotonic clock.
        cpu_s: Processor time of this thread.
        queued_s: Time that this thread was runnable, but had no processor; ``None`` if the kernel does not report it.
        others_queued_s: The same of each other thread.
        read_bytes: Bytes that this thread read, from the page cache too.
    """

    wall_s: float
    cpu_s: float
    queued_s: Optional[float]
    others_queued_s: Dict[str, float]
    read_bytes: int

    def since(self, earlier: "ThreadTimes") -> "ThreadTimes":
        """Return the difference to an earlier reading."""
        before = earlier.others_queued_s
        others = {thread: seconds - before.get(thread, 0.0) for thread, seconds in self.others_queued_s.items()}
        queued_s = None if self.queued_s is None or earlier.queued_s is None else self.queued_s - earlier.queued_s
        return ThreadTimes(
            self.wall_s - earlier.wall_s, self.cpu_s - earlier.cpu_s, queued_s, others,
            self.read_bytes - earlier.read_bytes,
        )  # fmt: skip

    @property
    def lost_s(self) -> float:
        """Time that was lost to other processes.

        A thread that waits for a helper waits for the helper's processor, too, but never longer than it waits at all.
        """
        queued_s = self.queued_s or 0.0
        waited_s = max(self.wall_s - self.cpu_s - queued_s, 0.0)
        return queued_s + min(max(self.others_queued_s.values(), default=0.0), waited_s)

    @property
    def needed_s(self) -> float:
        """Processor time and waiting for files and network."""
        return max(self.wall_s - self.lost_s, self.cpu_s)


def read_times() -> ThreadTimes:
    """Read all clocks of the calling thread, which takes some 10 µs per thread of the process."""
    # In a namespace of processes, /proc may have other numbers than the process itself.
    this = os.path.basename(os.readlink(THIS_THREAD)) if THIS_THREAD.exists() else ""
    others = {entry.name: thread_queued_s(entry) for entry in TASKS.iterdir() if entry.name != this} if this else {}
    known = {thread: queued_s for thread, queued_s in others.items() if queued_s is not None}
    while True:  # a thread that lost its processor between two clocks reads them again, as they disagree
        this_s, wall_s, cpu_s = thread_queued_s(TASKS / this), time.monotonic(), time.thread_time()
        if thread_queued_s(TASKS / this) == this_s:
            return ThreadTimes(wall_s, cpu_s, this_s, known, _read_bytes(TASKS / this / "io"))


def thread_queued_s(task: Path) -> Optional[float]:
    """Return the second field of ``schedstat``: nanoseconds on a run queue."""
    try:
        return int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # a thread that has ended, or a kernel without these statistics
        return None


def _read_bytes(file: Path) -> int:
    try:
        fields = dict(line.split(": ") for line in file.read_text(encoding="ascii").splitlines())
        return int(fields.get("rchar", 0))
    except (OSError, ValueError):  # not every kernel counts it, and not every user may read it
        return 0


def resident_bytes() -> int:
    """Return the resident bytes of this process, or zero without ``/proc``."""
    pages = int(STATM.read_text(encoding="ascii").split()[1]) if STATM.exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Let the kernel count the peak of resident memory anew, where it lets a process do so (``man 5 proc``)."""
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5", encoding="ascii")


def peak_resident_bytes() -> int:
    """Return the peak of resident bytes since ``forget_peak``, or zero without ``/proc``."""
    lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines() if STATUS.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def mapped_block_bytes() -> Optional[int]:
    """Return about the smallest block that glibc maps instead of taking it from its heap; ``None`` elsewhere.

    It rises with each mapped block that is freed, so imports and data sets decide it.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    size = SMALLEST_MAPPED
    while size < LARGEST_MAPPED:
        block = library.malloc(size)
        if block is None:
            return None
        header = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
        library.free(block)
        if header & IS_MAPPED:
            return size
        size += size // 8
    return LARGEST_MAPPED


def call_after(owner: Any, name: str, record: Callable[..., None]) -> None:
    """Call ``record(result, *args, **kwargs)`` after each call of ``owner.name``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        record(result, *args, **kwargs)
        return result

    setattr(owner, name, call)


class StopTrace(BaseException):
    """Ends the user's script once enough is recorded; no ``Exception``, so that no handler of the script catches it."""


class NoMoreBatches(StopIteration):
    """Ends a loader before its last batch, as an evaluation needs only some."""


class ScriptFailure(Exception):
    """The script or model cannot be traced. The message is the whole reason, but for what the script printed last."""

    def __init__(self, reason: str, *, shows_output: bool = False) -> None:
        super().__init__(reason)
        self.shows_output = shows_output


@dataclass
class TraceSession:
    """One trace.

    Attributes:
        policy: Device whose kernel choices are recorded, ``cuda`` or ``cpu``.
        with_values: Ops run on values of the host, too; ``has_assumed``: something was assumed of values.
        calculates: Device type for which the script runs on the CPU as it is, if nothing is simulated.
        real: Record ops on tensors with data too, as nothing else trains (bare tensors on the CPU).
        count_s: Processor seconds of each run without calculations that counts the steps; none does if it is zero.
        counted: The steps of the whole run, once they are counted.
        caches_refused: The kernel refuses to write caches below the home folder.
        world_size: Processes of the job; ``local_size``: those on this node.
        process: Number of the process that runs the script: the traced one, or a fork that counts its steps.
        began: Clocks when the trace began.
        limit_s: Time that the script may use, without waiting for a processor; a hang uses it up, too.
        stopped_at: Line of the user's code at which the trace ended by its time limit, or because the script waits.
        hangs: The script waits, and computes nothing.
        recorder: Recorder of the ops, set before any part of torch is replaced.
        after_backward: Functions to call when a backward pass ends; ``at_exit``: those when the script ends.
        children: Programs of the script that may train, and the lines that start them.
        devices_counted: The number of GPUs was read; ``missing_parameters``: those of the model on other ranks.
        framework_s: Processor seconds of importing torch here.
        has_compiler: The compiler was loaded before the user's own code began.
        began_s: Processor time when the user's own code began; ``began_bytes``: resident memory, or zero if unknown.
    """

    policy: str = "cuda"
    with_values: bool = False
    has_assumed: bool = False
    calculates: str = ""
    real: bool = False
    count_s: float = 0.0
    counted: Any = None
    caches_refused: bool = False
    world_size: int = 1
    local_size: int = 1
    process: int = field(default_factory=os.getpid)
    began: ThreadTimes = field(default_factory=read_times)
    limit_s: float = float("inf")
    stopped_at: Optional[str] = None
    hangs: bool = False
    low_confidence: bool = False
    compiled: bool = False
    notes: List[str] = field(default_factory=list)
    fallbacks: "collections.Counter[str]" = field(default_factory=collections.Counter)
    facts: Dict[str, Any] = field(default_factory=dict)
    recorder: Any = None
    after_backward: List[Any] = field(default_factory=list)
    at_exit: List[Any] = field(default_factory=list)
    children: List[Tuple[str, str]] = field(default_factory=list)
    devices_counted: bool = False
    missing_parameters: int = 0
    framework_s: float = 0.0
    has_compiler: bool = False
    began_s: float = 0.0
    began_bytes: int = 0

    def note(self, sentence: str) -> None:
        """Add a sentence for the user, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def assume(self, sentence: Optional[str]) -> None:
        """Add a sentence on what is assumed of values that a trace has not, if anything is."""
        if sentence is not None:
            self.has_assumed = True
            self.note(sentence)

    def count_devices(self) -> int:
        """Return the GPUs of the simulated machine, and remember that the script may depend on their number."""
        self.devices_counted = True
        return self.local_size

    def begin_script(self) -> None:
        """Note time and memory when the user's own code begins."""
        self.began_s, self.began_bytes = time.process_time(), resident_bytes()
        forget_peak()

    def record_startup_cost(self) -> None:
        """Record the cost of the script's own imports and data, which end when its first module is called."""
        if "script_s" in self.facts:
            return
        self.facts["script_s"] = time.process_time() - self.began_s
        self.facts["framework_s"] = self.framework_s
        self.facts["loads_compiler"] = COMPILER in sys.modules and not self.has_compiler
        if self.began_bytes:
            self.facts["script_bytes"] = max(resident_bytes() - self.began_bytes, 0)
            self.facts["script_peak_bytes"] = max(peak_resident_bytes() - self.began_bytes, 0)
        if self.policy == "cpu":
            self.facts["mapped_block_bytes"] = mapped_block_bytes()
            self.facts["built_bytes"] = self.recorder.peak_bytes

    @property
    def used_s(self) -> float:
        """Seconds since the trace began, without waiting for a processor."""
        return read_times().since(self.began).needed_s

    @property
    def is_over(self) -> bool:
        """True once the time limit is reached."""
        # The wall clock is cheap to read, and never behind.
        return time.monotonic() - self.began.wall_s > self.limit_s and self.used_s > self.limit_s

    def check_time(self) -> None:
        """End the script when its time limit is reached."""
        if self.is_over:
            self.stop()

    def stop(self) -> NoReturn:
        """End the script, and keep its line."""
        self.stopped_at = last_user_line(traceback.extract_stack())
        raise StopTrace
