"""Differences between two snapshots of a system, by field and in sentences."""

from collections.abc import Iterable, Iterator
from typing import Any

from leadline.core.systems import UNLISTED_NODES, Billing, FieldChange, Partition, Scheduling, System, SystemChange
from leadline.core.units import format_bytes, format_duration

Key = tuple[str, str, str]
"""Queue, node type and QOS: the identity of a partition while its values change."""


def compare_systems(before: System | None, after: System) -> SystemChange:
    """Return the changes of a system since ``before``, in partition order; none without a ``before``."""
    if before is None:
        return SystemChange(None, after)
    old, new = _by_key(before), _by_key(after)
    changes = [*_removed(old, new), *_added(old, new)]
    for key in new:
        if key in old:
            changes += _partition(old[key], new[key])
    scheduling = (before.scheduling or Scheduling(), after.scheduling or Scheduling())
    # A snapshot without the limits of QOS and accounts shows wider ones; reporting them would be a false alarm.
    if any(settings.accounting_answered is False for settings in scheduling):
        changes = [change for change in changes if change.kind != "limit"]
    changes += _fields("scheduling", "", *scheduling, _SCHEDULING)
    return SystemChange(before, after, tuple(changes))


def _by_key(system: System) -> dict[Key, Partition]:
    return {
        (partition.queue or partition.name, partition.node.name, partition.rules.qos or ""): partition
        for partition in system.partitions
    }


def _removed(old: dict[Key, Partition], new: dict[Key, Partition]) -> Iterator[FieldChange]:
    nodes, reported = _nodes_by_queue(new), set()
    for (queue, node, qos), partition in old.items():
        if (queue, node, qos) in new or queue in reported:
            continue
        if queue not in nodes:
            reported.add(queue)
            yield FieldChange("partition", queue, "partition", queue, None, f"partition {queue} is gone")
        elif UNLISTED_NODES in nodes[queue]:
            reported.add(queue)
            yield FieldChange("nodes", queue, "node", node, None, f"{queue}: Slurm does not show its nodes any more")
        elif node not in nodes[queue]:
            sentence = f"{queue} has no nodes {_described(partition)} any more"
            yield FieldChange("nodes", queue, "node", node, None, sentence)
        else:
            yield FieldChange("limit", queue, "qos", qos, None, f"{queue} lets no more through with QOS {qos}")


def _added(old: dict[Key, Partition], new: dict[Key, Partition]) -> Iterator[FieldChange]:
    nodes, reported = _nodes_by_queue(old), set()
    for (queue, node, qos), partition in new.items():
        if (queue, node, qos) in old or queue in reported:
            continue
        if queue not in nodes:
            reported.add(queue)
            yield FieldChange("partition", queue, "partition", None, queue, f"partition {queue} is new")
        elif node not in (*nodes[queue], UNLISTED_NODES):
            yield FieldChange("nodes", queue, "node", None, node, f"{queue} has nodes {_described(partition)} now")
        elif node != UNLISTED_NODES:
            yield FieldChange("limit", queue, "qos", None, qos, f"{queue} lets more through with QOS {qos} now")


def _nodes_by_queue(partitions: Iterable[Key]) -> dict[str, set[str]]:
    nodes: dict[str, set[str]] = {}
    for queue, node, _ in partitions:
        nodes.setdefault(queue, set()).add(node)
    return nodes


def _described(partition: Partition) -> str:
    node = partition.node
    parts = [f"{node.gpus} × {node.device or 'GPU'}"] if node.gpus else []
    parts += [f"{node.cores} cores"] if node.cores else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    return f"of type {node.name} ({', '.join(parts)})" if parts else f"of type {node.name}"


def _format_value(field: str, value: Any) -> str:  # noqa: ANN401 - any field of a noun
    """Return a value in the unit that its field ends in."""
    if value in (None, ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field.endswith("_s"):
        return format_duration(value)
    if "_bytes" in field:
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"


# Field → its label in a sentence.
_LIMITS = {
    "max_walltime_s": "the limit of walltime",
    "min_nodes": "the least number of nodes",
    "max_nodes": "the largest number of nodes",
    "min_cores": "the least number of cores",
    "max_cores": "the largest number of cores",
    "max_gpus": "the largest number of GPUs",
    "max_submitted_jobs": "the number of jobs a user may have",
}
_NODE = {
    "count": "the number of nodes",
    "memory_bytes": "the memory of a node",
    "cores": "the cores of a node",
    "usable_memory_bytes": "the memory of a node that jobs may have",
    "device": "the GPU",
    "processor": "the processor",
    "gpus": "the GPUs of a node",
}
_ACCESS = {
    "restricted": "closed to you",
    "preemptible": "preemptible",
    "default_memory_bytes_per_core": "the memory a core has by default",
    "note": "its note",
}
_SCHEDULING = {
    "version": "Slurm's version",
    "rejects_beyond_limits": "jobs beyond a limit are refused when submitted",
    "max_array_size": "the largest job array",
    "sampling_interval_s": "the interval at which memory is sampled",
    "preemption": "preemption",
}
_RULES = {"constraint": "constraint", "gpu_option": "gpu option", "whole_nodes": "whole nodes"}


def _partition(old: Partition, new: Partition) -> Iterator[FieldChange]:
    name = new.name
    yield from _fields("limit", name, old.limits, new.limits, _LIMITS)
    yield from _fields("nodes", name, old.node, new.node, _NODE)
    yield from _fields("access", name, old, new, _ACCESS)
    before, after = _price(old.billing), _price(new.billing)
    if before != after:
        yield FieldChange("price", name, "billing", before, after, f"{name}: the price was {before}, and is {after}")
    yield from _fields("access", name, old.rules, new.rules, _RULES)


def _price(billing: Billing | None) -> str:
    return "not known" if billing is None else billing.price_text()


def _fields(kind: str, place: str, old: object, new: object, labels: dict[str, str]) -> Iterator[FieldChange]:
    for name, label in labels.items():
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            sentence = f"{label} was {_format_value(name, before)}, and is {_format_value(name, after)}"
            yield FieldChange(kind, place, name, before, after, f"{place}: {sentence}" if place else sentence)
