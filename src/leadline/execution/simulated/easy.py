"""First come, first served, with EASY backfill: who starts now, of those that wait; no clock and no randomness.

The first job of a partition that cannot start is promised the earliest time at which it could if every running job
took all of what it is expected to take, and nodes to start on (D. Lifka, "The ANL/IBM SP scheduling system", 1995). A
job behind it may start at once if it ends by then, or if it runs on what the promise leaves over.
"""

import math
from bisect import insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter

from leadline.core.errors import InvalidInput
from leadline.execution.simulated.cluster import Ask, Cluster, Room, give, take

Key = Hashable


@dataclass(slots=True)
class Waiting:
    """A job in the queue; ``expected_s`` is how long it will run as far as the scheduler knows.

    It may be given less than that, down to ``least_s``, if it can start at once that way: Slurm's ``--time-min``.
    """

    key: Key
    ask: Ask
    expected_s: float
    least_s: float


@dataclass(slots=True)
class Running:
    """A job on its nodes, and when it is expected to end."""

    key: Key
    ask: Ask
    nodes: tuple[int, ...]
    started_s: float
    until_s: float


@dataclass(slots=True)
class Promise:
    """When the first waiting job of a partition starts at the latest, where, and what is left over from then on."""

    key: Key
    ask: Ask
    at_s: float
    expected_s: float
    nodes: tuple[int, ...]
    left: Room


_Change = tuple[float, Callable[[Room, Ask, tuple[int, ...]], None], Ask, tuple[int, ...]]


