"""A cache of recent results by identity: one graph is laid out once for all devices."""

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Entry = TypeVar("Entry")

# How many are remembered: of lists of ops a step, an evaluation pass, the ops of an update, and one more.
KEPT = 4


class RecentCache(Generic[Key, Entry]):
    """Calls ``make`` once for each of the last few keys; keys compare by identity."""

    def __init__(self, make: Callable[[Key], Entry]) -> None:
        self._make = make
        self._kept: list[tuple[Key, Entry]] = []

    def __call__(self, key: Key) -> Entry:
        """Return the cached entry of ``key``, made on first use."""
        for cached, entry in self._kept:
            if cached is key:
                return entry
        entry = self._make(key)
        self._kept[:] = [(key, entry), *self._kept[: KEPT - 1]]
        return entry
