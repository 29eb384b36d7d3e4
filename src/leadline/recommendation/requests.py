"""The limit to ask for on a quantity that is known by a distribution: the cheapest, kills and reruns included."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate, Interval, Target
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import RiskWeights
from leadline.core.systems import Billing, Partition
from leadline.core.units import GIB, HOUR_S, MINUTE_S
from leadline.uncertainty.distributions import Distribution, HalfLogNormals, log_spreads, quantile

RERUN_GROWTH = 1.5
"""How much more a rerun asks for than the run that was killed, as people and batch tools do."""

_TAILS = tuple(0.5 * 0.85**step for step in range(80))
"""Probabilities of a kill among which the cheapest is looked for: from a half to one in a million.

A limit below the median is never asked for: most runs would be killed.
"""
_NEVER = 1e-9
"""A probability of a kill that no longer counts."""


class KillLoss(StrEnum):
    """What a kill at a limit loses."""

    LIMIT = "limit"
    """As much as the limit: a run killed for its time has used all of it."""
    RUN = "run"
    """The whole run, whatever the limit: one killed for its memory."""


class LimitReason(StrEnum):
    """What set a limit."""

    RISK = "risk"
    """The accepted probability of a kill; more kills would have been cheaper."""
    COST = "cost"
    """The least expected cost; more kills were accepted."""
    CAP = "cap"
    """The most that may be asked for; it lies between the two."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, the probability ``risk`` of exceeding it, that which would cost least, and which of them decided."""

    value: float
    risk: float
    cheapest_risk: float
    decided: LimitReason


def expected_loss(known: Distribution, limit: float, weights: RiskWeights, loss: KillLoss) -> float:
    """Return what asking for ``limit`` is expected to lose, in the unit of the quantity.

    A run that needs more than its limit is killed and run again with ``RERUN_GROWTH`` times as much, until it is through.
    With the limits l₀ < l₁ < …, the loss is Σ kill × lost(lᵢ) × P(X > lᵢ) + Σ waste × E[lᵢ - X; lᵢ₋₁ < X ≤ lᵢ], where
    lost(l) is l itself or, for ``KillLoss.RUN``, the median. What the last run uses is the same for every limit and left
    out, and so is the price of an hour, which multiplies the whole.
    """
    total, below, mean = 0.0, 0.0, 0.0
    while True:
        above, mean_here = known.above(limit), known.mean_below(limit)
        total += weights.waste * (limit * (1 - above - below) - (mean_here - mean))
        if above < _NEVER:
            return total
        total += weights.kill * above * (limit if loss is KillLoss.LIMIT else known.median)
        limit, below, mean = limit * RERUN_GROWTH, 1 - above, mean_here


def limit_from_interval(
    interval: Interval, risk: float, weights: RiskWeights, loss: KillLoss = KillLoss.LIMIT, *, cap: float | None = None
) -> Limit:
    """Return the limit of least expected loss that the quantity exceeds with a probability of at most ``risk``.

    ``cap`` is the most that may be asked for; it is overstepped only where the risk cannot be held below it, so that
    the caller sees what would be needed. An interval without width gives its point.

    Raises:
        InvalidInput: ``risk`` is not between 0 and 1, or a weight is negative or not a number.
    """
    below, above = log_spreads(interval)
    if not above:
        return Limit(interval.point, 0.0, 0.0, LimitReason.RISK)
    known = HalfLogNormals(interval.point, below, above)
    return _within(known, risk, _cheapest_risk(_stepped(above), weights.kill, weights.waste, loss), cap)


def limit_from_distribution(
    known: Distribution, risk: float, weights: RiskWeights, loss: KillLoss, *, cap: float | None = None
) -> Limit:
    """Return what ``limit_from_interval`` does, of a quantity whose distribution is known.

    Raises:
        InvalidInput: as ``limit_from_interval``.
    """
    _check_weights(weights)
    return _within(known, risk, _cheapest(known, weights, loss), cap)


def _check_weights(weights: RiskWeights) -> None:
    for name, value in (("kill", weights.kill), ("waste", weights.waste)):
        if not 0 <= value < math.inf:
            raise InvalidInput(f"a weight of {value:g} for {name} is not usable: choose 0 or more, such as 1")


def _within(known: Distribution, risk: float, cheapest: float, cap: float | None) -> Limit:
    if not 0 < risk < 1:
        raise InvalidInput(f"a risk of {risk:g} is not usable: choose one between 0 and 1, such as 0.05")
    chosen = min(risk, cheapest)
    value = known.quantile(1 - chosen)
    if cap is not None and cap < value and known.quantile(1 - risk) <= cap:
        return Limit(cap, known.above(cap), cheapest, LimitReason.CAP)
    return Limit(value, chosen, cheapest, LimitReason.RISK if risk <= cheapest else LimitReason.COST)


def _stepped(spread: float) -> float:
    """Round a spread to steps of 5 %, so that the search is made once for many alike."""
    return math.exp(round(math.log(max(spread, 1e-4)) / 0.05) * 0.05)


