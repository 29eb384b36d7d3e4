"""Remember what was made of the last few lists of ops: one graph is priced on all devices of a catalog."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from leadline.core.graph import Op

Made = TypeVar("Made")

KEPT = 4
"""How many lists are remembered: a step, an evaluation pass, the ops of an update, and one more."""


class Remembered(Generic[Made]):
    """``make``, called once for each list of ops; a list is known by being the very same object."""

    def __init__(self, make: Callable[[Sequence[Op]], Made]) -> None:
        self._make = make
        self._kept: list[tuple[Sequence[Op], Made]] = []

    def __call__(self, ops: Sequence[Op]) -> Made:
        """Return what ``make`` makes of ``ops``."""
        for known, made in self._kept:
            if known is ops:
                return made
        made = self._make(ops)
        self._kept[:] = [(ops, made), *self._kept[: KEPT - 1]]
        return made
