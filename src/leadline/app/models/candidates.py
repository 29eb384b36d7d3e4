"""Place the configurations of a trained model on nodes, and turn its predictions into candidates."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import field

from leadline.app.machines.targets import LOCAL
from leadline.app.models.question import RESOURCES
from leadline.campaigns.configurations import fill_command
from leadline.catalog.billing import compute_charge
from leadline.core.campaigns import Configuration
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.frozen import Frozen
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


class CandidateNode(Frozen):
    """A partition with its device, and its values of the model's node features; unknown ones are absent."""

    system: System
    partition: Partition
    device: Device
    features: dict[str, Value]

    @property
    def name(self) -> str:
        """Return the node as it is written after ``--on``."""
        return f"{self.system.name}:{self.partition.name}" if self.partition.name else self.system.name


def find_candidate_nodes(catalog: Catalog, on: Sequence[str], features: Sequence[Feature]) -> list[CandidateNode]:
    """Return the nodes of ``SYSTEM``, ``SYSTEM:PARTITION`` and ``local``; without names, of every system in production.

    Raises:
        UnknownName: no system has that name.
        InvalidInput: a name is a device, which has no node.
    """
    spelling = _Spelling(catalog, {feature.name: feature for feature in features if feature.role is FeatureRole.NODE})
    if not on:
        systems = [system for system in catalog.systems() if not system.status.startswith("decommissioned")]
        return [spelling.node(system, partition) for system in systems for partition in system.partitions]
    return [node for name in dict.fromkeys(on) for node in _named(name, catalog, spelling)]


def _named(name: str, catalog: Catalog, spelling: "_Spelling") -> Iterable[CandidateNode]:
    if name.casefold() == LOCAL:
        return [spelling.local()]
    system_name, _, partition = name.partition(":")
    try:
        system = catalog.system(system_name)
    except UnknownName as error:
        names = [LOCAL, *(system.name for system in catalog.systems())]
        if not partition and spelling.device(name) is not None:
            raise InvalidInput(
                f"--on {name} is a device, but a trained model needs a node: name a system, or local"
            ) from error
        fix = "leadline systems list shows the systems; local is this machine"
        raise UnknownName("system", system_name, names, fix=fix) from error
    partitions = (system.partition(partition),) if partition else system.partitions
    return [spelling.node(system, partition) for partition in partitions]


class _Spelling:
    """Writes node features in the spelling of the model's runs, such as their name of a processor."""

    def __init__(self, catalog: Catalog, features: Mapping[str, Feature]) -> None:
        self.catalog, self.known = catalog, features
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
            "node_gpu_power_limit_w": node.power_limit_w or (gpu.tdp_w if gpu else None),
            **(device_features(gpu) if gpu else {}),
        }
        device = gpu or processor or Device(node.cpu_model or "processor not known", "", DeviceKind.CPU)
        return CandidateNode(system, partition, device, self._spelled(figures))

    def local(self) -> CandidateNode:
        """Return this machine as a node: free, without a scheduler."""
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
        gpu = self.device(tags["node_gpu"]) if "node_gpu" in tags else None
        device = gpu or Device(tags.get("node_gpu") or tags.get("node_cpu", LOCAL), "", DeviceKind.CPU)
        system = System(LOCAL, "this machine", "workstation", "production", "none")
        return CandidateNode(system, Partition("", node, billing=FREE_BILLING), device, self._spelled(dict(figures)))

    def device(self, name: str) -> Device | None:
        """Return the catalog's device of a name, as a driver or the kernel may write it."""
        device = self._devices.get(name.casefold())
        return device or next((device for device in self._devices.values() if is_same_model(device.name, name)), None)

    def _spelled(self, figures: Mapping[str, Value | None]) -> dict[str, Value]:
        named = {name: value for name, value in figures.items() if value is not None}
        return {name: self._name(name, value) if isinstance(value, str) else value for name, value in named.items()}

    def _name(self, feature: str, name: str) -> str:
        """Return the runs' name of a model if they had it, else its own name."""
        if (feature, name) not in self._names:
            choices = map(str, self.known[feature].choices if feature in self.known else ())
            device = self._devices.get(name.casefold())
            # The catalog knows several names of a device.
            aliases = [alias for alias, named in self._devices.items() if device and named.name == device.name]
            matching = (choice for choice in choices if is_same_model(choice, name) or choice.casefold() in aliases)
            self._names[feature, name] = next(matching, name)
        return self._names[feature, name]


