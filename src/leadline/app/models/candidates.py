"""The places that a trained model is asked about, and what their nodes are made of, in the words of its features."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leadline.app.machines.targets import LOCAL
from leadline.app.models.question import RESOURCES
from leadline.campaigns.configurations import fill_command
from leadline.catalog.billing import compute_charge
from leadline.core.campaigns import Configuration
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.recommendation import Constraints
from leadline.core.runs import Value
from leadline.core.systems import Billing, BillingRule, NodeType, Partition, System
from leadline.core.trained_model import Feature, FeatureRole, TrainedModel
from leadline.core.units import HOUR_S
from leadline.execution.wrapper.node import describe_node
from leadline.recommendation.feasibility import PlacementCandidate, Refusal, check_configuration, check_place
from leadline.recommendation.requests import build_request
from leadline.recommendation.unseen_hardware import UnseenHardware, find_unseen_hardware, is_same_model
from leadline.training.records import device_features, node_features

FREE_BILLING = Billing(BillingRule.CORE_HOURS, "USD", core_hour=0.0, free=True, source="this machine")


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A partition with the device that the job computes on there, and its figures as a model knows them.

    ``features`` maps the names of node features to this node's values; what is not known is absent.
    """

    system: System
    partition: Partition
    device: Device
    features: dict[str, Value]

    @property
    def name(self) -> str:
        """How the user would write this place after ``--on``."""
        return f"{self.system.name}:{self.partition.name}" if self.partition.name else self.system.name


def find_candidate_nodes(catalog: Catalog, on: Sequence[str], features: Sequence[Feature]) -> list[CandidateNode]:
    """Return the nodes of ``SYSTEM``, ``SYSTEM:PARTITION`` and ``local``; of every system in production without names.

    Raises:
        UnknownName: nothing of that name.
        InvalidInput: a name is a device, which gives no node to run on.
    """
    known = {one.name: one for one in features if one.role is FeatureRole.NODE}
    spelt = _Spelling(catalog, known)
    if not on:
        systems = [one for one in catalog.systems() if not one.status.startswith("decommissioned")]
        return [spelt.node(system, partition) for system in systems for partition in system.partitions]
    return [node for name in dict.fromkeys(on) for node in _named(name, catalog, spelt)]


def _named(name: str, catalog: Catalog, spelt: "_Spelling") -> Iterable[CandidateNode]:
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

    def node(self, system: System, partition: Partition) -> CandidateNode:
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
        return CandidateNode(system, partition, device, self._spelt(figures))

    def local(self) -> CandidateNode:
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
        return CandidateNode(system, Partition("", node, billing=FREE_BILLING), device, self._spelt(dict(figures)))

    def device(self, name: str) -> Device | None:
        """Return the catalog's device of a name, as its maker's driver or the kernel may write it."""
        found = self._devices.get(name.casefold())
        return found or next((one for one in self._devices.values() if is_same_model(one.name, name)), None)

    def _spelt(self, figures: Mapping[str, Value | None]) -> dict[str, Value]:
        named = {name: value for name, value in figures.items() if value is not None}
        return {name: self._name(name, value) if isinstance(value, str) else value for name, value in named.items()}

    def _name(self, feature: str, name: str) -> str:
        """Return the name that the runs have for a model, where they had it; else its own."""
        if (feature, name) not in self._names:
            choices = self.known[feature].choices if feature in self.known else ()
            matching = (str(one) for one in choices if is_same_model(str(one), name) or self._alike(str(one), name))
            self._names[feature, name] = next(matching, name)
        return self._names[feature, name]

    def _alike(self, one: str, other: str) -> bool:
        """Whether both names are of one device of the catalog."""
        first, second = self._devices.get(one.casefold()), self._devices.get(other.casefold())
        return first is not None and second is not None and first.name == second.name


ESTIMATOR = "trained model"
TIME, MEMORY, GPU_MEMORY = "elapsed_s", "host_memory_bytes", "gpu_memory_bytes"
TARGETS = (TIME, MEMORY, GPU_MEMORY)


@dataclass(frozen=True, slots=True)
class ConfigurationQuery:
    """A configuration that is asked about, and the white-box figures of its command where the model wants them."""

    values: dict[str, Value]
    graph: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacedConfiguration:
    """A configuration on a node that can take it: the row that the model is asked, and the request without limits.

    ``values`` are the configuration's own, one object for all nodes; ``row`` has the node's figures too.
    """

    node: CandidateNode
    values: dict[str, Value]
    row: dict[str, Value]
    share: ResourceSpec
    gpus: int
    unseen: UnseenHardware | None


