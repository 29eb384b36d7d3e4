"""What a machine has for jobs that run side by side: cores, memory and GPUs, each given to one job at a time."""

from dataclasses import dataclass, field

from leadline.core.jobs import ResourceSpec
from leadline.core.units import format_bytes


@dataclass(frozen=True, slots=True)
class Assignment:
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
    most: int | None = None
    taken: dict[str, Assignment] = field(default_factory=dict)

    def why_never(self, asked: ResourceSpec) -> str:
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

    def take(self, key: str, asked: ResourceSpec) -> Assignment | None:
        """Give a job what it asks for; ``None`` while there is not enough."""
        if self.most is not None and len(self.taken) >= self.most:
            return None
        cores, gpus = self._free_cores(), self._free_gpus()
        memory = asked.memory_bytes_per_node or 0
        held = sum(one.memory_bytes for one in self.taken.values())
        if _cores(asked) > len(cores) or asked.gpus_per_node > len(gpus):
            return None
        if self.memory_bytes is not None and held + memory > self.memory_bytes:
            return None
        given = Assignment(tuple(cores[: _cores(asked)]), tuple(gpus[: asked.gpus_per_node]), memory)
        self.taken[key] = given
        return given

    def hold(self, key: str, given: Assignment) -> None:
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
