"""The nodes of a simulated cluster, what of them is free, and which of them a request gets."""

import math
from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter, itemgetter

from leadline.core.errors import InvalidInput, NothingFits, UnknownName
from leadline.core.jobs import ResourceSpec

FreeNodes = list[list[int]]
"""Node → what is free there: cores, GPUs and bytes of memory."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A machine of a cluster."""

    name: str
    cores: int
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedPartition:
    """A named part of the nodes, which may overlap with another, and the longest limit of its jobs in seconds."""

    name: str
    nodes: tuple[str, ...]
    max_s: float | None = None
    default_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a job wants: on each of ``nodes`` different nodes of a partition so many cores, GPUs and bytes."""

    nodes: int
    cores: int
    gpus: int = 0
    memory_bytes: int = 0
    partition: str = ""

    @classmethod
    def of(cls, resources: ResourceSpec, partition: str = "") -> "NodeRequest":
        """Read what a job's resources come to on each node; a task without a number of cores has one."""
        cores = resources.tasks_per_node * (resources.cores_per_task or 1)
        return cls(resources.nodes, cores, resources.gpus_per_node, resources.memory_bytes_per_node or 0, partition)


@dataclass(slots=True)
class SimulatedCluster:
    """Nodes and what is free on them; without partitions all nodes are one, whose name is empty.

    Raises:
        InvalidInput: a partition names a node that is not there.
    """

    nodes: tuple[SimulatedNode, ...]
    partitions: tuple[SimulatedPartition, ...] = ()
    free: FreeNodes = field(init=False)
    _members: Mapping[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [[node.cores, node.gpus, node.memory_bytes] for node in self.nodes]
        at = {node.name: index for index, node in enumerate(self.nodes)}
        self.partitions = self.partitions or (SimulatedPartition("", tuple(at)),)
        if strange := {name for one in self.partitions for name in one.nodes} - set(at):
            raise InvalidInput(f"no node is called {', '.join(sorted(strange))}: a partition is made of the cluster's")
        self._members = {one.name: tuple(at[name] for name in one.nodes) for one in self.partitions}

    @property
    def cores(self) -> int:
        """How many cores there are."""
        return sum(node.cores for node in self.nodes)

    def partition(self, name: str) -> SimulatedPartition:
        """Return a partition by its name; the first one where none is named.

        Raises:
            UnknownName: there is none of that name.
        """
        if not name:
            return self.partitions[0]
        for one in self.partitions:
            if one.name == name:
                return one
        raise UnknownName("partition", name, self._members)

    def check(self, ask: NodeRequest) -> None:
        """Make sure that a request fits when nothing else runs.

        Raises:
            NothingFits: it asks for more than the partition has.
            UnknownName: there is no such partition.
        """
        partition = self.partition(ask.partition)
        empty = [[node.cores, node.gpus, node.memory_bytes] for node in self.nodes]
        if self.place(ask, [empty]) is None:
            raise NothingFits(
                f"{ask.nodes} nodes with {ask.cores} cores, {ask.gpus} GPUs and {ask.memory_bytes} bytes each are more "
                f"than partition {partition.name!r} has: ask for less, or for another partition"
            )

    def place(self, ask: NodeRequest, rooms: Sequence[FreeNodes]) -> tuple[int, ...] | None:
        """Return the first nodes that have room in every one of ``rooms``; ``None`` if too few have."""
        found: list[int] = []
        cores, gpus, memory = ask.cores, ask.gpus, ask.memory_bytes
        for index in self._members[ask.partition or self.partitions[0].name]:
            for room in rooms:
                free = room[index]
                if free[0] < cores or free[1] < gpus or free[2] < memory:
                    break
            else:
                found.append(index)
                if len(found) == ask.nodes:
                    return tuple(found)
        return None


def occupy_nodes(room: FreeNodes, ask: NodeRequest, nodes: Iterable[int]) -> None:
    """Take what a job asks for off the room of its nodes."""
    for index in nodes:
        free = room[index]
        free[0] -= ask.cores
        free[1] -= ask.gpus
        free[2] -= ask.memory_bytes


def free_nodes(room: FreeNodes, ask: NodeRequest, nodes: Iterable[int]) -> None:
    """Give back to the room what a job held."""
    for index in nodes:
        free = room[index]
        free[0] += ask.cores
        free[1] += ask.gpus
        free[2] += ask.memory_bytes


Key = Hashable


@dataclass(slots=True)
class WaitingJob:
    """A job in the queue; ``expected_s`` is how long it will run as far as the scheduler knows.

    It may be given less than that, down to ``least_s``, if it can start at once that way: Slurm's ``--time-min``.
    """

    key: Key
    ask: NodeRequest
    expected_s: float
    least_s: float


@dataclass(slots=True)
class RunningJob:
    """A job on its nodes, and when it is expected to end."""

    key: Key
    ask: NodeRequest
    nodes: tuple[int, ...]
    started_s: float
    until_s: float


@dataclass(slots=True)
class Reservation:
    """When the first waiting job of a partition starts at the latest, where, and what is left over from then on."""

    key: Key
    ask: NodeRequest
    at_s: float
    expected_s: float
    nodes: tuple[int, ...]
    left: FreeNodes


_Change = tuple[float, Callable[[FreeNodes, NodeRequest, tuple[int, ...]], None], NodeRequest, tuple[int, ...]]


class EasyQueue:
    """A cluster with a queue before it; times are seconds on any one scale, and are handed in.

    The promise to the first job in the queue is kept as long as nothing runs longer than it was expected to; where
    partitions share nodes, the first jobs of the later ones are promised what the earlier promises leave.
    ``backfills`` off is plain first come, first served.
    """

    def __init__(self, cluster: SimulatedCluster, *, backfills: bool = True) -> None:
        self.cluster = cluster
        self.backfills = backfills
        self.waiting: dict[Key, WaitingJob] = {}
        self.running: dict[Key, RunningJob] = {}
        self.promises: dict[str, Reservation] = {}
        self._ends: list[RunningJob] = []
        self._new: list[WaitingJob] = []
        self._stale = True

    def submit(self, key: Key, ask: NodeRequest, expected_s: float, *, least_s: float | None = None) -> None:
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
        self.waiting[key] = job = WaitingJob(key, named, expected_s, min(least_s or expected_s, expected_s))
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
            free_nodes(self.cluster.free, job.ask, job.nodes)

    def refresh(self) -> None:
        """Look at all that wait again: what of the nodes is free was changed from outside."""
        self._stale = True

    def start(self, now_s: float) -> list[RunningJob]:
        """Start all jobs that may start now, in the order of the queue, and return them.

        As long as nothing was freed, those that could not start before cannot now, and the new ones alone are tried.
        """
        stale, self._stale = self._stale, False
        tried, self._new = (list(self.waiting.values()) if stale else self._new), []
        if stale:
            self.promises = {}
        started: list[RunningJob] = []
        rejected: dict[NodeRequest, float] = {}
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

    def forecast_s(self, ask: NodeRequest, expected_s: float, now_s: float) -> float | None:
        """Return when a job that came now would start if all before it, and those that run, took their whole time.

        Nothing is changed. It is ``None`` where too few nodes are left for it to start at all.
        """
        plan = EasyQueue(SimulatedCluster(self.cluster.nodes, self.cluster.partitions), backfills=self.backfills)
        plan.cluster.free = [list(free) for free in self.cluster.free]
        plan.running = {key: RunningJob(key, one.ask, one.nodes, one.started_s, max(one.until_s, now_s))
                        for key, one in self.running.items()}  # fmt: skip
        plan._ends = sorted(plan.running.values(), key=_until)
        plan.waiting = {key: WaitingJob(key, one.ask, one.expected_s, one.least_s) for key, one in self.waiting.items()}
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

    def _begin(self, job: WaitingJob, now_s: float) -> RunningJob | None:
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
            occupy_nodes(left, job.ask, nodes)
        running = RunningJob(job.key, job.ask, nodes, now_s, end_s)
        del self.waiting[job.key]
        self.running[job.key] = running
        insort(self._ends, running, key=_until)
        return running

    def _promise(self, job: WaitingJob, now_s: float) -> None:
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
                    occupy_nodes(left, job.ask, found)
                promise = Reservation(job.key, job.ask, max(at_s, now_s), job.expected_s, found, room)
                self.promises[job.ask.partition] = promise
                return

    def _changes(self) -> list[_Change]:
        """Return what becomes free, and is taken again by those who were promised it, in the order of time."""
        changes: list[_Change] = [(one.until_s, free_nodes, one.ask, one.nodes) for one in self._ends]
        if self.promises:
            promises = self.promises.values()
            changes += [(one.at_s, occupy_nodes, one.ask, one.nodes) for one in promises]
            changes += [(one.at_s + one.expected_s, free_nodes, one.ask, one.nodes) for one in promises]
            changes.sort(key=itemgetter(0))
        return changes


_until = attrgetter("until_s")
