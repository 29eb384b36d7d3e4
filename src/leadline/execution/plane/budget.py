"""Limits on the attempts of a job: their number, node-seconds, money and the deadline."""

import math
from dataclasses import replace
from datetime import UTC, datetime

from msgspec import field

from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.plane import Action, Alternative, Decision, Place
from leadline.core.units import MINUTE_S, format_duration
from leadline.execution.plane.needs import MIN_SUCCESS_PROBABILITY, SituationView
from leadline.uncertainty.distributions import Distribution, HalfLogNormals

Evidence = dict[str, float | str]


class Proposal(Frozen):
    """The next attempt before it is checked against the budget; ``run_time`` is its predicted run time, if known."""

    action: Action
    reason: str
    resources: ResourceSpec
    place: Place
    run_time: Distribution | None = None
    cost_per_s: float | None = None
    delay_s: float = 0.0
    evidence: Evidence = field(default_factory=dict)


def propose_same_place(
    view: SituationView, reason: str, resources: ResourceSpec, evidence: Evidence | None = None, *, delay_s: float = 0.0
) -> Proposal:
    """Propose another attempt at the same place."""
    run_time, price = view.time.distribution, view.situation.cost_per_s
    return Proposal(Action.RESUBMIT, reason, resources, view.attempt.place, run_time, price, delay_s, evidence or {})


def propose_other_place(
    view: SituationView, place: Alternative, reason: str, evidence: Evidence | None = None
) -> Proposal:
    """Propose an attempt at another place."""
    run_time = HalfLogNormals.of(place.elapsed_s) if place.elapsed_s is not None else view.time.distribution
    run_s = place.elapsed_s.point if place.elapsed_s is not None else place.resources.walltime_s
    price = place.cost / run_s if place.cost is not None and run_s else None
    return Proposal(Action.MOVE, reason, place.resources, place.place, run_time, price, 0.0, evidence or {})


def within_bounds(view: SituationView, proposal: Proposal) -> Decision:
    """Return the proposal with its time limit cut to the budget, or GIVE_UP with the exceeded bound."""
    if broken := broken_bound(view, proposal):
        end = f"it ended as {view.attempt.state.value}" if view.attempt.state.final else "it cannot go on as it is"
        return give_up(view, f"{end}, and {broken}", proposal.evidence)
    left_s = affordable_s(view, proposal.resources.nodes, proposal.cost_per_s)
    resources, reason, details = proposal.resources, proposal.reason, {**_spent_details(view), **proposal.evidence}
    if left_s < math.inf and (resources.walltime_s is None or resources.walltime_s > left_s):
        resources = replace(resources, walltime_s=float(math.floor(left_s / MINUTE_S) * MINUTE_S))
        reason = f"{reason}; its limit is all that is left to spend, {format_duration(left_s)}"
        details["affordable_s"] = left_s
    if resources.walltime_s is not None:
        details["next_limit_s"] = resources.walltime_s
    if resources.memory_bytes_per_node is not None:
        details["next_memory_bytes"] = float(resources.memory_bytes_per_node)
    return Decision(proposal.action, reason, resources, proposal.place, proposal.delay_s, details)


def accepted(view: SituationView, proposal: Proposal) -> Decision | None:
    """Return the proposal within the bounds; None if it would exceed one."""
    return None if broken_bound(view, proposal) else within_bounds(view, proposal)


def broken_bound(view: SituationView, proposal: Proposal) -> str:
    """Return the bound that the proposal would exceed, as the end of a sentence; empty if none."""
    policy = view.policy
    if attempts_left(view) < 1:
        submitted = "once" if len(view.job.attempts) == 1 else f"{len(view.job.attempts)} times"
        return f"it was submitted {submitted}, which is all that its policy allows"
    left_s = affordable_s(view, proposal.resources.nodes, proposal.cost_per_s)
    if left_s < MINUTE_S or not _is_worthwhile(proposal, left_s):
        budget = f"{policy.node_s:g} node-seconds" if policy.node_s is not None else "money"
        if policy.node_s is not None and policy.cost is not None:
            budget += " and money"
        return f"what is left of its {budget} would last {format_duration(max(left_s, 0.0))}, which is too little"
    deadline_s = seconds_to_deadline(view)
    if deadline_s is not None and _misses(proposal, deadline_s - proposal.delay_s, policy.risk):
        return f"it could not end before its deadline {policy.deadline_at}"
    return ""


def give_up(view: SituationView, reason: str, evidence: Evidence | None = None) -> Decision:
    """Return GIVE_UP with the resources spent."""
    return Decision(Action.GIVE_UP, reason, evidence={**_spent_details(view), **(evidence or {})})


def attempts_left(view: SituationView) -> int:
    """Return how often the job may still be submitted. Attempts withdrawn before their start do not count."""
    segments = sum(attempt.segment for attempt in view.job.attempts)
    begun = [attempt for attempt in view.job.attempts if not (attempt.withdrawn and attempt.started_at is None)]
    tried = sum(not attempt.segment for attempt in begun)
    # Segments that ended with a checkpoint made progress, so they do not count as failed tries.
    return 0 if segments >= view.policy.segments else view.policy.attempts - max(tried, 0 if segments else 1)


def affordable_s(view: SituationView, nodes: int, cost_per_s: float | None) -> float:
    """Return how long ``nodes`` may still be used; infinite without a bound or a price."""
    policy, spent_cost = view.policy, view.situation.spent_cost or 0.0
    bounds_s = [math.inf]
    if policy.node_s is not None:
        bounds_s.append((policy.node_s - view.situation.spent_node_s) / nodes)
    if policy.cost is not None and cost_per_s:
        bounds_s.append((policy.cost - spent_cost) / cost_per_s)
    return min(bounds_s)


def seconds_to_deadline(view: SituationView) -> float | None:
    """Return the seconds until the deadline, negative if it has passed; None without a deadline."""
    deadline_s = moment_s(view.policy.deadline_at)
    return None if deadline_s is None else deadline_s - view.situation.now_s


def moment_s(at: str | None) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch, in UTC if it names no zone."""
    if at is None:
        return None
    moment = datetime.fromisoformat(at)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _is_worthwhile(proposal: Proposal, left_s: float) -> bool:
    """True if an attempt with the affordable limit is likely enough to succeed."""
    requested_s = proposal.resources.walltime_s
    if requested_s is not None and requested_s <= left_s:
        return True
    if proposal.run_time is not None:
        return proposal.run_time.above(left_s) <= 1 - MIN_SUCCESS_PROBABILITY
    # Without a prediction, half of the requested limit counts as worth trying.
    return requested_s is None or left_s >= requested_s / 2


def _misses(proposal: Proposal, deadline_s: float, risk: float) -> bool:
    return deadline_s <= 0 or (proposal.run_time is not None and proposal.run_time.above(deadline_s) > 1 - risk)


def _spent_details(view: SituationView) -> Evidence:
    details: Evidence = {"attempt": float(len(view.job.attempts)), "spent_node_s": view.situation.spent_node_s}
    if view.situation.spent_cost is not None:
        details["spent_cost"] = view.situation.spent_cost
    if view.situation.evidence:
        details["ended"] = "; ".join(view.situation.evidence)
    return details
