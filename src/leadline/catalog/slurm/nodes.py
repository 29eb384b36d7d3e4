"""Identify the node types of a cluster and the catalog devices of their GPUs, from Slurm's descriptions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from leadline.catalog.names import SLICE, match_devices, split_words
from leadline.catalog.slurm.text import Gres, Record, parse_count, parse_memory, parse_names, read_gres
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind, Machine
from leadline.core.systems import NodeType
from leadline.core.units import GIB, MIB

GPU_KINDS = (DeviceKind.GPU, DeviceKind.ACCELERATOR)
MIN_FEATURE_LENGTH = 4
"""Shortest node feature that may name a GPU by itself: ``l4`` could be a rack."""

SAME_TYPE_MEMORY_RATIO = 1.05
"""Largest memory ratio between nodes of one type; the type has the smallest memory."""

_GENERIC_CPU_WORDS = frozenset({"cpu", "processor", "core", "r", "tm"})


class NodeGpus(Frozen):
    """The GPUs of one type on a node; ``device`` is ``None`` if ambiguous, and ``why`` explains it."""

    kind: str | None
    count: int
    device: str | None = None
    why: str = ""

    @property
    def label(self) -> str:
        """The type in letters, digits and hyphens; ``gpu`` if the site names none."""
        return re.sub(r"[^0-9a-z]+", "-", (self.kind or "gpu").casefold()).strip("-") or "gpu"


def node_gpus(
    gres: Sequence[Gres], features: Iterable[str], devices: Sequence[Device], driver_name: str = ""
) -> list[NodeGpus]:
    """Return the GPUs of a node, most numerous first; ``driver_name`` is the driver's name if there is one model.

    The GRES type takes precedence over the node's features, which count only if exactly one device matches. A MIG slice
    is not a device of the catalog.
    """
    gpus = [resource for resource in gres if resource.name == "gpu" and resource.count]
    words, model = tuple(features), driver_name if len(gpus) == 1 else ""
    identified = [_identify_gpus(resource, words, devices, model) for resource in gpus]
    return sorted(identified, key=lambda gpu: (SLICE.search(gpu.kind or "") is not None, -gpu.count, gpu.label))


def match_processor(model: str, devices: Sequence[Device]) -> Device | None:
    """Return the one CPU whose words all occur in Linux's processor name; ``None`` if there is no single one."""
    words = {word for word in split_words(model) if word not in _GENERIC_CPU_WORDS}
    cpus = [cpu for cpu in devices if cpu.kind is DeviceKind.CPU and cpu.calibration is None]
    matches = [cpu for cpu in cpus if set(split_words(cpu.name)) <= words]
    # "EPYC 7763" and "EPYC 7763 64-Core" both match the same text: the more specific name wins.
    most_words = max((len(split_words(cpu.name)) for cpu in matches), default=0)
    longest = [cpu for cpu in matches if len(split_words(cpu.name)) == most_words]
    return longest[0] if len(longest) == 1 else None


def _identify_gpus(gpu: Gres, features: tuple[str, ...], devices: Sequence[Device], driver_name: str) -> NodeGpus:
    if gpu.kind and SLICE.search(gpu.kind):
        why = f"{gpu.kind} is a part of a GPU (MIG), which the catalog has no figures of"
        return NodeGpus(gpu.kind, gpu.count, why=why)
    for name in filter(None, (driver_name, gpu.kind)):
        if only := _single(match_devices(name, devices, GPU_KINDS)):
            return NodeGpus(gpu.kind, gpu.count, only[0].name)
    candidates = match_devices(gpu.kind, devices, GPU_KINDS) if gpu.kind else list(devices)
    informative = [word for word in features if gpu.kind or len("".join(split_words(word))) >= MIN_FEATURE_LENGTH]
    by_feature = {match.name for word in informative for match in _single(match_devices(word, candidates, GPU_KINDS))}
    if len(by_feature) == 1:
        return NodeGpus(gpu.kind, gpu.count, by_feature.pop())
    if gpu.kind is None:
        return NodeGpus(None, gpu.count, why="the site names no type of its GPUs")
    if not candidates:
        return NodeGpus(gpu.kind, gpu.count, why=f"the catalog has no device called {gpu.kind}")
    names = " or ".join(sorted(match.name for match in candidates))
    return NodeGpus(gpu.kind, gpu.count, why=f"{gpu.kind} may be {names}")


def _single(devices: list[Device]) -> list[Device]:
    return devices if len(devices) == 1 else []


class NodeGroup(Frozen):
    """Nodes of one type: their number in each partition, and their common features."""

    node: NodeType
    gpus: tuple[NodeGpus, ...]
    counts: dict[str, int]
    features: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class _Node(Frozen):
    name: str
    cpus: int | None
    memory_bytes: int | None
    usable_bytes: int | None
    sockets: int
    threads: int
    gpus: tuple[NodeGpus, ...]
    partitions: frozenset[str]
    features: frozenset[str]
    count: int
    is_local: bool


def group_nodes(
    records: Iterable[Record], devices: Sequence[Device], local_machine: Machine | None = None
) -> list[NodeGroup]:
    """Return the node types of scontrol's records, without nodes that do not exist yet (FUTURE).

    ``local_machine`` identifies the processor and GPUs of its own node and of nodes that Slurm describes identically.
    """
    nodes = [_node(record, devices, local_machine) for record in records if "FUTURE" not in record.get("State", "")]
    nodes.sort(key=lambda node: (node.cpus or 0, (node.gpus and node.gpus[0].label) or "", node.memory_bytes or 0))
    groups: list[list[_Node]] = []
    for node in nodes:
        alike = next((group for group in groups if _same_type(group[0], node)), None)
        if alike is None:
            groups.append([node])
        else:
            alike.append(node)
    return _number_duplicates([_group(group, devices, local_machine) for group in groups])


