"""A trained model's configurations on the nodes that can take them, and the candidates that its answers make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leadline.app.model_places import Node
from leadline.app.model_question import RESOURCES
from leadline.app.places import LOCAL
from leadline.campaigns.jobs import command_of
from leadline.catalog.billing import price
from leadline.core.campaigns import Configuration
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import ResourceSpec
from leadline.core.models import Role, TrainedModel
from leadline.core.recommendation import Constraints
from leadline.core.samples import Value
from leadline.core.units import HOUR_S
from leadline.recommend.feasibility import Candidate, Refusal, refuse_configuration, refuse_place
from leadline.recommend.requests import ask
from leadline.recommend.unseen import Unseen, unseen

ESTIMATOR = "trained model"
TIME, MEMORY, GPU_MEMORY = "elapsed_s", "host_memory_bytes", "gpu_memory_bytes"
TARGETS = (TIME, MEMORY, GPU_MEMORY)


@dataclass(frozen=True, slots=True)
class Asked:
    """A configuration that is asked about, and the white-box figures of its command where the model wants them."""

    values: dict[str, Value]
    graph: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration on a node that can take it: the row that the model is asked, and the request without limits.

    ``values`` are the configuration's own, one object for all nodes; ``row`` has the node's figures too.
    """

    node: Node
    values: dict[str, Value]
    row: dict[str, Value]
    share: ResourceSpec
    gpus: int
    unseen: Unseen | None


@dataclass(slots=True)
class Asker:
    """Puts rows to a model once each, however many places share them."""

    model: TrainedModel
    _known: dict[tuple[tuple[str, Value], ...], int] = field(default_factory=dict)
    _rows: list[dict[str, Value]] = field(default_factory=list)
    _intervals: dict[str, list[Interval]] = field(default_factory=dict)

    def add(self, row: dict[str, Value]) -> int:
        """Return the number by which the answers for a row are found once ``ask`` was called."""
        key = tuple(row.items())
        if key not in self._known:
            self._known[key] = len(self._rows)
            self._rows.append(row)
        return self._known[key]

    def ask(self) -> None:
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


def cases_on(node: Node, tried: Sequence[Asked], model: TrainedModel) -> tuple[list[Case], list[Refusal]]:
    """Return the configurations that a node can take, and why it does not take the others, each reason once."""
    relevant = [one.name for one in model.features if one.role is Role.NODE and one.used]
    figures = {name: node.figures[name] for name in relevant if name in node.figures}
    known = {one.name: one for one in model.features}
    if "partition" in known:
        figures["partition"] = node.partition.name
    shares: dict[tuple[Value | None, ...], ResourceSpec | Refusal] = {}
    strange: dict[bool, Unseen | None] = {}
    found = []
    for one in tried:
        values = one.values
        wanted = tuple(values.get(name) for name in RESOURCES)
        if wanted not in shares:
            shares[wanted] = _share_or_refusal(node, values)
        share, gpus = shares[wanted], whole(values.get("gpus", 0))
        if isinstance(share, Refusal):
            continue
        if bool(gpus) not in strange:
            strange[bool(gpus)] = unseen(known, node.figures, gpus) or _beyond(model, {**figures, **values})
        row = {**figures, **one.graph, **values}
        found.append(Case(node, values, row, share, gpus, strange[bool(gpus)]))
    refusals = {one.reason: one for one in shares.values() if isinstance(one, Refusal)}
    return found, list(refusals.values())


def _beyond(model: TrainedModel, row: Mapping[str, Value]) -> Unseen | None:
    """Return what the model has not seen of a node whose processor it knows; its own interval is wider for it."""
    names = [one.name for one in model.features if one.used and (one.role is Role.NODE or one.name == "partition")]
    said = [sentence for sentence in model.beyond(row) if sentence.partition(" ")[0] in names] if names else []
    return Unseen(0.0, f"{'; '.join(said)}: the range is wider for it", model=False) if said else None


def _share_or_refusal(node: Node, values: Mapping[str, Value]) -> ResourceSpec | Refusal:
    gpus, cores = whole(values.get("gpus", 0)), values.get("cores")
    per_node = node.partition.node.gpus if gpus else 0
    nodes = max(whole(values.get("nodes", 1)), math.ceil(gpus / per_node) if per_node else 1)
    refusal = refuse_place(node.system, node.partition, gpus, nodes) or refuse_configuration(
        node.partition, None if cores is None else whole(cores), gpus, nodes
    )
    if refusal is not None and not (refusal.kind == "gpus-unused" and node.system.name == LOCAL):
        return refusal
    return share_on(node, values, gpus, nodes)


