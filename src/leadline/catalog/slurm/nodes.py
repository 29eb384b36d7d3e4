"""Tell which device of the catalog a scheduler's GPUs are, where their names leave only one; pure text."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from leadline.catalog.read import VENDOR_WORDS
from leadline.catalog.slurm.text import Gres, Record, parse_count, parse_memory, parse_names, read_gres
from leadline.core.hardware import Device, DeviceKind, Machine
from leadline.core.systems import NodeType
from leadline.core.units import GIB, MIB

SLICE = re.compile(r"(?:^|[^0-9a-z])\d+g\.\d+gb", re.IGNORECASE)
"""A part of a GPU, as MIG names them: ``1g.10gb``, ``a100_3g.20gb``."""
BOARDS = (DeviceKind.GPU, DeviceKind.ACCELERATOR)
LEAST = 4
"""Characters of a feature that may name a GPU by itself: ``l4`` may as well be a rack."""

_WORD = re.compile(r"[0-9a-z.+]+")
_FILLERS = VENDOR_WORDS | {
    "gpu",
    "graphics",
    "accelerator",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "gddr6",
    "rev",
    "c",
    "r",
    "tm",
}
_CPU_FILLERS = frozenset({"cpu", "processor", "core", "r", "tm"})


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of one type on a node; ``device`` is ``None`` where it is not sure, and ``why`` says what is known."""

    kind: str | None
    count: int
    device: str | None = None
    why: str = ""

    @property
    def label(self) -> str:
        """Return the type in letters, digits and hyphens, ``gpu`` where the site names none."""
        return re.sub(r"[^0-9a-z]+", "-", (self.kind or "gpu").casefold()).strip("-") or "gpu"


def node_gpus(
    gres: Sequence[Gres], features: Iterable[str], devices: Sequence[Device], seen: str = ""
) -> list[NodeGpus]:
    """Return the GPUs of a node, largest number first; ``seen`` is what a driver calls the one GPU model there.

    A type of a GRES counts before the node's features, which count only where exactly one device has such a name. A
    slice of a GPU is no device of the catalog.
    """
    found = [one for one in gres if one.name == "gpu" and one.count]
    made = [_gpus(one, tuple(features), devices, seen if len(found) == 1 else "") for one in found]
    return sorted(made, key=lambda one: (SLICE.search(one.kind or "") is not None, -one.count, one.label))


def match_devices(name: str, devices: Sequence[Device], kinds: Iterable[DeviceKind]) -> list[Device]:
    """Return the devices that a name may mean: the driver's own name for one, else those whose names hold its words.

    ``h100`` may be four boards, ``a100-sxm4-80gb`` and ``rtx3090`` are one each; case, makers and punctuation aside.
    """
    wanted, among = _words(name), [one for one in devices if one.kind in kinds]
    if not wanted:
        return []
    exact = [
        one for one in among if any(_driver(alias) and _squashed(alias) == _squashed(name) for alias in one.aliases)
    ]
    return exact or [one for one in among if _holds(_words(one.name), wanted)]


def match_processor(model: str, devices: Sequence[Device]) -> Device | None:
    """Return the CPU whose words all stand in a processor's full name, as Linux gives it; ``None`` unless it is one."""
    said = {word for word in _split(model) if word not in _CPU_FILLERS}
    cpus = [one for one in devices if one.kind is DeviceKind.CPU and one.calibration is None]
    named = [one for one in cpus if set(_split(one.name)) <= said]
    most = [one for one in named if len(_split(one.name)) == max(len(_split(other.name)) for other in named)]
    return most[0] if len(most) == 1 else None


def _gpus(one: Gres, features: tuple[str, ...], devices: Sequence[Device], seen: str) -> NodeGpus:
    if one.kind and SLICE.search(one.kind):
        return NodeGpus(
            one.kind, one.count, why=f"{one.kind} is a part of a GPU (MIG), which the catalog has no figures of"
        )
    for said in filter(None, (seen, one.kind)):
        named = match_devices(said, devices, BOARDS)
        if len(named) == 1:
            return NodeGpus(one.kind, one.count, named[0].name)
    candidates = match_devices(one.kind, devices, BOARDS) if one.kind else list(devices)
    telling = [word for word in features if one.kind or len(_squashed(word)) >= LEAST]
    by_feature = {match.name for word in telling for match in _only(match_devices(word, candidates, BOARDS))}
    if len(by_feature) == 1:
        return NodeGpus(one.kind, one.count, by_feature.pop())
    if one.kind is None:
        return NodeGpus(None, one.count, why="the site names no type of its GPUs")
    if not candidates:
        return NodeGpus(one.kind, one.count, why=f"the catalog has no device called {one.kind}")
    names = " or ".join(sorted(match.name for match in candidates))
    return NodeGpus(one.kind, one.count, why=f"{one.kind} may be {names}")


def _only(found: list[Device]) -> list[Device]:
    return found if len(found) == 1 else []


def _driver(alias: str) -> bool:
    return bool(VENDOR_WORDS & set(_split(alias)))


def _split(name: str) -> list[str]:
    return _WORD.findall(name.casefold())


def _words(name: str) -> list[str]:
    return [word for word in _split(name) if word not in _FILLERS]


def _squashed(name: str) -> str:
    return "".join(_split(name))


def _holds(has: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether each wanted word is one of ``has``, or several of them in a row without the gap between (``rtx3090``)."""
    runs = {"".join(has[at:end]) for at in range(len(has)) for end in range(at + 1, len(has) + 1)}
    return all(word in runs for word in wanted)


ALIKE = 1.05
"""Nodes whose memory differs by no more are of one type, which has what the least of them has."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one type: how many of them each partition has, and the features that all of them have."""

    node: NodeType
    gpus: tuple[NodeGpus, ...]
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
    gpus: tuple[NodeGpus, ...]
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
    memory = parse_memory(record.get("RealMemory", ""))
    kept = parse_memory(record.get("MemSpecLimit", "")) or 0
    features = parse_names(record.get("ActiveFeatures", record.get("AvailableFeatures", ""))) or frozenset()
    hosts = {record.get(key, "").partition(".")[0] for key in ("NodeHostName", "NodeName")}
    is_here = here is not None and here.host in hosts
    seen = here.gpus[0] if here is not None and is_here and len(set(here.gpus)) == 1 else ""
    return _Node(
        record["NodeName"],
        parse_count(record.get("CPUEfctv", "")) or parse_count(record.get("CPUTot", "")),
        memory,
        None if memory is None else memory - kept,
        parse_count(record.get("Sockets", "")) or 1,
        parse_count(record.get("ThreadsPerCore", "")) or 1,
        tuple(node_gpus(read_gres(record.get("Gres", "")), sorted(features), devices, seen)),
        parse_names(record.get("Partitions", "")) or frozenset(),
        features,
        parse_count(record.get("Nodes", "")) or 1,
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
    known = match_processor(here.cpu_model, devices)
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
