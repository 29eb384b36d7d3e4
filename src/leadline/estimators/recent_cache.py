"""Remember what was made of the last few things asked about: one graph is priced on all devices of a catalog."""

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Entry = TypeVar("Entry")

# How many are remembered: of lists of ops a step, an evaluation pass, the ops of an update, and one more.
KEPT = 4


class RecentCache(Generic[Key, Entry]):
    """``make``, called once for each thing; a thing is known by being the very same object."""

    def __init__(self, make: Callable[[Key], Entry]) -> None:
        self._make = make
        self._kept: list[tuple[Key, Entry]] = []

    def __call__(self, key: Key) -> Entry:
        """Return what ``make`` makes of ``key``."""
        for cached, entry in self._kept:
            if cached is key:
                return entry
        entry = self._make(key)
        self._kept[:] = [(key, entry), *self._kept[: KEPT - 1]]
        return entry
