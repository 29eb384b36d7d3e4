"""A simulated cluster and its queue: first come, first served, with EASY backfill.

The first job of a partition that cannot start gets a reservation. It is the earliest time, and the nodes, at which the
job could start if every running job took its expected time (D. Lifka, "The ANL/IBM SP scheduling system", 1995). A
later job may start at once if it ends by then, or if it runs on nodes that the reservation leaves free. There is no
clock and no randomness.
"""

import math
from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter, itemgetter

from leadline.core.errors import InvalidInput, NothingFits, UnknownName
from leadline.core.jobs import ResourceSpec

FreeNodes = list[list[int]]
"""Node -> its free cores, GPUs and bytes of memory."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A machine of a cluster."""

    name: str
    cores: int
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedPartition:
    """A named part of the nodes, which may overlap another, with the longest and the default limit in seconds."""

    name: str
    nodes: tuple[str, ...]
    max_s: float | None = None
    default_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request of cores, GPUs and bytes on each of ``nodes`` different nodes of a partition."""

    nodes: int
    cores: int
    gpus: int = 0
    memory_bytes: int = 0
    partition: str = ""

    @classmethod
    def of(cls, resources: ResourceSpec, partition: str = "") -> "NodeRequest":
        """Convert a job's resources to a request per node; a task without a number of cores has one."""
        cores = resources.tasks_per_node * (resources.cores_per_task or 1)
        return cls(resources.nodes, cores, resources.gpus_per_node, resources.memory_bytes_per_node or 0, partition)


