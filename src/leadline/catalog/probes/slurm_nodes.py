"""Group a cluster's nodes into types by what a job sees of them: CPUs, memory and GPUs; pure values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from leadline.catalog.probes.slurm_gpus import Gpus, gpus_of, processor_called
from leadline.catalog.probes.slurm_text import Record, count, memory_bytes, names, read_gres
from leadline.core.hardware import Device, Machine
from leadline.core.systems import NodeType
from leadline.core.units import GIB, MIB

ALIKE = 1.05
"""Nodes whose memory differs by no more are of one type, which has what the least of them has."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one type: how many of them each partition has, and the features that all of them have."""

    node: NodeType
    gpus: tuple[Gpus, ...]
    counts: dict[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Node:
    name: str
    cpus: int | None
    memory_bytes: int | None
    usable_bytes: int | None
    sockets: int
    threads: int
    gpus: tuple[Gpus, ...]
    partitions: frozenset[str]
    features: frozenset[str]
    count: int
    is_here: bool


def group_nodes(records: Iterable[Record], devices: Sequence[Device], here: Machine | None = None) -> list[NodeGroup]:
    """Return the node types of scontrol's records; nodes that may exist one day (FUTURE) are left out.

    ``here`` tells the models of processor and GPUs of the node that it is, and of those that Slurm describes alike.
    """
    nodes = [_node(record, devices, here) for record in records if "FUTURE" not in record.get("State", "")]
    nodes.sort(key=lambda one: (one.cpus or 0, (one.gpus and one.gpus[0].label) or "", one.memory_bytes or 0))
    groups: list[list[_Node]] = []
    for node in nodes:
        alike = next((group for group in groups if _alike(group[0], node)), None)
        if alike is None:
            groups.append([node])
        else:
            alike.append(node)
    return _named([_group(group, devices, here) for group in groups])


def _node(record: Record, devices: Sequence[Device], here: Machine | None) -> _Node:
    memory = memory_bytes(record.get("RealMemory", ""))
    kept = memory_bytes(record.get("MemSpecLimit", "")) or 0
    features = names(record.get("ActiveFeatures", record.get("AvailableFeatures", ""))) or frozenset()
    hosts = {record.get(key, "").partition(".")[0] for key in ("NodeHostName", "NodeName")}
    is_here = here is not None and here.host in hosts
    seen = here.gpus[0] if here is not None and is_here and len(set(here.gpus)) == 1 else ""
    return _Node(
        record["NodeName"],
        count(record.get("CPUEfctv", "")) or count(record.get("CPUTot", "")),
        memory,
        None if memory is None else memory - kept,
        count(record.get("Sockets", "")) or 1,
        count(record.get("ThreadsPerCore", "")) or 1,
        tuple(gpus_of(read_gres(record.get("Gres", "")), sorted(features), devices, seen)),
        names(record.get("Partitions", "")) or frozenset(),
        features,
        count(record.get("Nodes", "")) or 1,
        is_here,
    )


def _alike(one: _Node, other: _Node) -> bool:
    first, second = one.memory_bytes, other.memory_bytes
    near = first == second if first is None or second is None else second <= ALIKE * first
    return near and (one.cpus, one.threads, _kinds(one)) == (other.cpus, other.threads, _kinds(other))


def _kinds(node: _Node) -> tuple[tuple[str | None, int, str | None], ...]:
    return tuple((one.kind, one.count, one.device) for one in node.gpus)


def _group(nodes: Sequence[_Node], devices: Sequence[Device], here: Machine | None) -> NodeGroup:
    first, partitions = nodes[0], sorted({name for node in nodes for name in node.partitions})
    features = frozenset.intersection(*(node.features for node in nodes))
    memory = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    usable = [node.usable_bytes for node in nodes if node.usable_bytes is not None]
    main = first.gpus[0] if first.gpus else None
    model, processor, notes = _processor(nodes, devices, here)
    if first.threads > 1:
        notes.append(f"a core here is one of the {first.threads} hardware threads of a core")
    notes += [f"its {one.count} GPUs: {one.why}" for one in first.gpus if one.why]
    if len(first.gpus) > 1:
        rest = ", ".join(f"{one.count} × {one.kind or 'gpu'}" for one in first.gpus[1:])
        notes.append(f"it has {rest} besides, which are not listed")
    node = NodeType(
        _name(first, min(memory, default=None)),
        cpu_model=model or None,
        processor=processor or None,
        sockets=first.sockets,
        cores=first.cpus,
        memory_bytes=min(memory, default=None),
        usable_memory_bytes=min(usable, default=None),
        device=main.device if main else None,
        gpus=main.count if main else 0,
        note="; ".join(notes),
    )
    counts = {name: sum(one.count for one in nodes if name in one.partitions) for name in partitions}
    return NodeGroup(node, first.gpus, counts, features, tuple(f"{node.name}: {note}" for note in notes))


def _processor(nodes: Sequence[_Node], devices: Sequence[Device], here: Machine | None) -> tuple[str, str, list[str]]:
    """Return the model, the catalog's name and what to say, where one of the nodes is the machine at hand."""
    mine = next((node for node in nodes if node.is_here), None)
    if here is None or mine is None or not here.cpu_model:
        return "", "", []
    if mine.cpus != here.cpus:
        return (
            "",
            "",
            [f"Slurm gives {mine.name} {mine.cpus} CPUs, and the machine has {here.cpus}: its processor is left out"],
        )
    if any(node.features != mine.features for node in nodes):
        return "", "", [f"{mine.name} has a {here.cpu_model}; the others have other features, so theirs is not known"]
    known = processor_called(here.cpu_model, devices)
    note = f"the processor is that of {mine.name}; the others look alike to Slurm"
    return here.cpu_model, here.processor or (known.name if known else ""), [note] if len(nodes) > 1 else []


def _name(node: _Node, least_bytes: int | None) -> str:
    """Return a name made of the figures, so that it stays from one look to the next: ``4x-a100-64c-512g``."""
    parts = []
    if node.gpus:
        parts += [f"{node.gpus[0].count}x", node.gpus[0].label]
    parts += [f"{node.cpus}c"] if node.cpus else []
    if least_bytes:
        parts += [f"{round(least_bytes / GIB)}g" if least_bytes >= GIB else f"{round(least_bytes / MIB)}m"]
    return "-".join(parts) or "node"


def _named(groups: list[NodeGroup]) -> list[NodeGroup]:
    """Tell groups of the same name apart by a number."""
    times: dict[str, int] = {}
    found = []
    for group in groups:
        name = group.node.name
        times[name] = times.get(name, 0) + 1
        named = replace(group.node, name=f"{name}-{times[name]}") if times[name] > 1 else group.node
        found.append(replace(group, node=named))
    return found
