"""What time it is, and waiting: the port that a hand-turned clock fills in tests and simulations."""

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from leadline.core.errors import InvalidInput


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


def iso_utc(moment_s: float) -> str:
    """Return a moment (seconds since the epoch) as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")


def epoch_s(moment: str) -> float:
    """Return seconds since the epoch of a moment in ISO 8601."""
    return datetime.fromisoformat(moment).timestamp()


MANUAL_CLOCK_START_S = 1_700_000_000.0


@dataclass
class ManualClock:
    """Stands still until it is turned, which is what sleeping on it does (implements ``Clock``); it can jump, too."""

    at_s: float = MANUAL_CLOCK_START_S
    jump_s: float = 0.0
    worked_s: float = 0.0

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        return self.at_s + self.jump_s

    def monotonic_s(self) -> float:
        """Return seconds that never jump."""
        return self.at_s

    def cpu_s(self) -> float:
        """Return the CPU that somebody says was taken."""
        return self.worked_s

    def sleep(self, duration_s: float) -> None:
        """Let time pass.

        Raises:
            InvalidInput: time would run backwards.
        """
        if duration_s < 0:
            raise InvalidInput(f"a clock cannot be turned by {duration_s:g} s: time does not run backwards")
        self.at_s += duration_s
