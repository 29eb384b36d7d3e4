"""A clock that only somebody's hand turns."""

from dataclasses import dataclass

from leadline.core.errors import InvalidInput

BEGIN_S = 1_700_000_000.0


@dataclass
class HandClock:
    """Stands still until it is turned, which is what sleeping on it does (implements ``Clock``); it can jump, too."""

    at_s: float = BEGIN_S
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
