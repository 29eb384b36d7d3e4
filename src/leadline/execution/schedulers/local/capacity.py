"""What a machine has for jobs that run side by side: cores, memory and GPUs, each given to one job at a time."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from leadline.core.jobs import ResourceSpec
from leadline.core.units import format_bytes


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """What one job has: numbers of cores, names of GPUs, and memory."""

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(slots=True)
class Slots:
    """The cores, GPUs and memory for jobs, and how many jobs may run at once (``None``: as many as fit).

    A job that names no cores, or no memory, takes none of them and is held to none.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    memory_bytes: int | None = None
    max_jobs: int | None = None
    taken: dict[str, SlotAssignment] = field(default_factory=dict)

    def rejection_reason(self, asked: ResourceSpec) -> str:
        """Return why a job can never run here, as ``it asks for 8 cores, and 2 are …``; empty if it can."""
        if asked.nodes > 1:
            return f"it asks for {asked.nodes} nodes, and this is one machine"
        cores = _cores(asked)
        if cores > len(self.cores):
            return f"it asks for {_counted(cores, 'core')}, and {len(self.cores)} may be used"
        if asked.gpus_per_node > len(self.gpus):
            return f"it asks for {_counted(asked.gpus_per_node, 'GPU')}, and {len(self.gpus)} may be used"
        memory = asked.memory_bytes_per_node
        if memory is not None and self.memory_bytes is not None and memory > self.memory_bytes:
            return f"it asks for {format_bytes(memory)} of memory, and {format_bytes(self.memory_bytes)} may be used"
        return ""

    def take(self, key: str, asked: ResourceSpec) -> SlotAssignment | None:
        """Give a job what it asks for; ``None`` while there is not enough."""
        if self.max_jobs is not None and len(self.taken) >= self.max_jobs:
            return None
        cores, gpus = self._free_cores(), self._free_gpus()
        memory = asked.memory_bytes_per_node or 0
        held = sum(one.memory_bytes for one in self.taken.values())
        if _cores(asked) > len(cores) or asked.gpus_per_node > len(gpus):
            return None
        if self.memory_bytes is not None and held + memory > self.memory_bytes:
            return None
        given = SlotAssignment(tuple(cores[: _cores(asked)]), tuple(gpus[: asked.gpus_per_node]), memory)
        self.taken[key] = given
        return given

    def hold(self, key: str, given: SlotAssignment) -> None:
        """Count what a job already has, of one that was started earlier."""
        self.taken[key] = given

    def release(self, key: str) -> None:
        """Take back what a job had."""
        self.taken.pop(key, None)

    def _free_cores(self) -> list[int]:
        taken = {core for one in self.taken.values() for core in one.cores}
        return [core for core in self.cores if core not in taken]

    def _free_gpus(self) -> list[str]:
        taken = {gpu for one in self.taken.values() for gpu in one.gpus}
        return [gpu for gpu in self.gpus if gpu not in taken]


def _cores(asked: ResourceSpec) -> int:
    return (asked.cores_per_task or 0) * asked.tasks_per_node


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of a machine: cores, GPUs, bytes of memory, and how many jobs."""

    cores: float = 0
    gpus: float = 0
    memory_bytes: float = 0
    jobs: float = 1

    def holds(self, other: "Capacity") -> bool:
        """Whether ``other`` fits in."""
        return (
            self.cores >= other.cores
            and self.gpus >= other.gpus
            and self.memory_bytes >= other.memory_bytes
            and self.jobs >= other.jobs
        )

    def plus(self, other: "Capacity", sign: int = 1) -> "Capacity":
        """Return both together; with ``sign`` -1, what ``other`` leaves."""
        return Capacity(
            self.cores + sign * other.cores,
            self.gpus + sign * other.gpus,
            self.memory_bytes + sign * other.memory_bytes,
            self.jobs + sign * other.jobs,
        )


@dataclass(frozen=True, slots=True)
class CapacityUse:
    """Room that a job takes, and for how many seconds at most (infinite: it has no limit)."""

    capacity: Capacity
    limit_s: float = math.inf


def backfill_starts_s(free: Capacity, running: Iterable[CapacityUse], waiting: Sequence[CapacityUse]) -> list[float]:
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

    def __init__(self, free: Capacity) -> None:
        self.at_s = [0.0]
        self.free = [free]

    def give_back(self, stay: CapacityUse) -> None:
        """Count what a running job has as free after its end."""
        if stay.limit_s < math.inf:
            self._change(self._split(stay.limit_s), len(self.at_s), stay.capacity, 1)

    def earliest_s(self, stay: CapacityUse) -> float:
        """Return the earliest time from which there is room until the job's limit."""
        begin = 0
        while begin < len(self.at_s):
            until_s = self.at_s[begin] + stay.limit_s
            tight = next(
                (at for at in range(begin, self._index(until_s)) if not self.free[at].holds(stay.capacity)),
                None,
            )
            if tight is None:
                return self.at_s[begin]
            begin = tight + 1
        return math.inf

    def take(self, stay: CapacityUse, start_s: float) -> None:
        """Keep room for a job."""
        first = self._split(start_s)
        last = len(self.at_s) if stay.limit_s == math.inf else self._split(start_s + stay.limit_s)
        self._change(first, last, stay.capacity, -1)

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

    def _change(self, first: int, last: int, room: Capacity, sign: int) -> None:
        for at in range(first, last):
            self.free[at] = self.free[at].plus(room, sign)
