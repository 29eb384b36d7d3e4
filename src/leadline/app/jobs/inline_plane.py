"""Run the plane inside a command that waits for its jobs, if no other process runs it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

from leadline.app.composition import live_catalog
from leadline.app.jobs.journal import plane_dir, plane_lock
from leadline.files.lock import lock_holder

if TYPE_CHECKING:
    from leadline.execution.plane.engine import Plane


LOOK_S = 1.0
"""Interval between looks at the journal while another process runs the plane."""
RETRY_S = 5.0
"""Interval between attempts to take over the plane."""
FINISH_S = 60.0
"""Time limit of a single round of all systems."""


@contextmanager
def interrupts() -> Iterator[Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second one ends the process as usual."""
    received = Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        received.set()
        restore()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield received
    finally:
        restore()


class InlinePlane(ExitStack):
    """The plane, stepped by this process while it holds the lock.

    ``report`` is called when the journal cannot be written, and with results of retraining.
    """

    def __init__(self, report: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._report = report
        self._plane: Plane | None = None
        self._last_try_s = -RETRY_S

    @property
    def runs_plane(self) -> bool:
        """Return whether this process runs the plane."""
        return self._plane is not None

    @property
    def idle(self) -> bool:
        """Return whether this process runs the plane and nothing is left to do."""
        return self._plane is not None and self._plane.idle

    def step(self) -> float:
        """Do everything that is due, unless another process runs the plane; return the seconds until the next step."""
        if self._plane is None and time.monotonic() - self._last_try_s >= RETRY_S:
            # The engine and its advisor are slow to import, and often another process runs the plane.
            from leadline.app.jobs.plane import hold_plane  # noqa: PLC0415 - see above

            self._last_try_s = time.monotonic()
            self._plane = self.enter_context(hold_plane(live_catalog(self._report), report=self._report))
        if self._plane is None:
            return LOOK_S
        return min(self._plane.try_step(self._report), LOOK_S)

    def finish(self) -> None:
        """Let what the last step began end, at most for a minute."""
        if self._plane is not None:
            self._plane.finish(FINISH_S)


def step_until(done: Callable[[], bool], timeout_s: float, report: Callable[[str], None] = lambda _: None) -> bool:
    """Step the plane, or wait for the process that runs it, until ``done()``; ``False`` after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    with InlinePlane(report) as plane:
        while True:
            wait_s = plane.step()
            if done():
                return True
            if time.monotonic() >= deadline_s:
                return False
            # A step that is due at once reports 0 s: without a minimum this loop would spin.
            time.sleep(max(wait_s, 0.05))


def describe_runner() -> str | None:
    """Return the process that runs the plane, as ``process 12 on node1 since 14:02``; ``None`` if none does."""
    return lock_holder(plane_lock()) if plane_dir().exists() else None
