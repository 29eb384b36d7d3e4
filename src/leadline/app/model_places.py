"""The places that a trained model is asked about, and what their nodes are made of, in the words of its features."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leadline.app.places import LOCAL
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.hardware import Device, DeviceKind
from leadline.core.models import Feature, Role
from leadline.core.ports import Catalog
from leadline.core.samples import Value
from leadline.core.systems import Billing, BillingRule, NodeType, Partition, System
from leadline.execution.wrapper.node import describe_node
from leadline.recommend.unseen import same_model
from leadline.training.records import device_features, node_features

HERE = Billing(BillingRule.CORE_HOURS, "USD", core_hour=0.0, free=True, source="this machine")


@dataclass(frozen=True, slots=True)
class Node:
    """A partition with the device that the job computes on there, and its figures as a model knows them.

    ``figures`` maps the names of node features to this node's values; what is not known is absent.
    """

    system: System
    partition: Partition
    device: Device
    figures: dict[str, Value]

    @property
    def name(self) -> str:
        """How the user would write this place after ``--on``."""
        return f"{self.system.name}:{self.partition.name}" if self.partition.name else self.system.name


def find_nodes(catalog: Catalog, on: Sequence[str], features: Sequence[Feature]) -> list[Node]:
    """Return the nodes of ``SYSTEM``, ``SYSTEM:PARTITION`` and ``local``; of every system in production without names.

    Raises:
        UnknownName: nothing of that name.
        InvalidInput: a name is a device, which gives no node to run on.
    """
    known = {one.name: one for one in features if one.role is Role.NODE}
    spelt = _Spelling(catalog, known)
    if not on:
        systems = [one for one in catalog.systems() if not one.status.startswith("decommissioned")]
        return [spelt.node(system, partition) for system in systems for partition in system.partitions]
    return [node for name in dict.fromkeys(on) for node in _named(name, catalog, spelt)]


def _named(name: str, catalog: Catalog, spelt: "_Spelling") -> Iterable[Node]:
    if name.casefold() == LOCAL:
        return [spelt.local()]
    system_name, _, partition = name.partition(":")
    try:
        system = catalog.system(system_name)
    except UnknownName as error:
        known = [LOCAL, *(one.name for one in catalog.systems())]
        if not partition and spelt.device(name) is not None:
            raise InvalidInput(
                f"--on {name} is a device, and a trained model is asked about nodes: name a system, or local"
            ) from error
        fix = "leadline systems list shows the known ones, and local is this machine"
        raise UnknownName("system", system_name, known, fix=fix) from error
    found = (system.partition(partition),) if partition else system.partitions
    return [spelt.node(system, one) for one in found]


class _Spelling:
    """Writes a node's figures as the features of a model do: a processor that a run had keeps the run's own name."""

    def __init__(self, catalog: Catalog, known: Mapping[str, Feature]) -> None:
        self.catalog, self.known = catalog, known
        self._names: dict[tuple[str, str], str] = {}
        self._devices = {
            name.casefold(): device for device in catalog.devices() for name in (*device.aliases, device.name)
        }

    def node(self, system: System, partition: Partition) -> Node:
        """Return a partition's node."""
        node = partition.node
        processor = self.catalog.device(node.processor) if node.processor else None
        gpu = self.catalog.device(node.device) if node.device else None
        figures: dict[str, Value | None] = {
            "node_cores": node.cores,
            "node_memory_bytes": node.memory_bytes,
            "node_cpu": processor.name if processor else node.cpu_model,
            "node_hz": processor.boost_hz if processor else None,
            "node_gpu": gpu.name if gpu else None,
            "node_gpus": node.gpus or None,
            **(device_features(gpu) if gpu else {}),
        }
        device = gpu or processor or Device(node.cpu_model or "processor not known", "", DeviceKind.CPU)
        return Node(system, partition, device, self._spelt(figures))

    def local(self) -> Node:
        """Return the machine at hand: free, and without a scheduler."""
        tags = describe_node()
        figures = node_features(tags, self.device)
        cores, memory = figures.get("node_cores"), figures.get("node_memory_bytes")
        node = NodeType(
            tags.get("node_cpu", LOCAL),
            count=1,
            cpu_model=tags.get("node_cpu"),
            cores=cores if isinstance(cores, int) else None,
            memory_bytes=memory if isinstance(memory, int) else None,
            device=tags.get("node_gpu"),
            gpus=int(tags.get("node_gpus", 0)),
        )
        found = self.device(tags["node_gpu"]) if "node_gpu" in tags else None
        device = found or Device(tags.get("node_gpu") or tags.get("node_cpu", LOCAL), "", DeviceKind.CPU)
        system = System(LOCAL, "this machine", "workstation", "production", "none")
        return Node(system, Partition("", node, billing=HERE), device, self._spelt(dict(figures)))

    def device(self, name: str) -> Device | None:
        """Return the catalog's device of a name, as its maker's driver or the kernel may write it."""
        found = self._devices.get(name.casefold())
        return found or next((one for one in self._devices.values() if same_model(one.name, name)), None)

    def _spelt(self, figures: Mapping[str, Value | None]) -> dict[str, Value]:
        named = {name: value for name, value in figures.items() if value is not None}
        return {name: self._name(name, value) if isinstance(value, str) else value for name, value in named.items()}

    def _name(self, feature: str, name: str) -> str:
        """Return the name that the runs have for a model, where they had it; else its own."""
        if (feature, name) not in self._names:
            choices = self.known[feature].choices if feature in self.known else ()
            matching = (str(one) for one in choices if same_model(str(one), name) or self._alike(str(one), name))
            self._names[feature, name] = next(matching, name)
        return self._names[feature, name]

    def _alike(self, one: str, other: str) -> bool:
        """Whether both names are of one device of the catalog."""
        first, second = self._devices.get(one.casefold()), self._devices.get(other.casefold())
        return first is not None and second is not None and first.name == second.name
