"""The verbs ``recommend`` and ``estimate`` with a trained model: every configuration on every node."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from leadline.app.estimate.estimate import Toolbox
from leadline.app.estimate.queue_waits import add_waits, read_queues
from leadline.app.models.candidates import (
    TIME,
    CandidateNode,
    ConfigurationQuery,
    PlacedConfiguration,
    as_count,
    build_candidates,
    command_words,
    find_candidate_nodes,
    place_configurations,
    resources_per_node,
)
from leadline.app.models.graph_features import TraceableCommand, trace_features
from leadline.app.models.question import Configurations, ModelQuestion, read_question
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind
from leadline.core.recommendation import Constraints, Recommendation, Rejection
from leadline.core.runs import Value
from leadline.core.systems import NodeType, Partition, System
from leadline.core.trained_model import FeatureRole, TrainedModel
from leadline.core.workload import ModelKind
from leadline.recommendation.feasibility import PlacementCandidate
from leadline.recommendation.ranking import rank_candidates


def recommend_with_model(
    question: ModelQuestion, model: TrainedModel, tools: Toolbox, constraints: Constraints, *, on: Sequence[str] = (),
    waits: Sequence[str] = (),
) -> Recommendation:  # fmt: skip
    """Return the configurations that satisfy ``constraints``, best first, on the nodes named by ``on`` (or all).

    ``waits`` names job accounting, ``SYSTEM`` or ``SYSTEM=FILE`` each; the queue wait there counts too.

    Raises:
        InvalidInput: a value is missing or out of range, or the model does not predict the time.
        UnknownName: unknown parameter, category, system or partition.
    """
    if TIME not in model.targets:
        raise InvalidInput(
            f"the model predicts {', '.join(model.targets)} but not {TIME}, which a recommendation "
            f"needs: train one with --target {TIME}"
        )
    queues = read_queues(waits, tools.catalog)
    configurations = read_question(question, model.features, free=True, traced=bool(model.command))
    nodes = find_candidate_nodes(tools.catalog, on, model.features)
    placed: list[PlacedConfiguration] = []
    rejections: list[Rejection] = []
    queries = _queries(configurations, model, tools)
    for node in nodes:
        fitting, refusals = place_configurations(node, queries, model)
        placed += fitting
        rejections += [refusal.at(node.system, node.partition) for refusal in refusals[: None if fitting else 1]]
    # Tens of thousands of candidates are created here.
    with _without_garbage_collection():
        timed, notes = add_waits(build_candidates(placed, model, constraints), queues)
        answer = rank_candidates(timed, constraints, rejections)
    return replace(answer, notes=(*answer.notes, *_out_of_range(model, configurations), *notes))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while many long-lived objects are created; it saves a tenth of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class ModelAnswer(Frozen):
    """Predictions of a model; ``parameters`` and ``estimates`` have the same order.

    Attributes:
        notes: parameters outside the range of the runs.
        left_out: nodes that cannot run the job, with the reason.
    """

    application: str
    parameters: tuple[dict[str, Value], ...]
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def estimate_with_model(
    question: ModelQuestion, model: TrainedModel, tools: Toolbox, *, on: Sequence[str] = ()
) -> ModelAnswer:
    """Return the predictions for the configurations, on the nodes named by ``on`` or on the runs' own hardware.

    Raises:
        InvalidInput: a value is missing or out of range, no node can run the job, or the runs had several kinds of
            hardware and no node is named.
        UnknownName: unknown parameter, category, system or partition.
    """
    configurations = read_question(question, model.features, free=False, traced=bool(model.command))
    queries = _queries(configurations, model, tools)
    placed: list[PlacedConfiguration] = []
    left_out: list[str] = []
    for node in find_candidate_nodes(tools.catalog, on, model.features) if on else [_as_in_the_runs(model)]:
        fitting, refusals = place_configurations(node, queries, model) if on else (_place_anywhere(node, queries), [])
        placed += fitting
        left_out += [f"{node.name} {refusal.reason}" for refusal in refusals]
    if not placed:
        raise InvalidInput(f"no prediction: {'; '.join(left_out)}")
    candidates = build_candidates(placed, model, Constraints())
    return ModelAnswer(
        model.application,
        tuple(candidate.parameters for candidate in candidates),
        tuple(_with_reason_for_no_cost(candidate) for candidate in candidates),
        _out_of_range(model, configurations),
        tuple(left_out),
    )


def _as_in_the_runs(model: TrainedModel) -> CandidateNode:
    """Return a node with the hardware of all runs."""
    several = [feature.name for feature in model.features if feature.role is FeatureRole.NODE and feature.used]
    if several:
        raise InvalidInput(
            f"the runs had several kinds of hardware ({', '.join(several)}): choose a node with --on "
            "SYSTEM:PARTITION or --on local"
        )
    processors = (feature.choices for feature in model.features if feature.name == "node_cpu" and feature.choices)
    device = Device(str(next(processors, ("as in the runs",))[0]), "", DeviceKind.CPU)
    return CandidateNode(System("", "", "", "production", "none"), Partition("", NodeType("")), device, {})


def _place_anywhere(node: CandidateNode, queries: Sequence[ConfigurationQuery]) -> list[PlacedConfiguration]:
    placed = []
    for query in queries:
        row, gpus = {**query.graph, **query.values}, as_count(query.values.get("gpus", 0))
        placed.append(PlacedConfiguration(node, query.values, row, resources_per_node(query.values), gpus, None))
    return placed


def _queries(configurations: Configurations, model: TrainedModel, tools: Toolbox) -> list[ConfigurationQuery]:
    """Return the configurations, with graph features if the model uses them."""
    used = {feature.name for feature in model.features if feature.role is FeatureRole.GRAPH and feature.used}
    if not used - set(configurations.values):
        return [ConfigurationQuery(values) for values in configurations]
    workdir = str(Path.cwd())
    commands = [
        TraceableCommand(command_words(model, values), workdir, bool(as_count(values.get("gpus", 0))))
        for values in configurations
    ]
    features = trace_features(commands, tools.sources[ModelKind.COMMAND], jobs=os.cpu_count() or 1)
    return [ConfigurationQuery(values, graph) for values, graph in zip(configurations, features, strict=True)]


def _with_reason_for_no_cost(candidate: PlacementCandidate) -> Estimate:
    """Return the estimate with its notes, and with the reason if it has no cost."""
    estimate = replace(candidate.estimate, notes=candidate.notes)
    if estimate.cost is not None:
        return estimate
    why = "the price of this partition is unknown" if estimate.target.system else "no cost without a system: add --on"
    return replace(estimate, unknown={"cost": why})


def _out_of_range(model: TrainedModel, configurations: Configurations) -> tuple[str, ...]:
    """Return a sentence for each parameter outside the range of the runs in some configuration."""
    sentences: dict[str, None] = {}
    base = {parameter: several[0] for parameter, several in configurations.values.items()}
    for name, values in configurations.values.items():
        for value in values:
            matching = [sentence for sentence in model.beyond({**base, name: value}) if sentence.startswith(f"{name} ")]
            sentences.update(dict.fromkeys(matching))
    return tuple(f"{sentence}: wider interval" for sentence in sentences)