@dataclass(slots=True)
class BatchPredictor:
    """Puts rows to a model once each, however many places share them."""

    model: TrainedModel
    _known: dict[tuple[tuple[str, Value], ...], int] = field(default_factory=dict)
    _rows: list[dict[str, Value]] = field(default_factory=list)
    _intervals: dict[str, list[Interval]] = field(default_factory=dict)

    def add(self, row: dict[str, Value]) -> int:
        """Return the number by which the answers for a row are found once ``build_request`` was called."""
        key = tuple(row.items())
        if key not in self._known:
            self._known[key] = len(self._rows)
            self._rows.append(row)
        return self._known[key]

    def predict(self) -> None:
        """Predict every target that recommending needs, for all rows at once."""
        for target in self.model.targets:
            if target in TARGETS and self._rows:
                said = self.model.predict(target, self._rows)
                columns = zip(said.point, said.low, said.high, strict=True)
                self._intervals[target] = [Interval(*each, said.level) for each in columns]

    def interval(self, target: str, number: int) -> Interval | None:
        """Return what was predicted for a row; ``None`` of a target that the model does not predict."""
        found = self._intervals.get(target)
        return None if found is None else found[number]


def place_configurations(
    node: CandidateNode, tried: Sequence[ConfigurationQuery], model: TrainedModel
) -> tuple[list[PlacedConfiguration], list[Refusal]]:
    """Return the configurations that a node can take, and why it does not take the others, each reason once."""
    relevant = [one.name for one in model.features if one.role is FeatureRole.NODE and one.used]
    figures = {name: node.features[name] for name in relevant if name in node.features}
    known = {one.name: one for one in model.features}
    if "partition" in known:
        figures["partition"] = node.partition.name
    shares: dict[tuple[Value | None, ...], ResourceSpec | Refusal] = {}
    strange: dict[bool, UnseenHardware | None] = {}
    found = []
    for one in tried:
        values = one.values
        wanted = tuple(values.get(name) for name in RESOURCES)
        if wanted not in shares:
            shares[wanted] = _share_or_refusal(node, values)
        share, gpus = shares[wanted], as_count(values.get("gpus", 0))
        if isinstance(share, Refusal):
            continue
        if bool(gpus) not in strange:
            strange[bool(gpus)] = find_unseen_hardware(known, node.features, gpus) or _beyond(
                model, {**figures, **values}
            )
        row = {**figures, **one.graph, **values}
        found.append(PlacedConfiguration(node, values, row, share, gpus, strange[bool(gpus)]))
    refusals = {one.reason: one for one in shares.values() if isinstance(one, Refusal)}
    return found, list(refusals.values())


def _beyond(model: TrainedModel, row: Mapping[str, Value]) -> UnseenHardware | None:
    """Return what the model has not seen of a node whose processor it knows; its own interval is wider for it."""
    names = [
        one.name for one in model.features if one.used and (one.role is FeatureRole.NODE or one.name == "partition")
    ]
    said = [sentence for sentence in model.beyond(row) if sentence.partition(" ")[0] in names] if names else []
    return UnseenHardware(0.0, f"{'; '.join(said)}: the range is wider for it", model=False) if said else None


def _share_or_refusal(node: CandidateNode, values: Mapping[str, Value]) -> ResourceSpec | Refusal:
    gpus, cores = as_count(values.get("gpus", 0)), values.get("cores")
    per_node = node.partition.node.gpus if gpus else 0
    nodes = max(as_count(values.get("nodes", 1)), math.ceil(gpus / per_node) if per_node else 1)
    refusal = check_place(node.system, node.partition, gpus, nodes) or check_configuration(
        node.partition, None if cores is None else as_count(cores), gpus, nodes
    )
    if refusal is not None and not (refusal.kind == "gpus-unused" and node.system.name == LOCAL):
        return refusal
    return node_request(node, values, gpus, nodes)


def node_request(node: CandidateNode, values: Mapping[str, Value], gpus: int, nodes: int) -> ResourceSpec:
    """Return what a configuration asks for on each node, limits apart; a site that gives whole nodes gives them."""
    cores, memory, there = values.get("cores"), values.get("memory_bytes"), node.partition.node
    asked = None if cores is None else math.ceil(as_count(cores) / nodes)
    per_node = math.ceil(gpus / nodes)
    gives_whole = node.partition.rules.whole_nodes
    return ResourceSpec(
        nodes=nodes,
        cores_per_task=there.cores or asked if gives_whole else asked,
        gpus_per_node=(there.gpus or per_node) if gives_whole and gpus else per_node,
        memory_bytes_per_node=None if memory is None else math.ceil(as_count(memory) / nodes),
    )


