"""Take a turn at the plane: a command that waits for its jobs steps the plane itself where nobody else runs it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from leadline.app.composition import toolbox
from leadline.app.hand_over import plane_dir
from leadline.app.plane import hold_plane, runner
from leadline.app.schedulers import let_go, scheduler_of
from leadline.core.errors import LeadlineError
from leadline.core.plane import Attempt
from leadline.execution.plane.engine import Plane

LOOK_S = 1.0
"""Between two looks at the journal where another process runs the plane."""
AGAIN_S = 5.0
"""Between two tries to take the plane over from whoever ran it."""
LOG_LINES = 20


class Turns(AbstractContextManager["Turns"]):
    """The plane, stepped by this process as long as it holds it.

    ``told`` hears of a journal that cannot be written, and what was learned of finished jobs.
    """

    def __init__(self, told: Callable[[str], None] = lambda _: None) -> None:
        self._told = told
        self._stack = ExitStack()
        self._plane: Plane | None = None
        self._tried_s = -AGAIN_S

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    @property
    def mine(self) -> bool:
        """Whether this process runs the plane."""
        return self._plane is not None

    @property
    def idle(self) -> bool:
        """Whether this process runs the plane, and nothing is left to do."""
        return self._plane is not None and self._plane.idle

    def step(self) -> float:
        """Do all that is due, unless another process does it; return the seconds until something is due again."""
        if self._plane is None and time.monotonic() - self._tried_s >= AGAIN_S:
            self._tried_s = time.monotonic()
            self._plane = self._stack.enter_context(hold_plane(toolbox().catalog, told=self._told))
        if self._plane is None:
            return LOOK_S
        return min(self._plane.try_step(self._told), LOOK_S)


def step_until(done: Callable[[], bool], timeout_s: float, told: Callable[[str], None] = lambda _: None) -> bool:
    """Step the plane, or let whoever runs it, until ``done()``; ``False`` if that was not within ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    with Turns(told) as turns:
        while True:
            wait_s = turns.step()
            if done():
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(max(wait_s, 0.05))


def who_runs_it() -> str | None:
    """Return who runs the plane, as ``process 12 on node1 since 14:02``; ``None`` if nobody does."""
    return runner() if plane_dir().exists() else None


def log_tail(attempt: Attempt, most: int = LOG_LINES) -> tuple[str, ...]:
    """Return the last lines of what an attempt wrote, from where it ran; none where that cannot be reached."""
    try:
        scheduler = scheduler_of(attempt.place.system, toolbox().catalog, plane_dir())
    except LeadlineError:
        return ()
    try:
        tails = scheduler.log_tails([attempt.key])
    except LeadlineError:
        return ()
    finally:
        let_go(scheduler)
    return tuple(tails.get(attempt.key, "").splitlines()[-most:])
