"""The nodes of a simulated cluster, what of them is free, and which of them a request gets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leadline.core.errors import InvalidInput, NothingFits, UnknownName
from leadline.core.jobs import ResourceSpec

Room = list[list[int]]
"""Node → what is free there: cores, GPUs and bytes of memory."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster."""

    name: str
    cores: int
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Partition:
    """A named part of the nodes, which may overlap with another, and the longest limit of its jobs in seconds."""

    name: str
    nodes: tuple[str, ...]
    most_s: float | None = None
    default_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job wants: on each of ``nodes`` different nodes of a partition so many cores, GPUs and bytes."""

    nodes: int
    cores: int
    gpus: int = 0
    memory_bytes: int = 0
    partition: str = ""

    @classmethod
    def of(cls, resources: ResourceSpec, partition: str = "") -> "Ask":
        """Read what a job's resources come to on each node; a task without a number of cores has one."""
        cores = resources.tasks_per_node * (resources.cores_per_task or 1)
        return cls(resources.nodes, cores, resources.gpus_per_node, resources.memory_bytes_per_node or 0, partition)


@dataclass(slots=True)
class Cluster:
    """Nodes and what is free on them; without partitions all nodes are one, whose name is empty.

    Raises:
        InvalidInput: a partition names a node that is not there.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...] = ()
    free: Room = field(init=False)
    _members: Mapping[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [[node.cores, node.gpus, node.memory_bytes] for node in self.nodes]
        at = {node.name: index for index, node in enumerate(self.nodes)}
        self.partitions = self.partitions or (Partition("", tuple(at)),)
        if strange := {name for one in self.partitions for name in one.nodes} - set(at):
            raise InvalidInput(f"no node is called {', '.join(sorted(strange))}: a partition is made of the cluster's")
        self._members = {one.name: tuple(at[name] for name in one.nodes) for one in self.partitions}

    @property
    def cores(self) -> int:
        """How many cores there are."""
        return sum(node.cores for node in self.nodes)

    def partition(self, name: str) -> Partition:
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

    def check(self, ask: Ask) -> None:
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

    def place(self, ask: Ask, rooms: Sequence[Room]) -> tuple[int, ...] | None:
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


def take(room: Room, ask: Ask, nodes: Iterable[int]) -> None:
    """Take what a job asks for off the room of its nodes."""
    for index in nodes:
        free = room[index]
        free[0] -= ask.cores
        free[1] -= ask.gpus
        free[2] -= ask.memory_bytes


def give(room: Room, ask: Ask, nodes: Iterable[int]) -> None:
    """Give back to the room what a job held."""
    for index in nodes:
        free = room[index]
        free[0] += ask.cores
        free[1] += ask.gpus
        free[2] += ask.memory_bytes
