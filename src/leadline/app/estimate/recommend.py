"""The verb ``recommend``: what to request, and where, under a deadline, a budget and a risk."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from leadline.app.estimate.estimate import Toolbox, Tracer, estimate_targets
from leadline.app.estimate.queue_waits import add_waits, read_queues
from leadline.app.machines.targets import ResolvedTarget, resolve_targets
from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import Constraints, Recommendation, RiskWeights
from leadline.core.systems import Partition
from leadline.core.units import HOUR_S, duration_s
from leadline.core.workload import Workload
from leadline.recommendation.feasibility import PlacementCandidate, check_place
from leadline.recommendation.ranking import rank_candidates
from leadline.recommendation.requests import request_for_estimate


def recommend(
    workload: Workload, tools: Toolbox, constraints: Constraints, *, on: Sequence[str] = (), waits: Sequence[str] = ()
) -> Recommendation:
    """Return the configurations that satisfy ``constraints``, best first, among the systems named by ``on`` (or all).

    ``waits`` names job accounting, ``SYSTEM`` or ``SYSTEM=FILE`` each; the queue wait there counts too.

    Raises:
        InvalidInput: a system is unknown, a value is out of range, or the workload cannot be used.
        Untraceable: the model or script could not be traced.
    """
    queues = read_queues(waits, tools.catalog)
    places = resolve_targets(tools.catalog, on, workload)
    _check_targets(places.targets, constraints, on)
    open_places: list[ResolvedTarget] = []
    rejections = list(places.unusable)
    for place in places.targets:
        if place.system is None or place.partition is None:
            continue
        refusal = check_place(place.system, place.partition, place.target.gpus, place.target.nodes)
        if refusal is None:
            open_places.append(place)
        else:
            rejections.append(refusal.at(place.system, place.partition, workload.gpus))
    tracer = Tracer(tools, workload)
    candidates = _candidates(open_places, tracer, constraints)
    if (started := tracer.on_script_gpus) is not None:
        return recommend(started, tools, constraints, on=on, waits=waits)
    timed, notes = add_waits(candidates, queues)
    ranked = rank_candidates(timed, constraints, rejections)
    return replace(ranked, notes=(*ranked.notes, *notes))


def build_constraints(
    deadline: str | timedelta | None, budget: float | None, currency: str, risk: float, weights: RiskWeights
) -> Constraints:
    """Return the constraints of a request; ``InvalidInput`` if a value is out of range, or a time has no unit."""
    if not 0 < 1 - risk < 1:  # also one that rounds to 0
        raise InvalidInput(f"--risk is {risk:g}, but it must be between 0 and 1, such as 0.05")
    if budget is not None and not budget >= 0:
        raise InvalidInput(f"--budget is {budget:g}, but it must be 0 or more")
    deadline_s = None if deadline is None else duration_s(deadline)
    if deadline_s is not None and deadline_s <= 0:
        raise InvalidInput(f"--deadline is {deadline}, but it must be above 0")
    for name, value in (("--kill", weights.kill), ("--waste", weights.waste)):
        if not 0 <= value < float("inf"):
            raise InvalidInput(f"{name} is {value:g}, but it must be 0 or more")
    return Constraints(deadline_s, budget, currency if budget is not None else None, risk, weights)


def _check_targets(places: Sequence[ResolvedTarget], constraints: Constraints, on: Sequence[str]) -> None:
    """Refuse bare devices, and a currency that no target charges."""
    if places and all(place.system is None for place in places):
        raise InvalidInput(
            f"{' and '.join(on)} is not a system: name one with --on SYSTEM, or leave --on out; "
            "devices work with leadline estimate --on"
        )
    charged = [place.partition.billing.currency for place in places if place.partition and place.partition.billing]
    if constraints.currency is not None and charged and constraints.currency not in charged:
        raise UnknownName(
            "currency", constraints.currency, charged, fix=f"known currencies: {', '.join(sorted(set(charged)))}"
        )


def _candidates(places: Sequence[ResolvedTarget], tracer: Tracer, constraints: Constraints) -> list[PlacementCandidate]:
    """Estimate every target, and compute the cost of its request."""
    candidates = []
    for place, estimate in zip(places, estimate_targets(places, tracer), strict=True):
        if place.system is None or place.partition is None:
            continue
        request = request_for_estimate(estimate, place.partition, constraints.risk, constraints.weights)
        billing = place.partition.billing
        hourly = compute_charge(billing, request.resources, 1.0, place.partition.node) if billing else None
        candidates.append(
            PlacementCandidate(
                place.system, place.partition, place.device, estimate, request.resources, hourly, request.reason
            )
        )
    return candidates


def whole_node_request(place: Partition, nodes: int, elapsed_s: float) -> tuple[ResourceSpec, float | None]:
    """Return the request that takes whole nodes, as one without limits does, and its cost; None if that is unknown."""
    whole = ResourceSpec(nodes=nodes, cores_per_task=place.node.cores, gpus_per_node=place.node.gpus,
                         memory_bytes_per_node=place.node.memory_bytes)  # fmt: skip
    return whole, compute_charge(place.billing, whole, elapsed_s / HOUR_S, place.node) if place.billing else None