def _node(record: Record, devices: Sequence[Device], local_machine: Machine | None) -> _Node:
    memory = parse_memory(record.get("RealMemory", ""))
    reserved = parse_memory(record.get("MemSpecLimit", "")) or 0
    features = parse_names(record.get("ActiveFeatures", record.get("AvailableFeatures", ""))) or frozenset()
    hosts = {record.get(key, "").partition(".")[0] for key in ("NodeHostName", "NodeName")}
    is_local = local_machine is not None and local_machine.host in hosts
    driver_names = set(local_machine.gpus) if local_machine is not None and is_local else set()
    driver_name = driver_names.pop() if len(driver_names) == 1 else ""
    return _Node(
        record["NodeName"], parse_count(record.get("CPUEfctv", "")) or parse_count(record.get("CPUTot", "")), memory,
        None if memory is None else memory - reserved, parse_count(record.get("Sockets", "")) or 1,
        parse_count(record.get("ThreadsPerCore", "")) or 1,
        tuple(node_gpus(read_gres(record.get("Gres", "")), sorted(features), devices, driver_name)),
        parse_names(record.get("Partitions", "")) or frozenset(), features,
        parse_count(record.get("Nodes", "")) or 1, is_local,
    )  # fmt: skip


def _same_type(first_node: _Node, second_node: _Node) -> bool:
    first, second = first_node.memory_bytes, second_node.memory_bytes
    near = first == second if first is None or second is None else second <= SAME_TYPE_MEMORY_RATIO * first
    return near and _hardware(first_node) == _hardware(second_node)


def _hardware(node: _Node) -> tuple[object, ...]:
    return node.cpus, node.threads, [(gpu.kind, gpu.count, gpu.device) for gpu in node.gpus]


def _group(nodes: Sequence[_Node], devices: Sequence[Device], local_machine: Machine | None) -> NodeGroup:
    first, partitions = nodes[0], sorted({name for node in nodes for name in node.partitions})
    features = frozenset.intersection(*(node.features for node in nodes))
    memory = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    usable = [node.usable_bytes for node in nodes if node.usable_bytes is not None]
    main = first.gpus[0] if first.gpus else None
    model, processor, notes = _processor(nodes, devices, local_machine)
    if first.threads > 1:
        notes.append(f"a core here is one of the {first.threads} hardware threads of a core")
    notes += [f"its {gpu.count} GPUs: {gpu.why}" for gpu in first.gpus if gpu.why]
    if len(first.gpus) > 1:
        extra_gpus = ", ".join(f"{gpu.count} × {gpu.kind or 'gpu'}" for gpu in first.gpus[1:])
        notes.append(f"it also has {extra_gpus}, which are not listed")
    node = NodeType(
        _node_type_name(first, min(memory, default=None)), cpu_model=model or None, processor=processor or None,
        sockets=first.sockets, cores=first.cpus, memory_bytes=min(memory, default=None),
        usable_memory_bytes=min(usable, default=None), device=main.device if main else None,
        gpus=main.count if main else 0, note="; ".join(notes),
    )  # fmt: skip
    counts = {name: sum(gpu.count for gpu in nodes if name in gpu.partitions) for name in partitions}
    return NodeGroup(node, first.gpus, counts, features, tuple(f"{node.name}: {note}" for note in notes))


def _processor(
    nodes: Sequence[_Node], devices: Sequence[Device], local_machine: Machine | None
) -> tuple[str, str, list[str]]:
    """Return the model, the catalog name and notes, if one of the nodes is the local machine."""
    local_node = next((node for node in nodes if node.is_local), None)
    if local_machine is None or local_node is None or not local_machine.cpu_model:
        return "", "", []
    if local_node.cpus != local_machine.cpus:
        note = f"Slurm gives {local_node.name} {local_node.cpus} CPUs, and the machine has {local_machine.cpus}"
        return "", "", [f"{note}: its processor is left out"]
    if any(node.features != local_node.features for node in nodes):
        note = f"{local_node.name} has a {local_machine.cpu_model}"
        return "", "", [f"{note}; the others have other features, so theirs is not known"]
    match = match_processor(local_machine.cpu_model, devices)
    processor = local_machine.processor or (match.name if match else "")
    note = f"the processor is that of {local_node.name}; the others look alike to Slurm"
    return local_machine.cpu_model, processor, [note] if len(nodes) > 1 else []


def _node_type_name(node: _Node, least_bytes: int | None) -> str:
    """Return a name made of the specs, stable between probes: ``4x-a100-64c-512g``."""
    parts = []
    if node.gpus:
        parts += [f"{node.gpus[0].count}x", node.gpus[0].label]
    parts += [f"{node.cpus}c"] if node.cpus else []
    if least_bytes:
        parts += [f"{round(least_bytes / GIB)}g" if least_bytes >= GIB else f"{round(least_bytes / MIB)}m"]
    return "-".join(parts) or "node"


def _number_duplicates(groups: list[NodeGroup]) -> list[NodeGroup]:
    """Append a number to repeated names."""
    times: dict[str, int] = {}
    renamed = []
    for group in groups:
        name = group.node.name
        times[name] = times.get(name, 0) + 1
        node = replace(group.node, name=f"{name}-{times[name]}") if times[name] > 1 else group.node
        renamed.append(replace(group, node=node))
    return renamed