class EasyQueue:
    """A cluster with a queue before it; times are seconds on any one scale, and are handed in.

    The promise to the first job in the queue is kept as long as nothing runs longer than it was expected to; where
    partitions share nodes, the first jobs of the later ones are promised what the earlier promises leave.
    ``backfills`` off is plain first come, first served.
    """

    def __init__(self, cluster: Cluster, *, backfills: bool = True) -> None:
        self.cluster = cluster
        self.backfills = backfills
        self.waiting: dict[Key, Waiting] = {}
        self.running: dict[Key, Running] = {}
        self.promises: dict[str, Promise] = {}
        self._ends: list[Running] = []
        self._new: list[Waiting] = []
        self._stale = True

    def submit(self, key: Key, ask: Ask, expected_s: float, *, least_s: float | None = None) -> None:
        """Put a job at the end of the queue; it can be given less time, down to ``least_s``.

        Raises:
            InvalidInput: the key is taken, or the time is not above zero.
            NothingFits: it would not fit if nothing else ran.
        """
        if key in self.waiting or key in self.running:
            raise InvalidInput(f"job {key!r} is there already: every submission has a key of its own")
        if not expected_s > 0:
            raise InvalidInput(f"a limit of {expected_s:g} s is not usable: ask for more than 0 s")
        self.cluster.check(ask)
        named = replace(ask, partition=self.cluster.partition(ask.partition).name)
        self.waiting[key] = job = Waiting(key, named, expected_s, min(least_s or expected_s, expected_s))
        self._new.append(job)

    def change(self, key: Key, expected_s: float) -> None:
        """Take another time for a job: from its start, if it runs."""
        if job := self.waiting.get(key):
            job.expected_s, job.least_s = expected_s, min(job.least_s, expected_s)
        else:
            running = self.running[key]
            self._ends.remove(running)
            running.until_s = running.started_s + expected_s
            insort(self._ends, running, key=_until)
        self._stale = True

    def remove(self, key: Key) -> None:
        """Forget a job that ended, or no longer waits, and free what it held."""
        self._stale = True
        if self.waiting.pop(key, None) is None:
            job = self.running.pop(key)
            self._ends.remove(job)
            give(self.cluster.free, job.ask, job.nodes)

    def refresh(self) -> None:
        """Look at all that wait again: what of the nodes is free was changed from outside."""
        self._stale = True

    def start(self, now_s: float) -> list[Running]:
        """Start all jobs that may start now, in the order of the queue, and return them.

        As long as nothing was freed, those that could not start before cannot now, and the new ones alone are tried.
        """
        stale, self._stale = self._stale, False
        tried, self._new = (list(self.waiting.values()) if stale else self._new), []
        if stale:
            self.promises = {}
        started: list[Running] = []
        rejected: dict[Ask, float] = {}
        for job in tried:
            promised = job.ask.partition in self.promises
            if promised and (not self.backfills or job.least_s >= rejected.get(job.ask, math.inf)):
                continue
            if running := self._begin(job, now_s):
                started.append(running)
                continue
            rejected[job.ask] = job.least_s
            if not promised:
                self._promise(job, now_s)
        return started

    def forecast_s(self, ask: Ask, expected_s: float, now_s: float) -> float | None:
        """Return when a job that came now would start if all before it, and those that run, took their whole time.

        Nothing is changed. It is ``None`` where too few nodes are left for it to start at all.
        """
        plan = EasyQueue(Cluster(self.cluster.nodes, self.cluster.partitions), backfills=self.backfills)
        plan.cluster.free = [list(free) for free in self.cluster.free]
        plan.running = {key: Running(key, one.ask, one.nodes, one.started_s, max(one.until_s, now_s))
                        for key, one in self.running.items()}  # fmt: skip
        plan._ends = sorted(plan.running.values(), key=_until)
        plan.waiting = {key: Waiting(key, one.ask, one.expected_s, one.least_s) for key, one in self.waiting.items()}
        asked = object()
        plan.submit(asked, ask, expected_s)
        at_s = now_s
        while not any(one.key is asked for one in plan.start(at_s)):
            if not plan._ends:
                return None
            at_s = plan._ends[0].until_s
            for one in [one for one in plan._ends if one.until_s <= at_s]:
                plan.remove(one.key)
        return at_s

    def _begin(self, job: Waiting, now_s: float) -> Running | None:
        """Start a job now with as much time as it may have without breaking a promise; ``None`` if it cannot start."""
        ends_s = {one.at_s for one in self.promises.values() if job.least_s <= one.at_s - now_s < job.expected_s}
        for end_s in (now_s + job.expected_s, *sorted(ends_s, reverse=True)):
            broken = [one.left for one in self.promises.values() if end_s > one.at_s]
            nodes = self.cluster.place(job.ask, [self.cluster.free, *broken])
            if nodes is not None:
                break
        else:
            return None
        for left in (self.cluster.free, *broken):
            take(left, job.ask, nodes)
        running = Running(job.key, job.ask, nodes, now_s, end_s)
        del self.waiting[job.key]
        self.running[job.key] = running
        insort(self._ends, running, key=_until)
        return running

    def _promise(self, job: Waiting, now_s: float) -> None:
        """Promise a job the first moment at which enough is free beside the promises that were made before.

        Where those leave it nothing for good, it is promised nothing.
        """
        room = [list(free) for free in self.cluster.free]
        for at_s, changes in groupby(self._changes(), key=itemgetter(0)):
            for _, change, ask, nodes in changes:
                change(room, ask, nodes)
            later = [one.left for one in self.promises.values() if at_s < one.at_s < at_s + job.expected_s]
            found = self.cluster.place(job.ask, [room, *later])
            if found is not None:
                for left in (room, *later):
                    take(left, job.ask, found)
                promise = Promise(job.key, job.ask, max(at_s, now_s), job.expected_s, found, room)
                self.promises[job.ask.partition] = promise
                return

    def _changes(self) -> list[_Change]:
        """Return what becomes free, and is taken again by those who were promised it, in the order of time."""
        changes: list[_Change] = [(one.until_s, give, one.ask, one.nodes) for one in self._ends]
        if self.promises:
            promises = self.promises.values()
            changes += [(one.at_s, take, one.ask, one.nodes) for one in promises]
            changes += [(one.at_s + one.expected_s, give, one.ask, one.nodes) for one in promises]
            changes.sort(key=itemgetter(0))
        return changes


_until = attrgetter("until_s")
