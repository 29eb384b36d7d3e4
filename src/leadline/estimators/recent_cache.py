"""Remember what was made of the last few things asked about: one graph is priced on all devices of a catalog."""

from collections.abc import Callable
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Made = TypeVar("Made")

# How many are remembered: of lists of ops a step, an evaluation pass, the ops of an update, and one more.
KEPT = 4


class RecentCache(Generic[Asked, Made]):
    """``make``, called once for each thing; a thing is known by being the very same object."""

    def __init__(self, make: Callable[[Asked], Made]) -> None:
        self._make = make
        self._kept: list[tuple[Asked, Made]] = []

    def __call__(self, asked: Asked) -> Made:
        """Return what ``make`` makes of ``asked``."""
        for known, made in self._kept:
            if known is asked:
                return made
        made = self._make(asked)
        self._kept[:] = [(asked, made), *self._kept[: KEPT - 1]]
        return made