@dataclass(slots=True)
class SimulatedCluster:
    """Nodes and their free resources; without partitions all nodes form one without a name.

    Raises:
        InvalidInput: a partition names an unknown node.
    """

    nodes: tuple[SimulatedNode, ...]
    partitions: tuple[SimulatedPartition, ...] = ()
    free: FreeNodes = field(init=False)
    _members: Mapping[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [[node.cores, node.gpus, node.memory_bytes] for node in self.nodes]
        indices = {node.name: index for index, node in enumerate(self.nodes)}
        self.partitions = self.partitions or (SimulatedPartition("", tuple(indices)),)
        if unknown := {name for partition in self.partitions for name in partition.nodes} - set(indices):
            raise InvalidInput(f"no node is called {', '.join(sorted(unknown))}: use nodes of the cluster")
        self._members = {
            partition.name: tuple(indices[name] for name in partition.nodes) for partition in self.partitions
        }

    @property
    def cores(self) -> int:
        """Number of cores."""
        return sum(node.cores for node in self.nodes)

    def partition(self, name: str) -> SimulatedPartition:
        """Return a partition by its name, or the first one for an empty name.

        Raises:
            UnknownName: there is no such partition.
        """
        if not name:
            return self.partitions[0]
        for partition in self.partitions:
            if partition.name == name:
                return partition
        raise UnknownName("partition", name, self._members)

    def check(self, request: NodeRequest) -> None:
        """Check that a request fits into the empty cluster.

        Raises:
            NothingFits: it requests more than the partition has.
            UnknownName: there is no such partition.
        """
        partition = self.partition(request.partition)
        empty = [[node.cores, node.gpus, node.memory_bytes] for node in self.nodes]
        if self.place(request, [empty]) is None:
            raise NothingFits(
                f"{request.nodes} nodes with {request.cores} cores, {request.gpus} GPUs and "
                f"{request.memory_bytes} bytes each are more than partition {partition.name!r} "
                "has: request less, or another partition"
            )

    def place(self, request: NodeRequest, states: Sequence[FreeNodes]) -> tuple[int, ...] | None:
        """Return the first nodes with enough free in every one of ``states``; None if there are too few."""
        chosen: list[int] = []
        cores, gpus, memory = request.cores, request.gpus, request.memory_bytes
        for index in self._members[request.partition or self.partitions[0].name]:
            for state in states:
                free = state[index]
                if free[0] < cores or free[1] < gpus or free[2] < memory:
                    break
            else:
                chosen.append(index)
                if len(chosen) == request.nodes:
                    return tuple(chosen)
        return None


def occupy_nodes(state: FreeNodes, request: NodeRequest, nodes: Iterable[int]) -> None:
    """Subtract a request from the free resources of its nodes."""
    for index in nodes:
        free = state[index]
        free[0] -= request.cores
        free[1] -= request.gpus
        free[2] -= request.memory_bytes


def free_nodes(state: FreeNodes, request: NodeRequest, nodes: Iterable[int]) -> None:
    """Add a request to the free resources of its nodes."""
    for index in nodes:
        free = state[index]
        free[0] += request.cores
        free[1] += request.gpus
        free[2] += request.memory_bytes


Key = Hashable


@dataclass(slots=True)
class WaitingJob:
    """A job in the queue.

    Attributes:
        expected_s: run time that the scheduler expects.
        least_s: the job may get less time, down to this, if it can then start at once: Slurm's ``--time-min``.
    """

    key: Key
    request: NodeRequest
    expected_s: float
    least_s: float


@dataclass(slots=True)
class RunningJob:
    """A job on its nodes, and its expected end."""

    key: Key
    request: NodeRequest
    nodes: tuple[int, ...]
    started_s: float
    until_s: float


@dataclass(slots=True)
class Reservation:
    """Latest start of the first waiting job of a partition, its nodes, and the resources left from then on."""

    key: Key
    request: NodeRequest
    at_s: float
    expected_s: float
    nodes: tuple[int, ...]
    remaining: FreeNodes


_Change = tuple[float, Callable[[FreeNodes, NodeRequest, tuple[int, ...]], None], NodeRequest, tuple[int, ...]]


class EasyQueue:
    """A cluster with a queue. Times are seconds on any one scale, passed by the caller.

    A reservation holds as long as no job runs longer than expected. If partitions share nodes, later ones reserve what
    earlier reservations leave. Without ``backfills`` the queue is plain first come, first served.
    """

    def __init__(self, cluster: SimulatedCluster, *, backfills: bool = True) -> None:
        self.cluster = cluster
        self.backfills = backfills
        self.waiting: dict[Key, WaitingJob] = {}
        self.running: dict[Key, RunningJob] = {}
        self.reservations: dict[str, Reservation] = {}
        self._ends: list[RunningJob] = []
        self._new: list[WaitingJob] = []
        self._stale = True

    def submit(self, key: Key, request: NodeRequest, expected_s: float, *, least_s: float | None = None) -> None:
        """Add a job to the end of the queue; it may get less time, down to ``least_s``.

        Raises:
            InvalidInput: the key is in use, or the time is not positive.
            NothingFits: it does not fit into the empty cluster.
        """
        if key in self.waiting or key in self.running:
            raise InvalidInput(f"job {key!r} already exists: use a new key for every submission")
        if not expected_s > 0:
            raise InvalidInput(f"a limit of {expected_s:g} s is not possible: use more than 0 s")
        self.cluster.check(request)
        placed_request = replace(request, partition=self.cluster.partition(request.partition).name)
        self.waiting[key] = job = WaitingJob(key, placed_request, expected_s, min(least_s or expected_s, expected_s))
        self._new.append(job)

    def change(self, key: Key, expected_s: float) -> None:
        """Change the time of a job, counted from its start if it runs."""
        if job := self.waiting.get(key):
            job.expected_s, job.least_s = expected_s, min(job.least_s, expected_s)
        else:
            running = self.running[key]
            self._ends.remove(running)
            running.until_s = running.started_s + expected_s
            insort(self._ends, running, key=_until)
        self._stale = True

    def remove(self, key: Key) -> None:
        """Remove a job and free its nodes."""
        self._stale = True
        if self.waiting.pop(key, None) is None:
            job = self.running.pop(key)
            self._ends.remove(job)
            free_nodes(self.cluster.free, job.request, job.nodes)

    def refresh(self) -> None:
        """Consider all waiting jobs again, after a change of the free nodes from outside."""
        self._stale = True

    def start(self, now_s: float) -> list[RunningJob]:
        """Start all jobs that can start now, in queue order, and return them.

        As long as nothing was freed, jobs that could not start before cannot start now, so only new ones are tried.
        """
        stale, self._stale = self._stale, False
        candidates, self._new = (list(self.waiting.values()) if stale else self._new), []
        if stale:
            self.reservations = {}
        started: list[RunningJob] = []
        rejected: dict[NodeRequest, float] = {}
        for job in candidates:
            has_reservation = job.request.partition in self.reservations
            if has_reservation and (not self.backfills or job.least_s >= rejected.get(job.request, math.inf)):
                continue
            if running := self._begin(job, now_s):
                started.append(running)
                continue
            # Equal requests behind it cannot start either, which saves most of the work.
            rejected[job.request] = job.least_s
            if not has_reservation:
                self._reserve(job, now_s)
        return started

    def forecast_s(self, request: NodeRequest, expected_s: float, now_s: float) -> float | None:
        """Return when a job submitted now would start if all others took their whole time.

        Nothing is changed. The result is None if too few nodes are left for any start.
        """
        plan = EasyQueue(SimulatedCluster(self.cluster.nodes, self.cluster.partitions), backfills=self.backfills)
        # Copies: the forecast must not change the real state.
        plan.cluster.free = [list(free) for free in self.cluster.free]
        plan.running = {key: RunningJob(key, job.request, job.nodes, job.started_s, max(job.until_s, now_s))
                        for key, job in self.running.items()}  # fmt: skip
        plan._ends = sorted(plan.running.values(), key=_until)
        plan.waiting = {
            key: WaitingJob(key, job.request, job.expected_s, job.least_s) for key, job in self.waiting.items()
        }
        probe_key = object()
        plan.submit(probe_key, request, expected_s)
        at_s = now_s
        while not any(job.key is probe_key for job in plan.start(at_s)):
            if not plan._ends:
                return None
            at_s = plan._ends[0].until_s
            for job in [job for job in plan._ends if job.until_s <= at_s]:
                plan.remove(job.key)
        return at_s

    def _begin(self, job: WaitingJob, now_s: float) -> RunningJob | None:
        """Start a job with as much time as the reservations allow; None if it cannot start."""
        ends_s = {
            reservation.at_s
            for reservation in self.reservations.values()
            if job.least_s <= reservation.at_s - now_s < job.expected_s
        }
        # The longest possible time first, then every end that still respects the reservations.
        for end_s in (now_s + job.expected_s, *sorted(ends_s, reverse=True)):
            affected = [reservation.remaining for reservation in self.reservations.values() if end_s > reservation.at_s]
            nodes = self.cluster.place(job.request, [self.cluster.free, *affected])
            if nodes is not None:
                break
        else:
            return None
        for state in (self.cluster.free, *affected):
            occupy_nodes(state, job.request, nodes)
        running = RunningJob(job.key, job.request, nodes, now_s, end_s)
        del self.waiting[job.key]
        self.running[job.key] = running
        insort(self._ends, running, key=_until)
        return running

    def _reserve(self, job: WaitingJob, now_s: float) -> None:
        """Reserve the first time at which enough is free in addition to the earlier reservations.

        If those leave the job nothing, it gets no reservation.
        """
        state = [list(free) for free in self.cluster.free]
        for at_s, changes in groupby(self._changes(), key=itemgetter(0)):
            for _, change, request, nodes in changes:
                change(state, request, nodes)
            later = [
                reservation.remaining
                for reservation in self.reservations.values()
                if at_s < reservation.at_s < at_s + job.expected_s
            ]
            chosen = self.cluster.place(job.request, [state, *later])
            if chosen is not None:
                for free_state in (state, *later):
                    occupy_nodes(free_state, job.request, chosen)
                new = Reservation(job.key, job.request, max(at_s, now_s), job.expected_s, chosen, state)
                self.reservations[job.request.partition] = new
                return

    def _changes(self) -> list[_Change]:
        """Return the releases of running jobs and the starts and ends of reservations, in time order."""
        changes: list[_Change] = [(entry.until_s, free_nodes, entry.request, entry.nodes) for entry in self._ends]
        if self.reservations:
            reservations = self.reservations.values()
            changes += [(entry.at_s, occupy_nodes, entry.request, entry.nodes) for entry in reservations]
            changes += [
                (entry.at_s + entry.expected_s, free_nodes, entry.request, entry.nodes) for entry in reservations
            ]
            changes.sort(key=itemgetter(0))
        return changes


_until = attrgetter("until_s")
