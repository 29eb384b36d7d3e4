"""End a script at its time limit, or where it waits without work, and tell the line.

A thread watches the script, as a signal alone ends no call into a compiled library.
"""

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict

from leadline.graphs.torch.worker.libraries import last_user_line
from leadline.graphs.torch.worker.session import TASKS, THIS_THREAD, TraceSession, thread_queued_s

HANG_S = 60.0
"""A script that neither computes nor has a child that does for so long waits for what never comes."""
TICK_S = 1.0
BUSY_SHARE = 0.02
"""Share of a processor above which a script is at work; timers and idle threads use less."""
GRACE_S = 15.0
"""Seconds in which the script must react to the signal, before the process ends without it."""


class Watchdog:
    """Watches the main thread from ``__enter__`` on, which is called in it.

    ``give_up`` is called with an answer if the script does not react to a signal.
    """

    def __init__(self, session: TraceSession, give_up: Callable[[Dict[str, Any]], None]) -> None:
        self._session, self._give_up = session, give_up
        self._ended = threading.Event()
        self._main_task = TASKS / "none"
        self._own_s = self._children_s = 0.0

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, lambda *_: self._react())
        # In a namespace of processes, /proc may have other numbers than the process itself.
        self._main_task = THIS_THREAD.resolve()
        threading.Thread(target=self._watch, name="leadline-watchdog", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        began_s = idle_since_s = time.monotonic()
        late_since_s = 0.0
        while not self._ended.wait(TICK_S):
            now_s = time.monotonic()
            if self._has_worked(now_s - began_s):
                idle_since_s = now_s
            began_s = now_s
            self._session.hangs = now_s - idle_since_s > HANG_S
            if not self._session.hangs and not self._is_late(now_s):
                late_since_s = 0.0
                continue
            late_since_s = late_since_s or now_s
            main = threading.main_thread().ident or 0
            if now_s - late_since_s > GRACE_S:
                self._session.stopped_at = last_user_line(traceback.extract_stack(sys._current_frames().get(main)))
                self._give_up({"failure": time_failure(self._session)})
            signal.pthread_kill(main, signal.SIGALRM)

    def _is_late(self, now_s: float) -> bool:
        """Return whether the main thread has used its time; waiting for a processor does not count."""
        return now_s - self._session.began.wall_s - self._queued_s() > self._session.limit_s

    def _has_worked(self, wall_s: float) -> bool:
        """Return whether the script, or else its children, computed or waited for a processor since the last call."""
        own_s, self._own_s = self._own_s, time.process_time() - time.thread_time() + self._queued_s()
        if self._own_s - own_s > BUSY_SHARE * wall_s:
            return True
        children_s, self._children_s = self._children_s, processor_s_of_children()
        return abs(self._children_s - children_s) > BUSY_SHARE * wall_s

    def _queued_s(self) -> float:
        return thread_queued_s(self._main_task) or 0.0

    def _react(self) -> None:
        if self._session.hangs:
            self._session.stop()
        self._session.check_time()


def time_failure(session: TraceSession) -> Dict[str, Any]:
    """Return the failure of a script that was ended before its second training step."""
    if session.hangs:
        reason = (
            f"the script waits here, and used no processor for {HANG_S:g} s; the trace has no input, no network and no "
            "other processes of the job: leave out what the script waits for"
        )
    else:
        reason = (
            f"the script did not reach its second training step in {session.limit_s:g} s; shorten its start, "
            "or give it more time with --trace-limit"
        )
    return {"reason": reason, "location": session.stopped_at}


def processor_s_of_children() -> float:
    """Return processor seconds of the other processes in this process's session; zero without ``/proc``."""
    try:
        own = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    this, session_id = own.partition(" ")[0], own.rpartition(")")[2].split()[3]
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != this:
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if fields[3] == session_id:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
