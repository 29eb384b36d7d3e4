"""Rank candidates: by cost under a deadline, by time under a budget, otherwise the Pareto front first."""

import math
from collections.abc import Callable, Sequence

from leadline.core.recommendation import Constraints, Option, Recommendation, Rejection
from leadline.core.units import HOUR_S
from leadline.recommendation.feasibility import PlacementCandidate, Refusal, check_estimate
from leadline.uncertainty.distributions import quantile

NAMED = 4  # currencies that a note names at most


def rank_candidates(
    candidates: Sequence[PlacementCandidate], constraints: Constraints, rejections: Sequence[Rejection] = ()
) -> Recommendation:
    """Return the options best first, and every rejected candidate, each with its reason.

    Options on measured hardware come first. Costs are compared within a currency only. Under a deadline, the cheapest
    of each currency come first, then the second cheapest, each by time; otherwise all currencies are ordered by time,
    which a note says. Times include the wait only where the wait of every fitting candidate is known, because an
    unknown wait is not zero. ``rejections`` are candidates that were refused before an estimate was made.
    """
    checked = [(candidate, check_estimate(candidate, constraints)) for candidate in candidates]
    kept = [candidate for candidate, refusals in checked if not refusals]
    refused = [(candidate, refusals) for candidate, refusals in checked if refusals]
    time = _until_result if all(candidate.wait is not None for candidate in kept) else _time
    measured = [candidate for candidate in kept if not candidate.unseen]
    front = {id(candidate) for candidate in pareto_front(measured, time)}
    front |= {id(candidate) for candidate in pareto_front(kept, time) if candidate.unseen}
    places = _cost_places(kept)
    has_budget = constraints.budget is not None

    def rank(candidate: PlacementCandidate) -> tuple[object, ...]:
        order: tuple[float, float] = (id(candidate) not in front, time(candidate))
        if has_budget:
            order = (time(candidate), places[id(candidate)])
        elif constraints.deadline_s is not None:
            order = (places[id(candidate)], time(candidate))
        return candidate.unseen, candidate.hourly is None, *order, candidate.name

    return Recommendation(
        constraints=constraints,
        options=tuple(
            _option(candidate, number if has_budget else places[id(candidate)], constraints, id(candidate) in front)
            for number, candidate in enumerate(sorted(kept, key=rank))
        ),
        rejections=(
            *rejections,
            *(first.at(each.system, each.partition, each.estimate.target.gpus) for each, (first, *_) in refused),
        ),
        smallest_change=None if kept else _smallest_change(refused),
        notes=_currency_notes(kept, constraints),
    )


def pareto_front(
    candidates: Sequence[PlacementCandidate], time: Callable[[PlacementCandidate], float] | None = None
) -> list[PlacementCandidate]:
    """Return the candidates that no other one of the same currency beats in both time and cost.

    ``time`` returns the time to compare, by default that of the run.
    """
    time = time or _time
    front: list[PlacementCandidate] = []
    least: dict[str | None, float] = {}
    for candidate in sorted(candidates, key=lambda candidate: (time(candidate), _cost(candidate))):
        currency, cost = candidate.currency, _cost(candidate)
        if currency is not None and cost < least.get(currency, float("inf")):
            least[currency] = cost
            front.append(candidate)
    return front


def _cost_places(candidates: Sequence[PlacementCandidate]) -> dict[int, int]:
    """Return each candidate's place by cost within its currency, 0 for the cheapest, by ``id``.

    Candidates without a price, and those on unseen hardware, have places of their own. Equal costs share a place.
    """
    costs: dict[tuple[bool, str | None], set[float]] = {}
    for candidate in candidates:
        costs.setdefault((candidate.unseen, candidate.currency), set()).add(_cost(candidate))
    places = {group: {cost: place for place, cost in enumerate(sorted(values))} for group, values in costs.items()}
    return {id(candidate): places[candidate.unseen, candidate.currency][_cost(candidate)] for candidate in candidates}


def _currency_notes(candidates: Sequence[PlacementCandidate], constraints: Constraints) -> tuple[str, ...]:
    """Return a note about the order of options whose costs cannot be compared."""
    currencies = sorted({candidate.currency for candidate in candidates if candidate.currency and candidate.hourly})
    if len(currencies) < 2:
        return ()
    by_cost = constraints.deadline_s is not None and constraints.budget is None
    order = "the cheapest of each come first, ordered by time" if by_cost else "options are ordered by time"
    named = ", ".join(currencies[:NAMED]) + (f" and {len(currencies) - NAMED} more" if len(currencies) > NAMED else "")
    return (f"costs in {named} cannot be compared: {order}",)


def _until_result(candidate: PlacementCandidate) -> float:
    result = candidate.result()
    return _time(candidate) if result is None else result.quantile(0.5)


def _time(candidate: PlacementCandidate) -> float:
    elapsed = candidate.estimate.elapsed_s
    return elapsed.point if elapsed else float("inf")


def _cost(candidate: PlacementCandidate) -> float:
    return float("inf") if candidate.hourly is None else _time(candidate) / HOUR_S * candidate.hourly


def _option(candidate: PlacementCandidate, place: int, constraints: Constraints, on_front: bool) -> Option:
    memory, result, elapsed_s = candidate.estimate.gpu_memory_bytes, candidate.result(), candidate.estimate.elapsed_s
    return Option(
        system=candidate.system.name,
        partition=candidate.partition.name,
        node=candidate.partition.node.name,
        resources=candidate.request,
        estimate=candidate.priced_estimate(),
        reason=_reason(candidate, place, constraints, on_front),
        on_front=on_front,
        site=candidate.system.site,
        device=candidate.device.name,
        gpu_memory_bytes=None if memory is None else quantile(memory, 1 - constraints.risk),
        notes=candidate.notes,
        request_reason=candidate.request_reason,
        parameters=candidate.parameters,
        command=candidate.command,
        wait_s=None if candidate.wait is None else candidate.wait.wait_s,
        result_s=None if result is None or elapsed_s is None else result.interval(elapsed_s.level),
    )


def _reason(candidate: PlacementCandidate, place: int, constraints: Constraints, on_front: bool) -> str:
    currency = candidate.currency
    if candidate.hourly is None:
        return "its price is not known, so it could not be compared"
    if constraints.budget is not None:
        return "the fastest within the budget" if place == 0 else "within the budget, but slower"
    if constraints.deadline_s is not None:
        return f"the cheapest in {currency} within the deadline" if place == 0 else "within the deadline"
    return f"no other is both faster and cheaper in {currency}" if on_front else "another is both faster and cheaper"


def _smallest_change(refused: Sequence[tuple[PlacementCandidate, list[Refusal]]]) -> str | None:
    """Return the change that would make the nearest candidate fit: the one with the smallest shortfall."""
    changes: list[tuple[float, str, str]] = []
    for candidate, refusals in refused:
        if all(refusal.change is not None and refusal.shortfall is not None for refusal in refusals):
            shortfall = math.prod(refusal.shortfall or 1.0 for refusal in refusals)
            change = " and ".join(refusal.change or "" for refusal in refusals)
            changes.append((shortfall, candidate.name, change))
    if not changes:
        return None
    _, name, change = min(changes)
    return f"{change} would make {name} fit"
