"""Caches of recent results by identity: one graph is laid out once for all devices."""

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Entry = TypeVar("Entry")

# How many are remembered: of lists of ops a step, an evaluation pass, the ops of an update, and one more.
KEPT = 4


class RecentResults(Generic[Entry]):
    """The last few results by a key, compared by identity, and a setting, compared by value."""

    def __init__(self, kept: int = 2 * KEPT) -> None:
        self._most = kept
        self._kept: list[tuple[object, object, Entry]] = []

    def get(self, key: object, setting: object, make: Callable[[], Entry]) -> Entry:
        """Return the cached entry, made on first use."""
        for cached, alike, entry in self._kept:
            if cached is key and alike == setting:
                return entry
        entry = make()
        self._kept[:] = [(key, setting, entry), *self._kept[: self._most - 1]]
        return entry


class RecentCache(Generic[Key, Entry]):
    """Calls ``make`` once for each of the last few keys; keys compare by identity."""

    def __init__(self, make: Callable[[Key], Entry]) -> None:
        self._make, self._results = make, RecentResults[Entry](KEPT)

    def __call__(self, key: Key) -> Entry:
        """Return the cached entry of ``key``, made on first use."""
        return self._results.get(key, None, lambda: self._make(key))
