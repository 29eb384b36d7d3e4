"""Differences between two snapshots of a system, by field and in sentences."""

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
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
    changes += _fields("scheduling", "", "scheduling", *scheduling)
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


@cache
def _labels() -> dict[str, dict[str, str]]:
    """Return part of a system → field → what a sentence calls it."""
    return tomllib.loads(Path(__file__).with_name("changes.toml").read_text(encoding="utf-8"))


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


def _partition(old: Partition, new: Partition) -> Iterator[FieldChange]:
    name = new.name
    yield from _fields("limit", name, "limits", old.limits, new.limits)
    yield from _fields("nodes", name, "nodes", old.node, new.node)
    yield from _fields("access", name, "access", old, new)
    before, after = _price(old.billing), _price(new.billing)
    if before != after:
        yield FieldChange("price", name, "billing", before, after, f"{name}: the price was {before}, and is {after}")
    yield from _fields("access", name, "rules", old.rules, new.rules)


def _price(billing: Billing | None) -> str:
    return "not known" if billing is None else billing.price_text()


def _fields(kind: str, place: str, part: str, old: object, new: object) -> Iterator[FieldChange]:
    for name, label in _labels()[part].items():
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            sentence = f"{label} was {_format_value(name, before)}, and is {_format_value(name, after)}"
            yield FieldChange(kind, place, name, before, after, f"{place}: {sentence}" if place else sentence)
