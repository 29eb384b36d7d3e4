"""The observations of the hook, and the report file to which they are written."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

clock = time.monotonic

FIRST, SAMPLED, LOOPS = 8, 400, 60
WRITE_S, WRITE_MOST_S = 2.0, 20.0
"""Shortest and longest pause between two reports; slow writes make it longer."""
FRAMEWORK_WAIT_S = 60.0
"""Seconds from a framework's import to its first step, before plain loops count as the work."""
SCHEMA = "leadline.hook/1"


class DurationSample:
    """Durations of repeated work: all counted, the first ones kept, and an even sample of the others."""

    __slots__ = ("began_s", "count", "first", "mark_s", "sampled", "stride", "total_s")

    def __init__(self) -> None:
        self.count, self.total_s, self.stride = 0, 0.0, 1
        self.first: List[float] = []
        self.sampled: List[float] = []
        self.began_s: Optional[float] = None
        self.mark_s: Optional[float] = None

    def add(self, duration_s: float, count: int = 1) -> None:
        """Add the duration of ``count`` repetitions in a row."""
        self.total_s += duration_s
        one_s = duration_s if count == 1 else duration_s / count
        if len(self.first) < FIRST:
            self.first.append(one_s)
        # A batch is one sample, however many repetitions it has.
        if self.count % self.stride == 0 or count > 1:
            self.sampled.append(one_s)
            if len(self.sampled) > SAMPLED:
                self.sampled, self.stride = self.sampled[::2], 2 * self.stride
        self.count += count

    def tick(self, now_s: float) -> None:
        """Add a time at which one repetition ended and the next began."""
        if self.mark_s is None:
            self.began_s = now_s
        else:
            self.add(now_s - self.mark_s)
        self.mark_s = now_s

    def document(self) -> Dict[str, Any]:
        """Return the data as builtins."""
        counted = {"count": self.count, "total_s": self.total_s, "began_s": self.began_s}
        return {**counted, "first_s": self.first, "sampled_s": self.sampled}


class HookState:
    """The observations of this process."""

    def __init__(self) -> None:
        self.on = False
        self.folder = ""
        self.began_s = clock()
        self.main = get_ident()
        self.pid = os.getpid()
        self.stack: List[Any] = []
        self.loops: List[Any] = []
        self.frameworks: Dict[str, Dict[str, Any]] = {}
        self.steps: Dict[int, DurationSample] = {}
        self.chain: List[int] = []
        self.remarks: List[str] = []
        self.units, self.time_s = 0, 0.0
        self.framework_s: Optional[float] = None
        self.working_s: Optional[float] = None
        self.stopped = False
        self.wrote_s, self.wait_s = clock(), WRITE_S
        self.extra: List[Callable[[], Dict[str, Any]]] = []

    def begin(self, folder: str, *, units: int, time_s: float) -> None:
        """Start recording, and stop the job after so many units of work or seconds of them (0: never)."""
        self.folder, self.units, self.time_s, self.on = folder, units, time_s, True
        atexit.register(self.write)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.turn_off)

    @property
    def probes(self) -> bool:
        """True if the job is to be stopped once the probe is done."""
        return bool(self.units or self.time_s)

    def turn_off(self) -> None:
        """Stop recording."""
        self.on = False

    def is_watched_thread(self) -> bool:
        """True if recording is on and this is the watched thread."""
        return self.on and get_ident() == self.main

    def remark(self, error: BaseException, context: str) -> None:
        """Store an error of the hook itself."""
        if len(self.remarks) < 8:
            self.remarks.append(f"{context}: {type(error).__name__}: {error}"[:300])

    def step_done(self, times: DurationSample, now_s: float) -> None:
        """Record a step of a framework, which counts more than any plain loop."""
        times.tick(now_s)
        self.consider(times.count, now_s)

    def loop_done(self, count: int, now_s: float) -> None:
        """Record an iteration of a plain loop. It counts as work unless a framework's steps are expected."""
        expects_framework = self.framework_s is not None and now_s - self.framework_s < FRAMEWORK_WAIT_S
        if self.probes and not (self.steps or "keras" in self.frameworks or expects_framework):
            self.consider(count, now_s)
        elif now_s - self.wrote_s > self.wait_s:
            self.write_soon(now_s)

    def consider(self, count: int, now_s: float) -> None:
        """Stop the job by ``SystemExit`` if the probe is done; otherwise write from time to time."""
        if self.working_s is None:
            self.working_s = now_s
        worked_s = now_s - self.working_s
        if (self.units and count >= self.units) or (self.time_s and count > 1 and worked_s >= self.time_s):
            self.stopped = True
            self.write()
            # The loop boundary is a clean point: no iteration is half done.
            raise SystemExit(0)
        if now_s - self.wrote_s > self.wait_s:
            self.write_soon(now_s)

    def write_soon(self, now_s: float) -> None:
        """Write the report; the next one follows after a thousand times the duration of this one."""
        self.write()
        self.wrote_s = clock()
        # So writing takes at most a thousandth of the time.
        self.wait_s = min(max(WRITE_S, 1000 * (self.wrote_s - now_s)), WRITE_MOST_S)

    def write(self) -> None:
        """Write the report atomically."""
        # A forked child inherits the exit handler, but must not overwrite the report.
        if not self.on or os.getpid() != self.pid:
            return
        try:
            path = os.path.join(self.folder, f"hook-{self.pid}.json")
            with open(path + ".part", "w", encoding="utf-8") as stream:
                json.dump(self.document(), stream)
            os.replace(path + ".part", path)
        except Exception as problem:  # noqa: BLE001 - the job matters more than its report
            self.on = False
            leave_fault(self.folder, problem)

    def document(self) -> Dict[str, Any]:
        """Return the report as builtins."""
        now_s = clock()
        steps = max(self.steps.values(), key=lambda times: times.count) if self.steps else None
        begun = sorted((loop for loop in self.loops if loop.entries), key=lambda loop: -loop.spent_s(now_s))
        return {
            "schema": SCHEMA,
            "pid": self.pid,
            "began_s": self.began_s,
            "now_s": now_s,
            "stopped": self.stopped,
            "loops": [loop.document(now_s) for loop in begun[:LOOPS]],
            "waiting": [loop.place() for loop in self.loops if not loop.entries][:LOOPS],
            "steps": steps.document() if steps is not None else None,
            "chain": self.chain,
            "frameworks": self.frameworks,
            "remarks": self.remarks,
            **{name: value for extra_fields in self.extra for name, value in extra_fields().items()},
        }


def leave_fault(folder: str, error: BaseException) -> None:
    """Leave a file with an error, which the wrapper turns into a remark; without a writable folder, use stderr."""
    try:
        with open(os.path.join(folder, f"fault-{os.getpid()}"), "w", encoding="utf-8") as stream:
            stream.write(f"{type(error).__name__}: {error}"[:300])
    except OSError:
        sys.stderr.write(f"Leadline cannot watch this job: {error}\n")


STATE = HookState()
