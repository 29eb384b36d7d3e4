"""Caches of recent results by identity: one graph is laid out once for all devices."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key")
Entry = TypeVar("Entry")

# How many are remembered: of lists of ops a step, an evaluation pass, the ops of an update, and one more.
KEPT = 4


@dataclass(slots=True)
class RecentResults(Generic[Entry]):
    """The last few results by a key, compared by identity, and a setting, compared by value."""

    most: int = 2 * KEPT
    _kept: list[tuple[object, object, Entry]] = field(default_factory=list)

    def get(self, key: object, setting: object, make: Callable[[], Entry]) -> Entry:
        """Return the cached entry, made on first use."""
        for cached, alike, entry in self._kept:
            if cached is key and alike == setting:
                return entry
        entry = make()
        self._kept[:] = [(key, setting, entry), *self._kept[: self.most - 1]]
        return entry


class RecentCache(Generic[Key, Entry]):
    """Calls ``make`` once for each of the last few keys; keys compare by identity."""

    def __init__(self, make: Callable[[Key], Entry]) -> None:
        self._make, self._results = make, RecentResults[Entry](KEPT)

    def __call__(self, key: Key) -> Entry:
        """Return the cached entry of ``key``, made on first use."""
        return self._results.get(key, None, lambda: self._make(key))
