"""Resource requests: limits that cost least within the accepted risk, including kills and reruns."""

import math
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache

from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate, Interval, Target
from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import RiskWeights
from leadline.core.systems import Partition
from leadline.core.units import GIB, HOUR_S, MINUTE_S
from leadline.uncertainty.distributions import Distribution, HalfLogNormals, log_spreads, quantile

RERUN_GROWTH = 1.5
"""Factor between the request of a killed run and that of its rerun, as people and batch tools choose it."""

_TAILS = tuple(0.5 * 0.85**step for step in range(80))
"""Probabilities of a kill to choose from, from a half to one in a million.

A limit below the median makes no sense: most runs would be killed.
"""
_NEVER = 1e-9  # probability of a kill that no longer counts


class KillLoss(StrEnum):
    """Loss of a kill at a limit."""

    LIMIT = "limit"  # as much as the limit: a run killed for its time has used all of it
    RUN = "run"  # the whole run, whatever the limit, as when memory runs out


class LimitReason(StrEnum):
    """The constraint that set a limit."""

    RISK = "risk"  # the accepted probability of a kill; more kills would have been cheaper
    COST = "cost"  # the least expected cost; more kills were accepted
    CAP = "cap"  # the largest allowed request, which is between the two


class Limit(Frozen):
    """A limit, the risk of exceeding it, the risk of least cost, and the constraint that decided."""

    value: float
    risk: float
    cheapest_risk: float
    decided: LimitReason


def expected_loss(base: Distribution, limit: float, weights: RiskWeights, loss: KillLoss) -> float:
    """Return the expected loss of requesting ``limit``, in the unit of the quantity.

    A run that exceeds its limit is killed and run again with ``RERUN_GROWTH`` times as much, until it succeeds. With
    the limits l₀ < l₁ < …, the loss is Σ kill × lost(lᵢ) × P(X > lᵢ) + Σ waste × E[lᵢ - X; lᵢ₋₁ < X ≤ lᵢ]. Here lost(l)
    is l itself or, for ``KillLoss.RUN``, the median. Two terms are left out because they do not change the best limit:
    the use of the last run, and the price of an hour.
    """
    total, below, mean = 0.0, 0.0, 0.0
    while True:
        above, mean_below = base.above(limit), base.mean_below(limit)
        total += weights.waste * (limit * (1 - above - below) - (mean_below - mean))
        if above < _NEVER:
            return total
        total += weights.kill * above * (limit if loss is KillLoss.LIMIT else base.median)
        limit, below, mean = limit * RERUN_GROWTH, 1 - above, mean_below


def limit_from_interval(
    interval: Interval, risk: float, weights: RiskWeights, loss: KillLoss = KillLoss.LIMIT, *, cap: float | None = None
) -> Limit:
    """Return the limit of least expected loss that the quantity exceeds with probability ``risk`` at most.

    An ``interval`` without width is its own limit. ``cap`` is the largest allowed request, exceeded only where the risk
    cannot be met below it, so that the caller sees the need.

    Raises:
        InvalidInput: ``risk`` is not between 0 and 1, or a weight is negative or not a number.
    """
    below, above = log_spreads(interval)
    if not above:
        return Limit(interval.point, 0.0, 0.0, LimitReason.RISK)
    base = HalfLogNormals(interval.point, below, above)
    # Spreads in steps of 5 %, so that one cached search serves many similar ones.
    stepped = math.exp(round(math.log(max(above, 1e-4)) / 0.05) * 0.05)
    cheapest = _cheapest_risk(stepped, weights.kill, weights.waste, loss)
    if not 0 < 1 - risk < 1:  # also one that rounds to 0
        raise InvalidInput(f"a risk of {risk:g} is not usable: choose one between 0 and 1, such as 0.05")
    chosen = min(risk, cheapest)
    value = base.quantile(1 - chosen)
    if cap is not None and cap < value and base.quantile(1 - risk) <= cap:
        return Limit(cap, base.above(cap), cheapest, LimitReason.CAP)
    return Limit(value, chosen, cheapest, LimitReason.RISK if risk <= cheapest else LimitReason.COST)


@lru_cache(maxsize=4096)
def _cheapest_risk(spread: float, kill: float, waste: float, loss: KillLoss) -> float:
    """Return the kill probability of least cost for a log-normal; it does not depend on the median."""
    return cheapest_risk(HalfLogNormals(1.0, spread, spread), RiskWeights(kill, waste), loss)


def cheapest_risk(base: Distribution, weights: RiskWeights, loss: KillLoss) -> float:
    """Return the kill probability of least cost.

    Raises:
        InvalidInput: a weight is negative or not a number.
    """
    for name, value in (("kill", weights.kill), ("waste", weights.waste)):
        if not 0 <= value < math.inf:
            raise InvalidInput(f"a weight of {value:g} for {name} is not usable: choose 0 or more, such as 1")
    return min(_TAILS, key=lambda tail: expected_loss(base, base.quantile(1 - tail), weights, loss))


SHORTEST_WALLTIME_S = 5 * MINUTE_S  # shortest walltime that is requested

EVEN = RiskWeights()


class ResourceRequest(Frozen):
    """A request, and a sentence about its limits; empty without limits."""

    resources: ResourceSpec
    reason: str = ""


