"""Say what differs between two looks at a system, in sentences and by field; pure values."""

from collections.abc import Callable, Iterator
from typing import Any

from leadline.core.systems import UNLISTED_NODES, Billing, FieldChange, Partition, Scheduling, System, SystemChange
from leadline.core.units import format_bytes, format_duration

Key = tuple[str, str, str]
"""Queue, node type and QOS: what stays the same of a partition while its figures change."""


def compare_systems(before: System | None, after: System) -> SystemChange:
    """Return the changes of a system since ``before``, in the order of its partitions; none without a ``before``."""
    if before is None:
        return SystemChange(None, after)
    old, new = _by_key(before), _by_key(after)
    changes = [*_gone(old, new), *_come(old, new)]
    for key in new:
        if key in old:
            changes += _partition(old[key], new[key])
    if not _is_comparable(before, after):
        changes = [one for one in changes if one.kind != "limit"]
    changes += _scheduling(before.scheduling or Scheduling(), after.scheduling or Scheduling())
    return SystemChange(before, after, tuple(changes))


def _by_key(system: System) -> dict[Key, Partition]:
    return {(one.queue or one.name, one.node.name, one.rules.qos or ""): one for one in system.partitions}


def _is_comparable(before: System, after: System) -> bool:
    """Whether the limits of QOS and accounts are in both, or in neither."""
    first, second = (one.scheduling or Scheduling() for one in (before, after))
    return False not in (first.accounting_answered, second.accounting_answered)


def _gone(old: dict[Key, Partition], new: dict[Key, Partition]) -> Iterator[FieldChange]:
    queues, said = {key[0] for key in new}, set()
    for (queue, node, qos), one in old.items():
        if (queue, node, qos) in new:
            continue
        if queue not in queues:
            if queue not in said:
                said.add(queue)
                yield FieldChange("partition", queue, "partition", queue, None, f"partition {queue} is gone")
        elif UNLISTED_NODES in (nodes := {key[1] for key in new if key[0] == queue}):
            if queue not in said:
                said.add(queue)
                yield FieldChange(
                    "nodes", queue, "node", node, None, f"{queue}: Slurm does not show its nodes any more"
                )
        elif node not in nodes:
            yield FieldChange("nodes", queue, "node", node, None, f"{queue} has no nodes {_described(one)} any more")
        else:
            yield FieldChange("limit", queue, "qos", qos, None, f"{queue} lets no more through with QOS {qos}")


def _come(old: dict[Key, Partition], new: dict[Key, Partition]) -> Iterator[FieldChange]:
    queues, said = {key[0] for key in old}, set()
    for (queue, node, qos), one in new.items():
        if (queue, node, qos) in old:
            continue
        if queue not in queues:
            if queue not in said:
                said.add(queue)
                yield FieldChange("partition", queue, "partition", None, queue, f"partition {queue} is new")
        elif node == UNLISTED_NODES:
            continue
        elif node not in {key[1] for key in old if key[0] == queue}:
            yield FieldChange("nodes", queue, "node", None, node, f"{queue} has nodes {_described(one)} now")
        else:
            yield FieldChange("limit", queue, "qos", None, qos, f"{queue} lets more through with QOS {qos} now")


def _described(partition: Partition) -> str:
    node = partition.node
    parts = [f"{node.gpus} × {node.device or 'GPU'}"] if node.gpus else []
    parts += [f"{node.cores} cores"] if node.cores else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    return f"of type {node.name} ({', '.join(parts)})" if parts else f"of type {node.name}"


def _plain(value: Any) -> str:  # noqa: ANN401 - any field of a noun
    return (
        "yes" if value is True else "no" if value is False else f"{value:g}" if isinstance(value, float) else f"{value}"
    )


_LIMITS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("max_walltime_s", "the limit of walltime", format_duration),
    ("min_nodes", "the least number of nodes", _plain),
    ("max_nodes", "the largest number of nodes", _plain),
    ("min_cores", "the least number of cores", _plain),
    ("max_cores", "the largest number of cores", _plain),
    ("max_gpus", "the largest number of GPUs", _plain),
    ("max_submitted_jobs", "the number of jobs a user may have", _plain),
)
_NODE: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("count", "the number of nodes", _plain),
    ("memory_bytes", "the memory of a node", format_bytes),
    ("cores", "the cores of a node", _plain),
    ("usable_memory_bytes", "the memory of a node that jobs may have", format_bytes),
    ("device", "the GPU", _plain),
    ("processor", "the processor", _plain),
    ("gpus", "the GPUs of a node", _plain),
)
_ACCESS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("restricted", "closed to you", _plain),
    ("preemptible", "preemptible", _plain),
    ("default_memory_bytes_per_core", "the memory a core has by default", format_bytes),
    ("note", "its note", _plain),
)
_SCHEDULING: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("version", "Slurm's version", _plain),
    ("rejects_beyond_limits", "jobs beyond a limit are refused when submitted", _plain),
    ("max_array_size", "the largest job array", _plain),
    ("sampling_interval_s", "the interval at which memory is sampled", format_duration),
    ("preemption", "preemption", _plain),
)


def _partition(old: Partition, new: Partition) -> Iterator[FieldChange]:
    name = new.name
    yield from _fields("limit", name, old.limits, new.limits, _LIMITS)
    yield from _fields("nodes", name, old.node, new.node, _NODE)
    yield from _fields("access", name, old, new, _ACCESS)
    before, after = _price(old.billing), _price(new.billing)
    if before != after:
        yield FieldChange("price", name, "billing", before, after, f"{name}: the price was {before}, and is {after}")
    for word in ("constraint", "gpu_option", "whole_nodes"):
        first, second = getattr(old.rules, word), getattr(new.rules, word)
        if first != second:
            what = word.replace("_", " ")
            yield FieldChange("access", name, word, first, second, _sentence(name, what, first, second, _plain))


def _price(billing: Billing | None) -> str:
    return "not known" if billing is None else billing.price_text()


def _scheduling(old: Scheduling, new: Scheduling) -> Iterator[FieldChange]:
    yield from _fields("scheduling", "", old, new, _SCHEDULING)


def _fields(
    kind: str, place: str, old: object, new: object, fields: tuple[tuple[str, str, Callable[[Any], str]], ...]
) -> Iterator[FieldChange]:
    for name, words, written in fields:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield FieldChange(kind, place, name, before, after, _sentence(place, words, before, after, written))


def _sentence(place: str, words: str, before: object, after: object, written: Callable[[Any], str]) -> str:
    first, second = (("none" if one in (None, "") else written(one)) for one in (before, after))
    return f"{place}: {words} was {first}, and is {second}" if place else f"{words} was {first}, and is {second}"