@lru_cache(maxsize=4096)
def _cheapest_risk(spread: float, kill: float, waste: float, loss: KillLoss) -> float:
    """Return the probability of a kill at which a log-normal with that spread is cheapest, whatever its median."""
    _check_weights(RiskWeights(kill, waste))
    return _cheapest(HalfLogNormals(1.0, spread, spread), RiskWeights(kill, waste), loss)


def _cheapest(known: Distribution, weights: RiskWeights, loss: KillLoss) -> float:
    return min(_TAILS, key=lambda tail: expected_loss(known, known.quantile(1 - tail), weights, loss))


SHORTEST_WALLTIME_S = 5 * MINUTE_S
"""No scheduler is asked for less."""

EVEN = RiskWeights()


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request, and the sentence that says what decided its limits (empty where there are none)."""

    resources: ResourceSpec
    reason: str = ""


def resources_for_estimate(estimate: Estimate, partition: Partition, risk: float) -> ResourceSpec:
    """Return the request of ``request_for_estimate`` where an hour counts the same in every way."""
    return request_for_estimate(estimate, partition, risk).resources


def request_for_estimate(
    estimate: Estimate, partition: Partition, risk: float, weights: RiskWeights = EVEN
) -> ResourceRequest:
    """Return the request of a workload: the share of the nodes that goes with its GPUs, and the limits of ``build_request``."""
    share = node_share(partition, estimate.target)
    memory = estimate.host_memory_bytes and estimate.host_memory_bytes.scaled(max(1, share.gpus_per_node))
    return build_request(estimate.elapsed_s, memory, share, partition, risk, weights)


def node_share(partition: Partition, target: Target) -> ResourceSpec:
    """Return what a job asks for beside its limits: whole nodes on CPUs, and the cores that go with its GPUs else."""
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
    """Return ``share`` with the walltime and the memory a node that cost least, kills and reruns included.

    Each is exceeded with a probability of at most ``risk``. A walltime is the whole loss of a run killed for it, and
    what is not used of it counts ``weights.waste``. Memory costs the run that is killed for it, and the bill too where
    the site counts memory beyond the share of the cores. What is not known is left to the site.

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
    asked = ResourceSpec(
        share.nodes, share.tasks_per_node, share.cores_per_task, share.gpus_per_node, memory_bytes_per_node, walltime_s
    )
    return ResourceRequest(asked, _reason(time and _said(time), memory and _said(memory), risk))


def round_walltime_s(walltime_s: float) -> float:
    """Round up to 5 minutes below an hour, 15 minutes below 12 hours, an hour above."""
    step = 5 * MINUTE_S if walltime_s <= HOUR_S else 15 * MINUTE_S if walltime_s <= 12 * HOUR_S else HOUR_S
    return max(SHORTEST_WALLTIME_S, math.ceil(walltime_s / step) * step)


def _capped(limit: Limit, rounded: float, cap: float | None) -> float:
    """Take back what rounding up put above the cap; a limit that is above it by itself stays, and will be refused."""
    return cap if cap is not None and limit.value <= cap < rounded else rounded


def _charged(partition: Partition, share: ResourceSpec, memory_bytes: float) -> float:
    """Return the growth of the bill where the memory grows, in shares of each: 0 where memory is not counted."""
    billing = partition.billing
    if billing is None or not (billing.memory_bytes_per_core or billing.memory_bytes_per_gpu or billing.gib_hour):
        return 0.0
    bills = [_hourly(billing, share, partition, math.ceil(memory_bytes * times)) for times in (1, 2)]
    return round(max(0.0, bills[1] / bills[0] - 1), 1) if all(bills) else 0.0


def _hourly(billing: Billing, share: ResourceSpec, partition: Partition, memory_bytes: int) -> float:
    return compute_charge(billing, replace(share, memory_bytes_per_node=memory_bytes), 1.0, partition.node) or 0.0


def _said(limit: Limit) -> tuple[LimitReason, float, float]:
    return limit.decided, limit.risk, limit.cheapest_risk


@lru_cache(maxsize=4096)
def _reason(
    time: tuple[LimitReason, float, float] | None, memory: tuple[LimitReason, float, float] | None, risk: float
) -> str:
    """Return the sentence that says which of risk and cost decided each limit."""
    said = {name: one for name, one in (("walltime", time), ("memory", memory)) if one and one[1]}
    deciding = {one[0] for one in said.values()}
    if len(deciding) == 1 and LimitReason.CAP not in deciding:
        return _part(" and the ".join(said), list(said.values()), risk)
    return "; ".join(_part(name, [one], risk) for name, one in said.items())


def _part(names: str, said: list[tuple[LimitReason, float, float]], risk: float) -> str:
    accepted, each = _percent(risk), " and ".join(_percent(taken) for _, taken, _ in said)
    if said[0][0] is LimitReason.RISK:
        cheapest = " and ".join(_percent(one) for _, _, one in said)
        return f"the accepted risk of {accepted} decides the {names} (cost alone would take {cheapest})"
    if said[0][0] is LimitReason.CAP:
        return f"the most that may be asked for decides the {names}, which {each} of runs exceed"
    return f"cost decides the {names} (killing {each} of runs costs least; {accepted} are accepted)"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
