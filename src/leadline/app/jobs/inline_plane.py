"""Hear Ctrl-C and SIGTERM without being cut off in the middle: what is at work ends its step first."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import FrameType, TracebackType
from typing import Self

from leadline.app.composition import toolbox
from leadline.app.jobs.journal import plane_dir
from leadline.app.jobs.plane import hold_plane, plane_runner
from leadline.app.jobs.schedulers import build_scheduler, close_scheduler
from leadline.core.errors import LeadlineError
from leadline.core.plane import Attempt
from leadline.execution.plane.engine import Plane


class Interrupts(AbstractContextManager["Interrupts"]):
    """While it is entered, SIGINT and SIGTERM are only noted; a second one ends the process as usual."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: dict[int, object] = {}

    @property
    def received(self) -> bool:
        """Whether one came."""
        return self._event.is_set()

    def wait(self, duration_s: float) -> None:
        """Let time pass, or as much of it as passes until one comes."""
        self._event.wait(duration_s)

    def __enter__(self) -> Self:
        for one in (signal.SIGINT, signal.SIGTERM):
            self._before[one] = signal.signal(one, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self._event.set()
        self._restore()

    def _restore(self) -> None:
        for one, before in self._before.items():
            signal.signal(one, before)  # type: ignore[arg-type]
        self._before = {}


LOOK_S = 1.0
"""Between two looks at the journal where another process runs the plane."""
RETRY_S = 5.0
"""Between two tries to take the plane over from whoever ran it."""
LOG_LINES = 20


class InlinePlane(AbstractContextManager["InlinePlane"]):
    """The plane, stepped by this process as long as it holds it.

    ``told`` hears of a journal that cannot be written, and what was learned of finished jobs.
    """

    def __init__(self, report: Callable[[str], None] = lambda _: None) -> None:
        self._told = report
        self._stack = ExitStack()
        self._plane: Plane | None = None
        self._tried_s = -RETRY_S

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    @property
    def runs_plane(self) -> bool:
        """Whether this process runs the plane."""
        return self._plane is not None

    @property
    def idle(self) -> bool:
        """Whether this process runs the plane, and nothing is left to do."""
        return self._plane is not None and self._plane.idle

    def step(self) -> float:
        """Do all that is due, unless another process does it; return the seconds until something is due again."""
        if self._plane is None and time.monotonic() - self._tried_s >= RETRY_S:
            self._tried_s = time.monotonic()
            self._plane = self._stack.enter_context(hold_plane(toolbox().catalog, report=self._told))
        if self._plane is None:
            return LOOK_S
        return min(self._plane.try_step(self._told), LOOK_S)


def step_until(done: Callable[[], bool], timeout_s: float, report: Callable[[str], None] = lambda _: None) -> bool:
    """Step the plane, or let whoever runs it, until ``done()``; ``False`` if that was not within ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    with InlinePlane(report) as turns:
        while True:
            wait_s = turns.step()
            if done():
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(max(wait_s, 0.05))


def describe_runner() -> str | None:
    """Return who runs the plane, as ``process 12 on node1 since 14:02``; ``None`` if nobody does."""
    return plane_runner() if plane_dir().exists() else None


def read_log_tail(attempt: Attempt, limit: int = LOG_LINES) -> tuple[str, ...]:
    """Return the last lines of what an attempt wrote, from where it ran; none where that cannot be reached."""
    try:
        scheduler = build_scheduler(attempt.place.system, toolbox().catalog, plane_dir())
    except LeadlineError:
        return ()
    try:
        tails = scheduler.log_tails([attempt.key])
    except LeadlineError:
        return ()
    finally:
        close_scheduler(scheduler)
    return tuple(tails.get(attempt.key, "").splitlines()[-limit:])
