"""Decide when jobs of one machine start, in the order they came: a later one goes first only if it delays none.

This is conservative backfilling (Mu'alem and Feitelson 2001, "Utilization, predictability, workloads, and user runtime
estimates in scheduling the IBM SP2 with backfilling", section 2): each job in turn is given the earliest time at which
it has room for the whole of its limit beside all that were given theirs before it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """How much of a machine: cores, GPUs, bytes of memory, and how many jobs."""

    cores: float = 0
    gpus: float = 0
    memory_bytes: float = 0
    jobs: float = 1

    def holds(self, other: "Room") -> bool:
        """Whether ``other`` fits in."""
        return (
            self.cores >= other.cores
            and self.gpus >= other.gpus
            and self.memory_bytes >= other.memory_bytes
            and self.jobs >= other.jobs
        )

    def plus(self, other: "Room", sign: int = 1) -> "Room":
        """Return both together; with ``sign`` -1, what ``other`` leaves."""
        return Room(
            self.cores + sign * other.cores,
            self.gpus + sign * other.gpus,
            self.memory_bytes + sign * other.memory_bytes,
            self.jobs + sign * other.jobs,
        )


@dataclass(frozen=True, slots=True)
class Stay:
    """Room that a job takes, and for how many seconds at most (infinite: it has no limit)."""

    room: Room
    lasts_s: float = math.inf


def starts_s(free: Room, running: Iterable[Stay], waiting: Sequence[Stay]) -> list[float]:
    """Return in how many seconds each waiting job starts at the latest, 0 now and infinite where no limit tells.

    ``free`` is what is free now; ``running`` is what others have and for how much longer. Behind a job whose start is
    not known none is let through.
    """
    ahead = _Profile(free)
    for stay in running:
        ahead.give_back(stay)
    found: list[float] = []
    for stay in waiting:
        start_s = math.inf if found and found[-1] == math.inf else ahead.earliest_s(stay)
        if start_s < math.inf:
            ahead.take(stay, start_s)
        found.append(start_s)
    return found


class _Profile:
    """What is free from each of some times on, in seconds from now."""

    def __init__(self, free: Room) -> None:
        self.at_s = [0.0]
        self.free = [free]

    def give_back(self, stay: Stay) -> None:
        """Count what a running job has as free after its end."""
        if stay.lasts_s < math.inf:
            self._change(self._split(stay.lasts_s), len(self.at_s), stay.room, 1)

    def earliest_s(self, stay: Stay) -> float:
        """Return the earliest time from which there is room until the job's limit."""
        begin = 0
        while begin < len(self.at_s):
            until_s = self.at_s[begin] + stay.lasts_s
            tight = next(
                (at for at in range(begin, self._index(until_s)) if not self.free[at].holds(stay.room)),
                None,
            )
            if tight is None:
                return self.at_s[begin]
            begin = tight + 1
        return math.inf

    def take(self, stay: Stay, start_s: float) -> None:
        """Keep room for a job."""
        first = self._split(start_s)
        last = len(self.at_s) if stay.lasts_s == math.inf else self._split(start_s + stay.lasts_s)
        self._change(first, last, stay.room, -1)

    def _index(self, at_s: float) -> int:
        """Return the first stretch that begins at ``at_s`` or later."""
        return bisect_left(self.at_s, at_s)

    def _split(self, at_s: float) -> int:
        """Let a stretch begin at ``at_s``, and return it."""
        index = self._index(at_s)
        if index == len(self.at_s) or self.at_s[index] != at_s:
            self.at_s.insert(index, at_s)
            self.free.insert(index, self.free[index - 1])
        return index

    def _change(self, first: int, last: int, room: Room, sign: int) -> None:
        for at in range(first, last):
            self.free[at] = self.free[at].plus(room, sign)