def share_on(node: Node, values: Mapping[str, Value], gpus: int, nodes: int) -> ResourceSpec:
    """Return what a configuration asks for on each node, limits apart; a site that gives whole nodes gives them."""
    cores, memory, there = values.get("cores"), values.get("memory_bytes"), node.partition.node
    asked = None if cores is None else math.ceil(whole(cores) / nodes)
    per_node = math.ceil(gpus / nodes)
    gives_whole = node.partition.rules.whole_nodes
    return ResourceSpec(
        nodes=nodes,
        cores_per_task=there.cores or asked if gives_whole else asked,
        gpus_per_node=(there.gpus or per_node) if gives_whole and gpus else per_node,
        memory_bytes_per_node=None if memory is None else math.ceil(whole(memory) / nodes),
    )


def words_of(model: TrainedModel, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the command line of a configuration before its place is known."""
    cores = values.get("cores")
    resources = ResourceSpec(
        cores_per_task=None if cores is None else whole(cores), gpus_per_node=whole(values.get("gpus", 0))
    )
    return command_of(model.command, Configuration(dict(values), resources))


def whole(value: Value) -> int:
    """Return a count; a text counts as nothing."""
    return int(value) if not isinstance(value, str) else 0


@dataclass(slots=True)
class Maker:
    """Makes a candidate of each case."""

    model: TrainedModel
    constraints: Constraints
    asker: Asker
    _basis: Basis = field(init=False)
    _prices: dict[tuple[object, ...], float | None] = field(default_factory=dict)
    _names_place: bool = field(init=False)
    _known: dict[tuple[int, float], tuple[Interval | None, ...]] = field(default_factory=dict)
    _commands: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Say once what all estimates rest on."""
        self._names_place = any("{partition}" in word for word in self.model.command)
        self._basis = Basis(Tier.LEARNED, tuple(self.model.basis))

    def candidate(self, case: Case, number: int) -> Candidate:
        """Return a configuration on a node with its estimate, its request and its price."""
        elapsed, memory, gpu = self._intervals(case, number)
        node, partition, share = case.node, case.node.partition, case.share
        place = (node.system.name or None, partition.name, partition.node.name)
        asked = ask(
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
        return Candidate(
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

    def _command(self, case: Case) -> tuple[str, ...]:
        """Return the command line of a configuration; nothing where the application's is not known."""
        if not self.model.command:
            return ()
        place = case.node.partition.name if self._names_place else ""
        key = (place, case.share.nodes, id(case.values))
        if key not in self._commands:
            said = case.values
            cores, memory = said.get("cores"), case.share.memory_bytes_per_node
            resources = ResourceSpec(
                cores_per_task=None if cores is None else math.ceil(whole(cores) / case.share.nodes),
                gpus_per_node=math.ceil(case.gpus / case.share.nodes),
                memory_bytes_per_node=memory,
            )
            one = Configuration(said, resources, case.node.partition.name)
            self._commands[key] = command_of(self.model.command, one)
        return self._commands[key]

    def _intervals(self, case: Case, number: int) -> tuple[Interval | None, ...]:
        """Return what is predicted of each target; where no run had the hardware, less is known of the time."""
        key = (number, case.unseen.spread if case.unseen else 0.0)
        if key not in self._known:
            elapsed, *memory = (self.asker.interval(target, number) for target in TARGETS)
            if elapsed is not None and case.unseen is not None:
                elapsed = case.unseen.widen(elapsed)
            self._known[key] = (elapsed, *memory)
        return self._known[key]

    def _hourly(self, node: Node, asked: ResourceSpec) -> float | None:
        """Return what the request costs an hour; the walltime does not count."""
        billing = node.partition.billing
        if billing is None:
            return None
        key = (node.name, asked.nodes, asked.cores_per_task, asked.gpus_per_node, asked.memory_bytes_per_node)
        if key not in self._prices:
            self._prices[key] = price(billing, asked, 1.0, node.partition.node)
        return self._prices[key]
