"""Clocks: this machine's, and one that tests and simulations advance by hand."""

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from leadline.core.errors import InvalidInput


class Clock:
    """The clocks of this machine; those of tests and simulations override its methods."""

    def now_s(self) -> float:
        """Return seconds since the epoch; the clock may jump."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds since some time, here since the machine started; never goes back."""
        return time.monotonic()

    def cpu_s(self) -> float:
        """Return the CPU seconds of this process and its ended children."""
        return sum(os.times()[:4])

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        time.sleep(duration_s)


def now_utc() -> str:
    """Return the present time of this machine as ISO 8601 in UTC, to the millisecond."""
    return iso_utc(time.time())


def iso_utc(moment_s: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")


def epoch_s(moment: str) -> float:
    """Return an ISO 8601 time as seconds since the epoch."""
    return datetime.fromisoformat(moment).timestamp()


@dataclass
class ManualClock(Clock):
    """Advances only on command, or by sleeping on it. It can jump, too."""

    at_s: float = 1_700_000_000.0
    jump_s: float = 0.0
    worked_s: float = 0.0

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        return self.at_s + self.jump_s

    def monotonic_s(self) -> float:
        """Return seconds that never jump."""
        return self.at_s

    def cpu_s(self) -> float:
        """Return the CPU seconds that a test set."""
        return self.worked_s

    def sleep(self, duration_s: float) -> None:
        """Advance the clock.

        Raises:
            InvalidInput: the duration is negative.
        """
        if duration_s < 0:
            raise InvalidInput(f"a clock cannot advance by {duration_s:g} s: use a duration of at least 0")
        self.at_s += duration_s
