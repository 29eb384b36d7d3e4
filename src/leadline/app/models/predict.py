"""The verbs ``recommend`` and ``estimate`` of a trained model: every configuration asked for, at every place."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from leadline.app.estimate.estimate import Toolbox
from leadline.app.estimate.queue_waits import add_waits, read_queues
from leadline.app.models.candidates import (
    TIME,
    BatchPredictor,
    CandidateBuilder,
    CandidateNode,
    ConfigurationQuery,
    PlacedConfiguration,
    as_count,
    command_words,
    find_candidate_nodes,
    node_request,
    place_configurations,
)
from leadline.app.models.graph_features import TraceableCommand, trace_features
from leadline.app.models.question import Configurations, ModelQuestion, read_question
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate
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
    """Return the configurations that satisfy ``constraints``, best first, at the places named by ``on`` (or all).

    ``waits`` are accountings of systems, ``SYSTEM`` or ``SYSTEM=FILE``: there the time in the queue counts, too.

    Raises:
        InvalidInput: a value is missing or cannot be, or the model does not predict the time.
        UnknownName: there is no such parameter, category, system or partition.
    """
    _require_time(model)
    queues = read_queues(waits, tools.catalog)
    tried = read_question(question, model.features, free=True, traced=bool(model.command))
    nodes = find_candidate_nodes(tools.catalog, on, model.features)
    cases: list[PlacedConfiguration] = []
    rejections: list[Rejection] = []
    each = _asked(tried, model, tools)
    for node in nodes:
        fitting, refusals = place_configurations(node, each, model)
        cases += fitting
        place = (node.system.name, node.partition.name, node.partition.node.name)
        rejections += [Rejection(*place, one.reason, one.kind) for one in refusals[: None if fitting else 1]]
    with _uncollected():
        asker = BatchPredictor(model)
        numbers = [asker.add(case.row) for case in cases]
        asker.predict()
        made = CandidateBuilder(model, constraints, asker)
        candidates = [made.candidate(case, number) for case, number in zip(cases, numbers, strict=True)]
        timed, notes = add_waits(candidates, queues)
        answer = rank_candidates(timed, constraints, rejections)
    return replace(answer, notes=(*_beyond(model, tried), *notes))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the search for garbage while a great many objects are made that all stay: it takes a tenth of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model says of each configuration asked for: ``parameters`` and ``estimates`` go together.

    ``notes`` name what lies outside the runs, and ``left_out`` the places that cannot take the job, with the reason.
    """

    application: str
    parameters: tuple[dict[str, Value], ...]
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def estimate_with_model(
    question: ModelQuestion, model: TrainedModel, tools: Toolbox, *, on: Sequence[str] = ()
) -> ModelAnswer:
    """Return what the model says of the configurations, at the places named by ``on`` or on the runs' own hardware.

    Raises:
        InvalidInput: a value is missing or cannot be, no place can take the job, or the runs had several kinds of
            hardware and no place is named.
        UnknownName: there is no such parameter, category, system or partition.
    """
    tried = read_question(question, model.features, free=False, traced=bool(model.command))
    each = _asked(tried, model, tools)
    cases: list[PlacedConfiguration] = []
    left_out: list[str] = []
    for node in find_candidate_nodes(tools.catalog, on, model.features) if on else [_as_in_the_runs(model)]:
        fitting, refusals = place_configurations(node, each, model) if on else (_placeless(node, each), [])
        cases += fitting
        left_out += [f"{node.name} {one.reason}" for one in refusals]
    if not cases:
        raise InvalidInput(f"nothing can be said: {'; '.join(left_out)}")
    asker = BatchPredictor(model)
    numbers = [asker.add(case.row) for case in cases]
    asker.predict()
    made = CandidateBuilder(model, Constraints(), asker)
    found = [made.candidate(case, number) for case, number in zip(cases, numbers, strict=True)]
    return ModelAnswer(
        model.application,
        tuple(one.parameters for one in found),
        tuple(_priced(one) for one in found),
        _beyond(model, tried),
        tuple(left_out),
    )


def _as_in_the_runs(model: TrainedModel) -> CandidateNode:
    """Return a node that stands for the hardware that all runs had."""
    several = [one.name for one in model.features if one.role is FeatureRole.NODE and one.used]
    if several:
        raise InvalidInput(
            f"the runs had several kinds of hardware ({', '.join(several)}): name where with --on SYSTEM:PARTITION, or "
            "--on local"
        )
    processor = next((one.choices[0] for one in model.features if one.name == "node_cpu" and one.choices), None)
    device = Device(str(processor or "as in the runs"), "", DeviceKind.CPU)
    return CandidateNode(System("", "", "", "production", "none"), Partition("", NodeType("")), device, {})


def _placeless(node: CandidateNode, tried: Sequence[ConfigurationQuery]) -> list[PlacedConfiguration]:
    return [
        PlacedConfiguration(
            node, one.values, {**one.graph, **one.values}, node_request(node, one.values, gpus, 1), gpus, None
        )
        for one in tried
        for gpus in (as_count(one.values.get("gpus", 0)),)
    ]


def _asked(tried: Configurations, model: TrainedModel, tools: Toolbox) -> list[ConfigurationQuery]:
    """Return the configurations, with the white-box figures of their commands where the model has learned from such.

    Raises:
        InvalidInput: a command cannot be traced here.
    """
    wanted = {one.name for one in model.features if one.role is FeatureRole.GRAPH and one.used} - set(tried.values)
    if not wanted:
        return [ConfigurationQuery(values) for values in tried]
    here = str(Path.cwd())
    commands = [
        TraceableCommand(command_words(model, values), here, bool(as_count(values.get("gpus", 0)))) for values in tried
    ]
    found = trace_features(commands, tools.sources[ModelKind.COMMAND], jobs=os.cpu_count() or 1)
    return [ConfigurationQuery(values, graph) for values, graph in zip(tried, found, strict=True)]


def _priced(candidate: PlacementCandidate) -> Estimate:
    """Return the estimate, with the reason where it has no cost, and with what is unseen as its note."""
    estimate = replace(candidate.estimate, notes=candidate.notes)
    if estimate.cost is not None:
        return estimate
    why = "the price of the place is not known" if estimate.target.system else "name a place with --on to price it"
    return replace(estimate, unknown={"cost": why})


def _require_time(model: TrainedModel) -> None:
    if TIME not in model.targets:
        raise InvalidInput(
            f"the model predicts {', '.join(model.targets)} and not {TIME}, the time of a run, without which nothing "
            f"can be recommended: train one with --target {TIME}"
        )


def _beyond(model: TrainedModel, tried: Configurations) -> tuple[str, ...]:
    """Return a sentence for each parameter that lies outside what was run in some configuration."""
    found: dict[str, None] = {}
    for name, values in tried.values.items():
        base = {other: several[0] for other, several in tried.values.items()}
        for value in values:
            said = [one for one in model.beyond({**base, name: value}) if one.startswith(f"{name} ")]
            found.update(dict.fromkeys(said))
    return tuple(f"{sentence}: the range is wider for it" for sentence in found)
