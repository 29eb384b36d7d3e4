"""A clock that stands still until somebody turns it."""

from leadline.core.errors import InvalidInput


class HandClock:
    """Tells the time to which it was last turned; seconds since the epoch."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def __call__(self) -> float:
        """Return the time, as ``time.time`` does."""
        return self._now_s

    def turn(self, seconds: float) -> float:
        """Let ``seconds`` pass and return the time.

        Raises:
            InvalidInput: time would run backwards.
        """
        if seconds < 0:
            raise InvalidInput(f"a clock cannot be turned by {seconds:g} s: time does not run backwards")
        self._now_s += seconds
        return self._now_s
