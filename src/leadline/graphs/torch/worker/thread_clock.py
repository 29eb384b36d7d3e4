"""Time of a thread that other processes do not lengthen: waiting for a processor is left out."""

import os
import time
from pathlib import Path
from typing import Dict, NamedTuple, Optional

TASKS, THIS_THREAD = Path("/proc/self/task"), Path("/proc/thread-self")


class ThreadTimes(NamedTuple):
    """Readings of the clocks of a process, or differences of two.

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
        others = {
            thread: queued_s - earlier.others_queued_s.get(thread, 0.0)
            for thread, queued_s in self.others_queued_s.items()
        }
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
    queued = {entry.name: _queued_s(entry) for entry in TASKS.iterdir()} if this else {}
    this_s = queued.pop(this, None)
    others = {thread: queued_s for thread, queued_s in queued.items() if queued_s is not None}
    return ThreadTimes(time.monotonic(), time.thread_time(), this_s, others, _read_bytes(TASKS / this / "io"))


def _queued_s(task: Path) -> Optional[float]:
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
