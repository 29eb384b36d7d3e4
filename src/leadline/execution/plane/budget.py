"""What bounds the attempts of a job: their number, node-seconds, money, and the time by which it is wanted."""

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from leadline.core.jobs import ResourceSpec
from leadline.core.plane import Action, Alternative, Decision, Place
from leadline.core.units import MINUTE_S, format_duration
from leadline.execution.plane.needs import MIN_SUCCESS_PROBABILITY, SituationView
from leadline.uncertainty.distributions import Distribution, HalfLogNormals

Evidence = dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next attempt as it is wanted, before it is held against the bounds.

    ``known`` is its own run time, where something is known of that.
    """

    action: Action
    reason: str
    resources: ResourceSpec
    place: Place
    known: Distribution | None = None
    cost_per_s: float | None = None
    delay_s: float = 0.0
    evidence: Evidence = field(default_factory=dict)


def propose_same_place(
    view: SituationView, reason: str, resources: ResourceSpec, evidence: Evidence | None = None, *, delay_s: float = 0.0
) -> Proposal:
    """Propose another attempt at the same place."""
    known, price = view.time(), view.situation.cost_per_s
    return Proposal(Action.RESUBMIT, reason, resources, view.attempt.place, known, price, delay_s, evidence or {})


def propose_other_place(
    view: SituationView, other: Alternative, reason: str, evidence: Evidence | None = None
) -> Proposal:
    """Propose an attempt at another place."""
    known = HalfLogNormals.of(other.elapsed_s) if other.elapsed_s is not None else view.time()
    run_s = other.elapsed_s.point if other.elapsed_s is not None else other.resources.walltime_s
    price = other.cost / run_s if other.cost is not None and run_s else None
    return Proposal(Action.MOVE, reason, other.resources, other.place, known, price, 0.0, evidence or {})


def within_bounds(view: SituationView, proposal: Proposal) -> Decision:
    """Decide as proposed, the limit cut to what is left to spend; or GIVE_UP with the bound that this breaks."""
    if broken := broken_bound(view, proposal):
        return give_up(view, f"{_ended(view)}, and {broken}", proposal.evidence)
    left_s = affordable_s(view, proposal.resources.nodes, proposal.cost_per_s)
    asked_s, resources, reason, evidence = (
        proposal.resources.walltime_s,
        proposal.resources,
        proposal.reason,
        proposal.evidence,
    )
    if left_s < math.inf and (asked_s is None or asked_s > left_s):
        resources = replace(resources, walltime_s=_whole_minutes(left_s))
        reason = f"{reason}; its limit is all that is left to spend, {format_duration(left_s)}"
        evidence = {**evidence, "affordable_s": left_s}
    figures = {**_spent(view), **evidence}
    if resources.walltime_s is not None:
        figures["next_limit_s"] = resources.walltime_s
    if resources.memory_bytes_per_node is not None:
        figures["next_memory_bytes"] = float(resources.memory_bytes_per_node)
    return Decision(proposal.action, reason, resources, proposal.place, proposal.delay_s, figures)


def broken_bound(view: SituationView, proposal: Proposal) -> str:
    """Return the bound that another attempt would break, as the end of a sentence; empty if it breaks none."""
    policy = view.policy
    if attempts_left(view) < 1:
        return f"it was submitted {_times(len(view.job.attempts))}, which is all that its policy allows"
    left_s = affordable_s(view, proposal.resources.nodes, proposal.cost_per_s)
    if left_s < MINUTE_S or not _worth(proposal, left_s):
        what = f"{policy.node_s:g} node-seconds" if policy.node_s is not None else "money"
        if policy.node_s is not None and policy.cost is not None:
            what += " and money"
        return f"what is left of its {what} would last {format_duration(max(left_s, 0.0))}, which is too little"
    wanted_s = seconds_to_deadline(view)
    if wanted_s is not None and (wanted_s <= 0 or _misses(proposal, wanted_s - proposal.delay_s, policy.risk)):
        return f"it could not be done by {policy.deadline_at} any more"
    return ""


def give_up(view: SituationView, reason: str, evidence: Evidence | None = None) -> Decision:
    """Return GIVE_UP with what was spent."""
    return Decision(Action.GIVE_UP, reason, evidence={**_spent(view), **(evidence or {})})


def attempts_left(view: SituationView) -> int:
    """Return how often the job may still be submitted; what was taken back before it began was no try."""
    segments = sum(one.segment for one in view.job.attempts)
    tried = sum(not one.segment and not (one.withdrawn and one.started_at is None) for one in view.job.attempts)
    return 0 if segments >= view.policy.segments else view.policy.attempts - max(tried, 0 if segments else 1)


def affordable_s(view: SituationView, nodes: int, cost_per_s: float | None) -> float:
    """Return how long ``nodes`` may still be used; infinite where nothing bounds it or no price is known."""
    policy, spent_cost = view.policy, view.situation.spent_cost or 0.0
    left = [math.inf]
    if policy.node_s is not None:
        left.append((policy.node_s - view.situation.spent_node_s) / nodes)
    if policy.cost is not None and cost_per_s:
        left.append((policy.cost - spent_cost) / cost_per_s)
    return min(left)


def seconds_to_deadline(view: SituationView) -> float | None:
    """Return the seconds until the result is wanted, negative when that is past; ``None`` without a deadline."""
    deadline_s = moment_s(view.policy.deadline_at)
    return None if deadline_s is None else deadline_s - view.situation.now_s


def moment_s(at: str | None) -> float | None:
    """Return a moment in ISO 8601 as seconds since the epoch; UTC where it names no zone."""
    if at is None:
        return None
    moment = datetime.fromisoformat(at)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _worth(proposal: Proposal, left_s: float) -> bool:
    """Whether an attempt that is cut to what can be paid is likely enough to come through."""
    asked_s = proposal.resources.walltime_s
    if asked_s is not None and asked_s <= left_s:
        return True
    if proposal.known is not None:
        return proposal.known.above(left_s) <= 1 - MIN_SUCCESS_PROBABILITY
    return asked_s is None or left_s >= asked_s / 2


def _misses(proposal: Proposal, wanted_s: float, risk: float) -> bool:
    return wanted_s <= 0 or (proposal.known is not None and proposal.known.above(wanted_s) > 1 - risk)


def _whole_minutes(left_s: float) -> float:
    return float(math.floor(left_s / MINUTE_S) * MINUTE_S)


def _spent(view: SituationView) -> Evidence:
    found: Evidence = {"attempt": float(len(view.job.attempts)), "spent_node_s": view.situation.spent_node_s}
    if view.situation.spent_cost is not None:
        found["spent_cost"] = view.situation.spent_cost
    if view.situation.evidence:
        found["ended"] = "; ".join(view.situation.evidence)
    return found


def _ended(view: SituationView) -> str:
    return f"it ended as {view.attempt.state.value}" if view.attempt.state.final else "it cannot go on as it is"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
