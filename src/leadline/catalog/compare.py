"""Differences between two snapshots of a system, by field and in sentences."""

from collections.abc import Callable, Iterator
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
    # A snapshot without accounting shows wider limits; reporting them would be a false alarm.
    if not _is_comparable(before, after):
        changes = [change for change in changes if change.kind != "limit"]
    scheduling = (before.scheduling or Scheduling(), after.scheduling or Scheduling())
    changes += _fields("scheduling", "", *scheduling, _SCHEDULING)
    return SystemChange(before, after, tuple(changes))


def _by_key(system: System) -> dict[Key, Partition]:
    return {
        (partition.queue or partition.name, partition.node.name, partition.rules.qos or ""): partition
        for partition in system.partitions
    }


def _is_comparable(before: System, after: System) -> bool:
    """True if both or neither snapshot includes the limits of QOS and accounts."""
    first, second = (system.scheduling or Scheduling() for system in (before, after))
    return False not in (first.accounting_answered, second.accounting_answered)


def _removed(old: dict[Key, Partition], new: dict[Key, Partition]) -> Iterator[FieldChange]:
    queues, reported = {key[0] for key in new}, set()
    for (queue, node, qos), partition in old.items():
        if (queue, node, qos) in new:
            continue
        if queue not in queues:
            if queue not in reported:
                reported.add(queue)
                yield FieldChange("partition", queue, "partition", queue, None, f"partition {queue} is gone")
        elif UNLISTED_NODES in (nodes := {key[1] for key in new if key[0] == queue}):
            if queue not in reported:
                reported.add(queue)
                yield FieldChange(
                    "nodes", queue, "node", node, None, f"{queue}: Slurm does not show its nodes any more"
                )
        elif node not in nodes:
            yield FieldChange(
                "nodes", queue, "node", node, None, f"{queue} has no nodes {_described(partition)} any more"
            )
        else:
            yield FieldChange("limit", queue, "qos", qos, None, f"{queue} lets no more through with QOS {qos}")


def _added(old: dict[Key, Partition], new: dict[Key, Partition]) -> Iterator[FieldChange]:
    queues, reported = {key[0] for key in old}, set()
    for (queue, node, qos), partition in new.items():
        if (queue, node, qos) in old:
            continue
        if queue not in queues:
            if queue not in reported:
                reported.add(queue)
                yield FieldChange("partition", queue, "partition", None, queue, f"partition {queue} is new")
        elif node == UNLISTED_NODES:
            continue
        elif node not in {key[1] for key in old if key[0] == queue}:
            yield FieldChange("nodes", queue, "node", None, node, f"{queue} has nodes {_described(partition)} now")
        else:
            yield FieldChange("limit", queue, "qos", None, qos, f"{queue} lets more through with QOS {qos} now")


def _described(partition: Partition) -> str:
    node = partition.node
    parts = [f"{node.gpus} × {node.device or 'GPU'}"] if node.gpus else []
    parts += [f"{node.cores} cores"] if node.cores else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    return f"of type {node.name} ({', '.join(parts)})" if parts else f"of type {node.name}"


def _format_plain(value: Any) -> str:  # noqa: ANN401 - any field of a noun
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


Fields = tuple[tuple[str, str, Callable[[Any], str]], ...]
"""(field, label, formatter) of the fields to compare."""

_LIMITS: Fields = (
    ("max_walltime_s", "the limit of walltime", format_duration),
    ("min_nodes", "the least number of nodes", _format_plain),
    ("max_nodes", "the largest number of nodes", _format_plain),
    ("min_cores", "the least number of cores", _format_plain),
    ("max_cores", "the largest number of cores", _format_plain),
    ("max_gpus", "the largest number of GPUs", _format_plain),
    ("max_submitted_jobs", "the number of jobs a user may have", _format_plain),
)
_NODE: Fields = (
    ("count", "the number of nodes", _format_plain),
    ("memory_bytes", "the memory of a node", format_bytes),
    ("cores", "the cores of a node", _format_plain),
    ("usable_memory_bytes", "the memory of a node that jobs may have", format_bytes),
    ("device", "the GPU", _format_plain),
    ("processor", "the processor", _format_plain),
    ("gpus", "the GPUs of a node", _format_plain),
)
_ACCESS: Fields = (
    ("restricted", "closed to you", _format_plain),
    ("preemptible", "preemptible", _format_plain),
    ("default_memory_bytes_per_core", "the memory a core has by default", format_bytes),
    ("note", "its note", _format_plain),
)
_SCHEDULING: Fields = (
    ("version", "Slurm's version", _format_plain),
    ("rejects_beyond_limits", "jobs beyond a limit are refused when submitted", _format_plain),
    ("max_array_size", "the largest job array", _format_plain),
    ("sampling_interval_s", "the interval at which memory is sampled", format_duration),
    ("preemption", "preemption", _format_plain),
)


def _partition(old: Partition, new: Partition) -> Iterator[FieldChange]:
    name = new.name
    yield from _fields("limit", name, old.limits, new.limits, _LIMITS)
    yield from _fields("nodes", name, old.node, new.node, _NODE)
    yield from _fields("access", name, old, new, _ACCESS)
    before, after = _price(old.billing), _price(new.billing)
    if before != after:
        yield FieldChange("price", name, "billing", before, after, f"{name}: the price was {before}, and is {after}")
    for rule in ("constraint", "gpu_option", "whole_nodes"):
        first, second = getattr(old.rules, rule), getattr(new.rules, rule)
        if first != second:
            label = rule.replace("_", " ")
            yield FieldChange("access", name, rule, first, second, _sentence(name, label, first, second, _format_plain))


def _price(billing: Billing | None) -> str:
    return "not known" if billing is None else billing.price_text()


def _fields(kind: str, place: str, old: object, new: object, fields: Fields) -> Iterator[FieldChange]:
    for name, label, format_value in fields:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield FieldChange(kind, place, name, before, after, _sentence(place, label, before, after, format_value))


def _sentence(place: str, label: str, before: object, after: object, format_value: Callable[[Any], str]) -> str:
    first, second = (("none" if value in (None, "") else format_value(value)) for value in (before, after))
    return f"{place}: {label} was {first}, and is {second}" if place else f"{label} was {first}, and is {second}"
