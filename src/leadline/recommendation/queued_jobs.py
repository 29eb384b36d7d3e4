"""Which queued jobs no longer can run after a system changed, and why; pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import UNLISTED_NODES, Partition, System, SystemChange
from leadline.core.units import format_bytes, format_duration
from leadline.recommendation.feasibility import Refusal


@dataclass(frozen=True, slots=True)
class UnrunnableJob:
    """A queued job that can never start where it waits; ``refusals`` are those of the place that came nearest."""

    spec: JobSpec
    refusals: tuple[Refusal, ...]

    @property
    def sentence(self) -> str:
        """Say which job and why."""
        where = self.spec.partition or "any partition"
        return f"{self.spec.name} cannot run in {where} any more: {'; '.join(one.reason for one in self.refusals)}"


def find_unrunnable_jobs(change: SystemChange, queued: Iterable[JobSpec]) -> list[UnrunnableJob]:
    """Return the jobs of ``queued`` on that system that could run before the change, and cannot now.

    Where nothing was known before, those that cannot run now. A job that names no partition is broken when none would
    take it; one that names a queue of several node types, when none of them would.
    """
    found = []
    for spec in queued:
        if spec.system is not None and spec.system.casefold() != change.after.name.casefold():
            continue
        now = job_refusals(change.after, spec, change.before)
        if now and (change.before is None or not job_refusals(change.before, spec)):
            found.append(UnrunnableJob(spec, now))
    return found


def job_refusals(system: System, spec: JobSpec, before: System | None = None) -> tuple[Refusal, ...]:
    """Return why a job can never start on a system, at the place that comes nearest; nothing if it can.

    ``before`` tells a partition that is gone from a node type of it that is.
    """
    places = _places(system, spec.partition) or _hidden(system, spec.partition or "", before)
    if not places:
        return (_gone(system, spec.partition or "", before),)
    each = [check_request(place, spec.resources) for place in places]
    return min(each, key=len)


def check_request(partition: Partition, asked: ResourceSpec) -> tuple[Refusal, ...]:
    """Return every limit of a partition that a request is beyond, by which the scheduler would never start it."""
    found = (
        _walltime(partition, asked),
        _nodes(partition, asked),
        _cores(partition, asked),
        _gpus(partition, asked),
        _memory(partition, asked),
    )
    return tuple(refusal for refusal in found if refusal is not None)


def _places(system: System, name: str | None) -> Sequence[Partition]:
    """Return the rows that a job's partition may mean: the row of that name, else all of the queue's."""
    if name is None:
        return system.partitions
    folded = name.casefold()
    exact = [one for one in system.partitions if one.name.casefold() == folded and one.queue in (None, one.name)]
    rows = [one for one in system.partitions if one.name.casefold() == folded]
    queued = [one for one in system.partitions if (one.queue or "").casefold() == folded]
    return [*exact, *queued] or rows


def _hidden(system: System, name: str, before: System | None) -> Sequence[Partition]:
    """Return a queue whose nodes are not shown any more, where a job names one of the types that it had."""
    queues = {one.queue or one.name for one in (before.partitions if before else ()) if one.name == name}
    rows = [place for queue in queues for place in _places(system, queue)]
    return [one for one in rows if one.node.name == UNLISTED_NODES]


def _gone(system: System, name: str, before: System | None) -> Refusal:
    if before is not None:
        for one in before.partitions:
            queue = one.queue or one.name
            if one.name.casefold() == name.casefold() and _places(system, queue):
                return Refusal("nodes-gone", f"{queue} has no nodes of type {one.node.name} any more")
    return Refusal("partition-gone", f"{system.name} has no partition {name} any more")


def _walltime(partition: Partition, asked: ResourceSpec) -> Refusal | None:
    limit, wanted = partition.limits.max_walltime_s, asked.walltime_s
    if limit is None or wanted is None or wanted <= limit:
        return None
    return Refusal(
        "walltime",
        f"walltime: asks for {format_duration(wanted)}, the limit is {format_duration(limit)}",
        wanted / limit,
        f"a job of at most {format_duration(limit)}",
    )


def _nodes(partition: Partition, asked: ResourceSpec) -> Refusal | None:
    limits, count = partition.limits, partition.node.count
    most = min((one for one in (limits.max_nodes, count) if one is not None), default=None)
    if most is not None and asked.nodes > most:
        return Refusal("too-many-nodes", f"takes jobs of at most {most} nodes, not {asked.nodes}",
                       asked.nodes / most if most else None, f"at most {most} nodes")  # fmt: skip
    if limits.min_nodes and asked.nodes < limits.min_nodes:
        return Refusal("too-few-nodes", f"takes jobs of at least {limits.min_nodes} nodes, not {asked.nodes}")
    return None


def _cores(partition: Partition, asked: ResourceSpec) -> Refusal | None:
    a_node = (asked.cores_per_task or 1) * asked.tasks_per_node
    has, most = partition.node.cores, partition.limits.max_cores
    if has is not None and a_node > has:
        return Refusal("too-few-cores", f"has {has} cores a node, and the job asks for {a_node}", a_node / has)
    if most is not None and a_node * asked.nodes > most:
        return Refusal("too-many-cores", f"gives at most {most} cores, and the job asks for {a_node * asked.nodes}")
    return None


def _gpus(partition: Partition, asked: ResourceSpec) -> Refusal | None:
    node, most = partition.node, partition.limits.max_gpus
    total = asked.gpus_per_node * asked.nodes
    is_counted = node.name != UNLISTED_NODES and (bool(node.gpus) or node.device is None)
    if is_counted and asked.gpus_per_node > node.gpus:
        has = f"has {node.gpus} GPUs a node" if node.gpus else "has no GPUs"
        return Refusal("too-few-gpus", f"{has}, and the job asks for {asked.gpus_per_node}")
    if most is not None and total > most:
        return Refusal("too-many-gpus", f"takes at most {most} GPUs, not {total}", total / most if most else None)
    return None


def _memory(partition: Partition, asked: ResourceSpec) -> Refusal | None:
    has, wanted = partition.node.usable_memory_bytes or partition.node.memory_bytes, asked.memory_bytes_per_node
    if not has or not wanted or wanted <= has:
        return None
    return Refusal(
        "host-memory", f"memory: asks for {format_bytes(wanted)} a node, has {format_bytes(has)}", wanted / has
    )