ESTIMATOR = "trained model"
TIME, MEMORY, GPU_MEMORY = "elapsed_s", "host_memory_bytes", "gpu_memory_bytes"
TARGETS = (TIME, MEMORY, GPU_MEMORY)


class ConfigurationQuery(Frozen):
    """A configuration, and the graph features of its command if the model uses them."""

    values: dict[str, Value]
    graph: Mapping[str, float] = field(default_factory=dict)


class PlacedConfiguration(Frozen):
    """A configuration on a node.

    Attributes:
        values: the configuration, one object for all nodes.
        row: the features of the model: the configuration's and the node's.
        share: the request without limits.
    """

    node: CandidateNode
    values: dict[str, Value]
    row: dict[str, Value]
    share: ResourceSpec
    gpus: int
    unseen: UnseenHardware | None


def place_configurations(
    node: CandidateNode, queries: Sequence[ConfigurationQuery], model: TrainedModel
) -> tuple[list[PlacedConfiguration], list[Refusal]]:
    """Return the configurations that a node can run, and each distinct reason for a refusal."""
    relevant = [feature.name for feature in model.features if feature.role is FeatureRole.NODE and feature.used]
    figures = {name: node.features[name] for name in relevant if name in node.features}
    features = {feature.name: feature for feature in model.features}
    if "partition" in features:
        figures["partition"] = node.partition.name
    # Many configurations share their resources, and so their request.
    requests: dict[tuple[Value | None, ...], ResourceSpec | Refusal] = {}
    unseen_hardware: dict[bool, UnseenHardware | None] = {}
    placed = []
    for query in queries:
        values = query.values
        resources = tuple(values.get(name) for name in RESOURCES)
        if resources not in requests:
            requests[resources] = _request_or_refusal(node, values)
        request, gpus = requests[resources], as_count(values.get("gpus", 0))
        if isinstance(request, Refusal):
            continue
        if bool(gpus) not in unseen_hardware:
            unseen_hardware[bool(gpus)] = find_unseen_hardware(features, node.features, gpus) or _beyond(
                model, {**figures, **values}
            )
        row = {**figures, **query.graph, **values}
        placed.append(PlacedConfiguration(node, values, row, request, gpus, unseen_hardware[bool(gpus)]))
    refusals = {refusal.reason: refusal for refusal in requests.values() if isinstance(refusal, Refusal)}
    return placed, list(refusals.values())


def _beyond(model: TrainedModel, row: Mapping[str, Value]) -> UnseenHardware | None:
    """Return the node features outside the runs; the model itself widens the interval for them."""
    used = [feature for feature in model.features if feature.used]
    names = [feature.name for feature in used if feature.role is FeatureRole.NODE or feature.name == "partition"]
    sentences = [sentence for sentence in model.beyond(row) if sentence.partition(" ")[0] in names] if names else []
    return UnseenHardware(0.0, f"{'; '.join(sentences)}: wider interval", model=False) if sentences else None


def _request_or_refusal(node: CandidateNode, values: Mapping[str, Value]) -> ResourceSpec | Refusal:
    gpus, cores = as_count(values.get("gpus", 0)), values.get("cores")
    per_node = node.partition.node.gpus if gpus else 0
    nodes = max(as_count(values.get("nodes", 1)), math.ceil(gpus / per_node) if per_node else 1)
    refusal = check_place(node.system, node.partition, gpus, nodes) or check_configuration(
        node.partition, None if cores is None else as_count(cores), gpus, nodes
    )
    if refusal is not None and not (refusal.kind == "gpus-unused" and node.system.name == LOCAL):
        return refusal
    share, has = resources_per_node(values, nodes), node.partition.node
    if not node.partition.rules.whole_nodes:
        return share
    whole_gpus = has.gpus or share.gpus_per_node if gpus else 0
    return replace(share, cores_per_task=has.cores or share.cores_per_task, gpus_per_node=whole_gpus)


def resources_per_node(values: Mapping[str, Value], nodes: int = 1) -> ResourceSpec:
    """Return what a configuration takes of each node, without limits."""
    cores, memory = values.get("cores"), values.get("memory_bytes")
    return ResourceSpec(
        nodes=nodes,
        cores_per_task=None if cores is None else math.ceil(as_count(cores) / nodes),
        gpus_per_node=math.ceil(as_count(values.get("gpus", 0)) / nodes),
        memory_bytes_per_node=None if memory is None else math.ceil(as_count(memory) / nodes),
    )


