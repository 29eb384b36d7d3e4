"""Cores, GPUs and memory of one machine: their assignment to jobs, and the start times of waiting jobs.

Waiting jobs start by conservative backfilling (Mu'alem and Feitelson 2001, "Utilization, predictability, workloads, and
user runtime estimates in scheduling the IBM SP2 with backfilling", section 2). Each job in turn gets the earliest time
at which it fits, for its whole limit, together with all jobs before it. So a later job never delays an earlier one.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import NamedTuple

from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.units import format_bytes, pluralize


class SlotAssignment(Frozen):
    """Core numbers, GPU names and memory of one job."""

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(slots=True)
class Slots:
    """The cores, GPUs and memory for jobs, and the number of parallel jobs (None: no limit).

    A job that names no cores or no memory takes none and is not limited.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    memory_bytes: int | None = None
    max_jobs: int | None = None
    assignments: dict[str, SlotAssignment] = field(default_factory=dict)

    def rejection_reason(self, resources: ResourceSpec) -> str:
        """Return why a job can never run here; empty if it can."""
        if resources.nodes > 1:
            return f"it requests {resources.nodes} nodes, but this is one machine"
        cores = _cores(resources)
        if cores > len(self.cores):
            return f"it requests {pluralize(cores, 'core')}, but {len(self.cores)} may be used"
        if resources.gpus_per_node > len(self.gpus):
            return f"it requests {pluralize(resources.gpus_per_node, 'GPU')}, but {len(self.gpus)} may be used"
        memory = resources.memory_bytes_per_node
        if memory is not None and self.memory_bytes is not None and memory > self.memory_bytes:
            return f"it requests {format_bytes(memory)} of memory, but {format_bytes(self.memory_bytes)} may be used"
        return ""

    def take(self, key: str, resources: ResourceSpec) -> SlotAssignment | None:
        """Assign the requested slots to a job; None if too few are free."""
        if self.max_jobs is not None and len(self.assignments) >= self.max_jobs:
            return None
        taken = self.assignments.values()
        used_cores = {core for assignment in taken for core in assignment.cores}
        used_gpus = {gpu for assignment in taken for gpu in assignment.gpus}
        cores = [core for core in self.cores if core not in used_cores]
        gpus = [gpu for gpu in self.gpus if gpu not in used_gpus]
        memory = resources.memory_bytes_per_node or 0
        used_bytes = sum(assignment.memory_bytes for assignment in taken)
        if _cores(resources) > len(cores) or resources.gpus_per_node > len(gpus):
            return None
        if self.memory_bytes is not None and used_bytes + memory > self.memory_bytes:
            return None
        new = SlotAssignment(tuple(cores[: _cores(resources)]), tuple(gpus[: resources.gpus_per_node]), memory)
        self.assignments[key] = new
        return new


def _cores(resources: ResourceSpec) -> int:
    return (resources.cores_per_task or 0) * resources.tasks_per_node


class Capacity(NamedTuple):
    """An amount of cores, GPUs, memory and parallel jobs."""

    cores: float = 0
    gpus: float = 0
    memory_bytes: float = 0
    jobs: float = 1

    def holds(self, request: "Capacity") -> bool:
        """True if ``request`` fits."""
        return all(map(ge, self, request))

    def plus(self, amount: "Capacity", sign: int = 1) -> "Capacity":
        """Return the sum; with ``sign`` -1, the remainder."""
        return Capacity(*(here + sign * there for here, there in zip(self, amount, strict=True)))


class CapacityUse(Frozen):
    """Capacity that a job takes, for at most ``limit_s`` seconds (infinite without a limit)."""

    capacity: Capacity
    limit_s: float = math.inf

    @classmethod
    def of(cls, resources: ResourceSpec) -> "CapacityUse":
        """Return what a job with this request takes."""
        capacity = Capacity(_cores(resources), resources.gpus_per_node, resources.memory_bytes_per_node or 0)
        return cls(capacity, or_infinite(resources.walltime_s))


def or_infinite(limit: float | None) -> float:
    """Return a limit; infinity for None."""
    return math.inf if limit is None else limit


def backfill_starts_s(free: Capacity, running: Iterable[CapacityUse], waiting: Sequence[CapacityUse]) -> list[float]:
    """Return the latest start of each waiting job, in seconds from now; infinite if unknown.

    No job overtakes one whose start is unknown. ``free`` is free now, ``running`` is for the remaining time of each
    running job, and ``waiting`` is in queue order.
    """
    profile = _Profile(free)
    for use in running:
        profile.give_back(use)
    starts: list[float] = []
    for use in waiting:
        # A job behind an unknown start must not overtake it.
        start_s = math.inf if starts and starts[-1] == math.inf else profile.earliest_s(use)
        if start_s < math.inf:
            profile.take(use, start_s)
        starts.append(start_s)
    return starts


class _Profile:
    """Free capacity over time, in seconds from now."""

    def __init__(self, free: Capacity) -> None:
        self.at_s = [0.0]
        self.free = [free]

    def give_back(self, use: CapacityUse) -> None:
        """Count the capacity of a running job as free after its end."""
        if use.limit_s < math.inf:
            self._change(self._split(use.limit_s), len(self.at_s), use.capacity, 1)

    def earliest_s(self, use: CapacityUse) -> float:
        """Return the earliest time from which the job fits until its limit."""
        begin = 0
        while begin < len(self.at_s):
            until_s = self.at_s[begin] + use.limit_s
            intervals = range(begin, bisect_left(self.at_s, until_s))
            blocked = next((index for index in intervals if not self.free[index].holds(use.capacity)), None)
            if blocked is None:
                return self.at_s[begin]
            begin = blocked + 1
        return math.inf

    def take(self, use: CapacityUse, start_s: float) -> None:
        """Reserve capacity for a job."""
        first = self._split(start_s)
        last = len(self.at_s) if use.limit_s == math.inf else self._split(start_s + use.limit_s)
        self._change(first, last, use.capacity, -1)

    def _split(self, at_s: float) -> int:
        """Start an interval at ``at_s`` and return its index."""
        index = bisect_left(self.at_s, at_s)
        if index == len(self.at_s) or self.at_s[index] != at_s:
            self.at_s.insert(index, at_s)
            self.free.insert(index, self.free[index - 1])
        return index

    def _change(self, first: int, last: int, room: Capacity, sign: int) -> None:
        for index in range(first, last):
            self.free[index] = self.free[index].plus(room, sign)