def request_for_estimate(
    estimate: Estimate, partition: Partition, risk: float, weights: RiskWeights = EVEN
) -> ResourceRequest:
    """Return the request of a workload: its share of the nodes, and the limits of least cost."""
    share = node_share(partition, estimate.target)
    memory = estimate.host_memory_bytes and estimate.host_memory_bytes.scaled(max(1, share.gpus_per_node))
    return build_request(estimate.elapsed_s, memory, share, partition, risk, weights)


def node_share(partition: Partition, target: Target) -> ResourceSpec:
    """Return the share of the nodes without limits: whole CPU nodes, or the GPUs with their share of the cores."""
    node = partition.node
    gpus = math.ceil(target.gpus / target.nodes) if node.device else 0
    whole = partition.rules.whole_nodes or not gpus
    cores = node.cores
    if cores and node.gpus and not whole:
        cores = max(1, cores * gpus // node.gpus)
    return ResourceSpec(
        nodes=target.nodes, cores_per_task=cores, gpus_per_node=(node.gpus or gpus) if whole and gpus else gpus
    )


def build_request(
    elapsed_s: Interval | None,
    memory_bytes: Interval | None,
    share: ResourceSpec,
    partition: Partition,
    risk: float,
    weights: RiskWeights = EVEN,
) -> ResourceRequest:
    """Add the walltime and the memory per node of least cost to a share of the nodes.

    Each limit is exceeded with probability ``risk`` at most. A run killed for its walltime has lost all of it, and
    unused walltime counts ``weights.waste``. A run killed for its memory has lost the run. Memory also counts in the
    bill, where the site charges for memory above the share of the cores. Unknown quantities get no limit.

    Raises:
        InvalidInput: the risk or a weight is out of range.
    """
    time = memory = None
    walltime_s, memory_bytes_per_node = share.walltime_s, share.memory_bytes_per_node
    if elapsed_s is not None:
        longest = partition.limits.max_walltime_s
        time = limit_from_interval(elapsed_s, risk, weights, cap=longest)
        walltime_s = _capped(time, round_walltime_s(time.value), longest)
    if memory_bytes is not None:
        most = partition.node.usable_memory_bytes or partition.node.memory_bytes
        if charged := _charged(partition, share, quantile(memory_bytes, 1 - risk)):
            weights = RiskWeights(weights.kill, weights.waste + charged)
        memory = limit_from_interval(memory_bytes, risk, weights, KillLoss.RUN, cap=most)
        memory_bytes_per_node = math.ceil(_capped(memory, math.ceil(memory.value / GIB) * GIB, most))
    request = replace(share, memory_bytes_per_node=memory_bytes_per_node, walltime_s=walltime_s)
    return ResourceRequest(request, _reason(time and _decision(time), memory and _decision(memory), risk))


def round_walltime_s(walltime_s: float) -> float:
    """Round up to 5 minutes below an hour, 15 minutes below 12 hours, an hour above."""
    step = 5 * MINUTE_S if walltime_s <= HOUR_S else 15 * MINUTE_S if walltime_s <= 12 * HOUR_S else HOUR_S
    return max(SHORTEST_WALLTIME_S, math.ceil(walltime_s / step) * step)


def _capped(limit: Limit, rounded: float, cap: float | None) -> float:
    """Undo rounding above the cap; a limit that was above it before stays, and will be refused."""
    return cap if cap is not None and limit.value <= cap < rounded else rounded


def _charged(partition: Partition, share: ResourceSpec, memory_bytes: float) -> float:
    """Return the relative growth of the bill when the memory doubles; 0 where memory is not charged."""
    billing = partition.billing
    if billing is None or not (billing.memory_bytes_per_core or billing.memory_bytes_per_gpu or billing.gib_hour):
        return 0.0
    shares = [replace(share, memory_bytes_per_node=math.ceil(memory_bytes * times)) for times in (1, 2)]
    bills = [compute_charge(billing, request, 1.0, partition.node) or 0.0 for request in shares]
    return round(max(0.0, bills[1] / bills[0] - 1), 1) if all(bills) else 0.0


def _decision(limit: Limit) -> tuple[LimitReason, float, float]:
    return limit.decided, limit.risk, limit.cheapest_risk


@lru_cache(maxsize=4096)
def _reason(
    time: tuple[LimitReason, float, float] | None, memory: tuple[LimitReason, float, float] | None, risk: float
) -> str:
    limits = {name: limit for name, limit in (("walltime", time), ("memory", memory)) if limit and limit[1]}
    deciding = {decided for decided, _, _ in limits.values()}
    if len(deciding) == 1 and LimitReason.CAP not in deciding:
        return _limit_text(" and the ".join(limits), list(limits.values()), risk)
    return "; ".join(_limit_text(name, [limit], risk) for name, limit in limits.items())


def _limit_text(names: str, limits: list[tuple[LimitReason, float, float]], risk: float) -> str:
    accepted, risks = _percent(risk), " and ".join(_percent(kill) for _, kill, _ in limits)
    if limits[0][0] is LimitReason.RISK:
        cheapest = " and ".join(_percent(kill) for _, _, kill in limits)
        return f"the accepted risk of {accepted} decides the {names} (cost alone would take {cheapest})"
    if limits[0][0] is LimitReason.CAP:
        return f"the largest allowed request decides the {names}, which {risks} of runs exceed"
    return f"cost decides the {names} (killing {risks} of runs costs least; {accepted} are accepted)"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