def command_words(model: TrainedModel, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the command line of a configuration before its place is known."""
    cores = values.get("cores")
    resources = ResourceSpec(
        cores_per_task=None if cores is None else as_count(cores), gpus_per_node=as_count(values.get("gpus", 0))
    )
    return fill_command(model.command, Configuration(dict(values), resources))


def as_count(value: Value) -> int:
    """Return a count; a text counts as nothing."""
    return int(value) if not isinstance(value, str) else 0


@dataclass(slots=True)
class CandidateBuilder:
    """Makes a candidate of each case."""

    model: TrainedModel
    constraints: Constraints
    asker: BatchPredictor
    _basis: Basis = field(init=False)
    _prices: dict[tuple[object, ...], float | None] = field(default_factory=dict)
    _names_place: bool = field(init=False)
    _known: dict[tuple[int, float], tuple[Interval | None, ...]] = field(default_factory=dict)
    _commands: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Say once what all estimates rest on."""
        self._names_place = any("{partition}" in word for word in self.model.command)
        self._basis = Basis(Tier.LEARNED, tuple(self.model.basis))

    def candidate(self, case: PlacedConfiguration, number: int) -> PlacementCandidate:
        """Return a configuration on a node with its estimate, its request and its price."""
        elapsed, memory, gpu = self._intervals(case, number)
        node, partition, share = case.node, case.node.partition, case.share
        place = (node.system.name or None, partition.name, partition.node.name)
        asked = build_request(
            elapsed,
            None if share.memory_bytes_per_node else memory,
            share,
            partition,
            self.constraints.risk,
            self.constraints.weights,
        )
        hourly = self._hourly(node, asked.resources)
        estimate = Estimate(
            Target(node.device.name, *place, case.gpus, share.nodes),
            ESTIMATOR,
            self._basis,
            elapsed_s=elapsed,
            gpu_memory_bytes=gpu if case.gpus else None,
            host_memory_bytes=memory,
            device_memory_bytes=node.device.memory_bytes if case.gpus else None,
            cost=None if elapsed is None or hourly is None else elapsed.scaled(hourly / HOUR_S),
            currency=partition.billing.currency if partition.billing else None,
        )
        return PlacementCandidate(
            node.system,
            partition,
            node.device,
            estimate,
            asked.resources,
            hourly,
            asked.reason,
            unseen=case.unseen is not None and case.unseen.model,
            parameters=case.values,
            command=self._command(case),
            notes=() if case.unseen is None else (case.unseen.sentence,),
        )

    def _command(self, case: PlacedConfiguration) -> tuple[str, ...]:
        """Return the command line of a configuration; nothing where the application's is not known."""
        if not self.model.command:
            return ()
        place = case.node.partition.name if self._names_place else ""
        key = (place, case.share.nodes, id(case.values))
        if key not in self._commands:
            said = case.values
            cores, memory = said.get("cores"), case.share.memory_bytes_per_node
            resources = ResourceSpec(
                cores_per_task=None if cores is None else math.ceil(as_count(cores) / case.share.nodes),
                gpus_per_node=math.ceil(case.gpus / case.share.nodes),
                memory_bytes_per_node=memory,
            )
            one = Configuration(said, resources, case.node.partition.name)
            self._commands[key] = fill_command(self.model.command, one)
        return self._commands[key]

    def _intervals(self, case: PlacedConfiguration, number: int) -> tuple[Interval | None, ...]:
        """Return what is predicted of each target; where no run had the hardware, less is known of the time."""
        key = (number, case.unseen.spread if case.unseen else 0.0)
        if key not in self._known:
            elapsed, *memory = (self.asker.interval(target, number) for target in TARGETS)
            if elapsed is not None and case.unseen is not None:
                elapsed = case.unseen.widen(elapsed)
            self._known[key] = (elapsed, *memory)
        return self._known[key]

    def _hourly(self, node: CandidateNode, asked: ResourceSpec) -> float | None:
        """Return what the request costs an hour; the walltime does not count."""
        billing = node.partition.billing
        if billing is None:
            return None
        key = (node.name, asked.nodes, asked.cores_per_task, asked.gpus_per_node, asked.memory_bytes_per_node)
        if key not in self._prices:
            self._prices[key] = compute_charge(billing, asked, 1.0, node.partition.node)
        return self._prices[key]
