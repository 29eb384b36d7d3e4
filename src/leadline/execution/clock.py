"""What time it is, and waiting: the port that a hand-turned clock fills in tests and simulations."""

import os
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock on the wall, one that never jumps, one of work, and sleep."""

    def now_s(self) -> float:
        """Return seconds since the epoch; it may jump."""

    def monotonic_s(self) -> float:
        """Return seconds since some moment; it never goes back."""

    def cpu_s(self) -> float:
        """Return the seconds of CPU that this process and what it ran have taken."""

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""


class SystemClock:
    """This machine's (implements ``Clock``)."""

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds since the machine started."""
        return time.monotonic()

    def cpu_s(self) -> float:
        """Return the seconds of CPU of this process and of its children that ended."""
        return sum(os.times()[:4])

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        time.sleep(duration_s)


def iso(moment_s: float) -> str:
    """Return a moment (seconds since the epoch) as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")


def epoch_s(moment: str) -> float:
    """Return seconds since the epoch of a moment in ISO 8601."""
    return datetime.fromisoformat(moment).timestamp()
