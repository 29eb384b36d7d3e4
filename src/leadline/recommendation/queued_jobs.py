"""Find queued jobs that can no longer run after a system changed, and the reasons."""

from collections.abc import Sequence

from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import UNLISTED_NODES, Partition, System, SystemChange
from leadline.recommendation.feasibility import Refusal, refuse_memory, refuse_walltime


def explain_unrunnable(change: SystemChange, spec: JobSpec) -> str | None:
    """Return why a queued job on that system can never start since the change, in the nearest partition.

    ``None`` for a job that can start, or that could not start before either. Without a partition, a job is unrunnable
    if no partition would take it, and in a queue of several node types, if none of them would.
    """
    if spec.system is not None and spec.system.casefold() != change.after.name.casefold():
        return None
    refusals = job_refusals(change.after, spec, change.before)
    if not refusals or (change.before is not None and job_refusals(change.before, spec)):
        return None
    reasons = "; ".join(refusal.reason for refusal in refusals)
    return f"{spec.name} cannot run in {spec.partition or 'any partition'} any more: {reasons}"


def job_refusals(system: System, spec: JobSpec, before: System | None = None) -> tuple[Refusal, ...]:
    """Return why a job can never start on a system, in the nearest partition; empty if it can.

    ``before`` distinguishes a removed partition from a removed node type of a partition.
    """
    places = _places(system, spec.partition) or _hidden(system, spec.partition or "", before)
    if not places:
        return (_gone(system, spec.partition or "", before),)
    return min((check_request(place, spec.resources) for place in places), key=len)


def check_request(partition: Partition, request: ResourceSpec) -> tuple[Refusal, ...]:
    """Return every limit of a partition that a request exceeds, so that it would never start."""
    refusals = (
        refuse_walltime(partition, request, "asks for"),
        _nodes(partition, request),
        _cores(partition, request),
        _gpus(partition, request),
        refuse_memory(partition, request, "memory: asks for"),
    )
    return tuple(refusal for refusal in refusals if refusal is not None)


def _places(system: System, name: str | None) -> Sequence[Partition]:
    """Return the partitions that a name may mean: the one of that name, or all node types of the queue."""
    if name is None:
        return system.partitions
    folded = name.casefold()
    named = [row for row in system.partitions if row.name.casefold() == folded]
    exact = [row for row in named if row.queue in (None, row.name)]
    queued = [row for row in system.partitions if (row.queue or "").casefold() == folded]
    return [*exact, *queued] or named


def _hidden(system: System, name: str, before: System | None) -> Sequence[Partition]:
    """Return a queue whose nodes are no longer listed, for a job that names a node type that it had."""
    queues = {row.queue or row.name for row in (before.partitions if before else ()) if row.name == name}
    rows = [place for queue in queues for place in _places(system, queue)]
    return [row for row in rows if row.node.name == UNLISTED_NODES]


def _gone(system: System, name: str, before: System | None) -> Refusal:
    if before is not None:
        for row in before.partitions:
            queue = row.queue or row.name
            if row.name.casefold() == name.casefold() and _places(system, queue):
                return Refusal("nodes-gone", f"{queue} has no nodes of type {row.node.name} any more")
    return Refusal("partition-gone", f"{system.name} has no partition {name} any more")


def _nodes(partition: Partition, request: ResourceSpec) -> Refusal | None:
    limits, count = partition.limits, partition.node.count
    most = min((number for number in (limits.max_nodes, count) if number is not None), default=None)
    if most is not None and request.nodes > most:
        return Refusal("too-many-nodes", f"takes jobs of at most {most} nodes, not {request.nodes}",
                       request.nodes / most if most else None, f"at most {most} nodes")  # fmt: skip
    if limits.min_nodes and request.nodes < limits.min_nodes:
        return Refusal("too-few-nodes", f"takes jobs of at least {limits.min_nodes} nodes, not {request.nodes}")
    return None


def _cores(partition: Partition, request: ResourceSpec) -> Refusal | None:
    a_node = (request.cores_per_task or 1) * request.tasks_per_node
    has, most = partition.node.cores, partition.limits.max_cores
    if has is not None and a_node > has:
        return Refusal("too-few-cores", f"has {has} cores a node, and the job asks for {a_node}", a_node / has)
    if most is not None and a_node * request.nodes > most:
        return Refusal("too-many-cores", f"gives at most {most} cores, and the job asks for {a_node * request.nodes}")
    return None


def _gpus(partition: Partition, request: ResourceSpec) -> Refusal | None:
    node, most = partition.node, partition.limits.max_gpus
    total = request.gpus_per_node * request.nodes
    is_counted = node.name != UNLISTED_NODES and (bool(node.gpus) or node.device is None)
    if is_counted and request.gpus_per_node > node.gpus:
        has = f"has {node.gpus} GPUs a node" if node.gpus else "has no GPUs"
        return Refusal("too-few-gpus", f"{has}, and the job asks for {request.gpus_per_node}")
    if most is not None and total > most:
        return Refusal("too-many-gpus", f"takes at most {most} GPUs, not {total}", total / most if most else None)
    return None
