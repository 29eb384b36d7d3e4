"""How often the plane polls schedulers, and how long it waits before drawing conclusions."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from leadline.core.frozen import Frozen
from leadline.execution.clock import Clock

MIN_PAUSE, MAX_PAUSE = 5.0, 500.0
"""Pauses between polls, as multiples of the recent response time."""
NEWEST_WEIGHT = 0.5
"""Weight of the newest response time in the average. A single slow answer may be chance."""
JITTER = 0.2
"""Largest relative change of a pause after a failure, so that the planes of many users do not retry together."""
MIN_REST = 25.0
"""Minimum pause as a multiple of the CPU time of a poll, so that the plane uses at most 1/25 of a core."""


class PollIntervals(Frozen):
    """Times of the plane, all in seconds."""

    first: float = 1.0  # pause between polls after a change
    last: float = 30.0
    """Longest pause while nothing changes. It is also at least 5 and at most 500 times the recent response time, and at
    least 25 times the CPU time of the last poll."""
    unreachable: float = 300.0  # longest pause after a scheduler did not answer
    reports: float = 15.0  # pause between readings of the wrappers' reports
    decide: float = 300.0  # pause between decisions about an attempt without news
    grace: float = 60.0  # a submission with a lost answer counts as never arrived after this time
    settle: float = 30.0  # after this time the wrapper alone decides how an attempt ended that did not complete
    killed: float = 300.0  # a command of a job that Slurm forgot counts as killed after this time, as on a silent node
    lost: float = 3600.0  # an attempt that nothing reports any more counts as lost after this time
    delay: float = 1800.0  # longest delay of an attempt, whatever the wall clock does


DEFAULT_INTERVALS = PollIntervals()


@dataclass(slots=True)
class PollSchedule:
    """Time of the next poll of one scheduler: soon after a change, later and later without one."""

    clock: Clock
    intervals: PollIntervals
    interval_s: float = 0.0
    due_s: float = 0.0
    response_s: float = 0.0  # recent response time
    failures: int = 0  # missing answers since the last one
    doublings: int = 0  # of the pause after a failure; the user's word resets it
    last_error: str = ""
    outage: int | None = None  # number of the journal's event about the present outage
    jitter: Callable[[], float] = random.random

    @property
    def due(self) -> bool:
        """True if it is time to poll."""
        return self.clock.monotonic_s() >= self.due_s

    @property
    def wait_s(self) -> float:
        """Seconds until the next poll."""
        return max(0.0, self.due_s - self.clock.monotonic_s())

    def hurry(self) -> None:
        """Poll soon, because something was changed."""
        self.interval_s = self.intervals.first
        if not self.failures:
            self.due_s = min(self.due_s, self.clock.monotonic_s() + self.interval_s)

    def wake(self) -> None:
        """Poll at once, because a change is certain."""
        if not self.failures:
            self.due_s = 0.0

    def retry_now(self) -> None:
        """Try again at once after failures, because the user asks for it."""
        if self.failures:
            self.due_s, self.doublings = 0.0, 0

    def rest(self) -> None:
        """Ask nothing for a while, because there is nothing to ask; failures still count."""
        if not self.failures:
            self.answered(changed=False)
        else:
            self.due_s = self.clock.monotonic_s() + self.intervals.last

    def answered(self, *, changed: bool, took_s: float | None = None, cpu_s: float = 0.0) -> bool:
        """Note an answer and return True if it is the first after a failure.

        Args:
            changed: the answer showed a change.
            took_s: response time; None without a question.
            cpu_s: CPU time of this process for the poll.
        """
        was_silent = self.failures > 0
        self.failures, self.doublings, self.last_error, self.outage = 0, 0, "", None
        if took_s is not None:
            self.response_s = NEWEST_WEIGHT * took_s + (1.0 - NEWEST_WEIGHT) * (self.response_s or took_s)
        # A fast scheduler is polled often even if nothing changes.
        longest_s = max(self.intervals.first, min(self.intervals.last, MAX_PAUSE * self.response_s))
        self.interval_s = self.intervals.first if changed or was_silent else min(1.5 * self.interval_s, longest_s)
        self.interval_s = max(self.interval_s, self.intervals.first, MIN_PAUSE * self.response_s, MIN_REST * cpu_s)
        self.due_s = self.clock.monotonic_s() + self.interval_s
        return was_silent

    def failed(self, why: str) -> None:
        """Note a missing answer. Nothing is asked during a pause that doubles with each failure."""
        self.last_error = why
        self.failures += 1
        self.doublings += 1
        pause_s = min(self.intervals.first * 2.0**self.doublings, self.intervals.unreachable)
        self.due_s = self.clock.monotonic_s() + pause_s * (1.0 + JITTER * (2.0 * self.jitter() - 1.0))