def command_words(model: TrainedModel, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the command line of a configuration before its node is known."""
    return fill_command(model.command, Configuration(dict(values), resources_per_node(values)))


def as_count(value: Value) -> int:
    """Return a count; 0 for a text."""
    return int(value) if not isinstance(value, str) else 0


def build_candidates(
    placed: Sequence[PlacedConfiguration], model: TrainedModel, constraints: Constraints
) -> list[PlacementCandidate]:
    """Return each placed configuration with its estimate, request and cost."""
    # Nodes with the same hardware share a row, so each distinct one is predicted once, all at once.
    keys = [tuple(case.row.items()) for case in placed]
    rows = dict(zip(keys, (case.row for case in placed), strict=True))
    numbers = {key: number for number, key in enumerate(rows)}
    intervals: dict[str, list[Interval]] = {}
    for target in model.targets:
        if target in TARGETS and rows:
            predicted = model.predict(target, list(rows.values()))
            columns = zip(predicted.point, predicted.low, predicted.high, strict=True)
            intervals[target] = [Interval(*column, predicted.level) for column in columns]
    builder = _CandidateBuilder(model, constraints, intervals)
    return [builder.candidate(case, numbers[key]) for case, key in zip(placed, keys, strict=True)]


class _CandidateBuilder:
    """Builds candidates from the predicted intervals, and keeps what many candidates share."""

    def __init__(self, model: TrainedModel, constraints: Constraints, intervals: Mapping[str, list[Interval]]) -> None:
        self.model, self.constraints, self.intervals = model, constraints, intervals
        self._names_place = any("{partition}" in word for word in model.command)
        self._basis = Basis(Tier.LEARNED, tuple(model.basis))
        self._prices: dict[tuple[object, ...], float | None] = {}
        self._known: dict[tuple[int, float], tuple[Interval | None, ...]] = {}
        self._commands: dict[tuple[object, ...], tuple[str, ...]] = {}

    def candidate(self, case: PlacedConfiguration, number: int) -> PlacementCandidate:
        """Return a configuration on a node, predicted in row ``number``."""
        elapsed, memory, gpu = self._intervals(case, number)
        node, partition, share = case.node, case.node.partition, case.share
        place = (node.system.name or None, partition.name, partition.node.name)
        free_memory = None if share.memory_bytes_per_node else memory
        request = build_request(elapsed, free_memory, share, partition, self.constraints.risk, self.constraints.weights)
        hourly = self._hourly(node, request.resources)
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
            request.resources,
            hourly,
            request.reason,
            unseen=case.unseen is not None and case.unseen.model,
            parameters=case.values,
            command=self._command(case),
            notes=() if case.unseen is None else (case.unseen.sentence,),
        )

    def _command(self, case: PlacedConfiguration) -> tuple[str, ...]:
        """Return the command line of a configuration; empty if the application's command is unknown."""
        if not self.model.command:
            return ()
        place = case.node.partition.name if self._names_place else ""
        # A configuration is one dict for all nodes: its id is a key that needs no hashing of its values.
        key = (place, case.share.nodes, id(case.values))
        if key not in self._commands:
            resources = resources_per_node(case.values, case.share.nodes)
            configuration = Configuration(case.values, resources, case.node.partition.name)
            self._commands[key] = fill_command(self.model.command, configuration)
        return self._commands[key]

    def _intervals(self, case: PlacedConfiguration, number: int) -> tuple[Interval | None, ...]:
        """Return the predictions of a row; the time is widened for hardware that no run had."""
        key = (number, case.unseen.spread if case.unseen else 0.0)
        if key not in self._known:
            rows = (self.intervals.get(target) for target in TARGETS)
            elapsed, *memory = (None if row is None else row[number] for row in rows)
            if elapsed is not None and case.unseen is not None:
                elapsed = case.unseen.widen(elapsed)
            self._known[key] = (elapsed, *memory)
        return self._known[key]

    def _hourly(self, node: CandidateNode, request: ResourceSpec) -> float | None:
        """Return the cost of the request per hour, which does not depend on the walltime."""
        billing = node.partition.billing
        if billing is None:
            return None
        key = (node.name, request.nodes, request.cores_per_task, request.gpus_per_node, request.memory_bytes_per_node)
        if key not in self._prices:
            self._prices[key] = compute_charge(billing, request, 1.0, node.partition.node)
        return self._prices[key]
