"""What to ask a scheduler for: the limits that cost least within the accepted risk, rounded as sites like them."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from leadline.catalog.billing import price
from leadline.core.estimate import Estimate, Interval, Target
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import Weights
from leadline.core.systems import Billing, Partition
from leadline.core.units import GIB, HOUR_S, MINUTE_S
from leadline.recommend.limits import Decided, Limit, Loss, limit_for
from leadline.uncertainty.distributions import quantile

SHORTEST_WALLTIME_S = 5 * MINUTE_S
"""No scheduler is asked for less."""

EVEN = Weights()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and the sentence that says what decided its limits (empty where there are none)."""

    resources: ResourceSpec
    reason: str = ""


def request_for(estimate: Estimate, partition: Partition, risk: float) -> ResourceSpec:
    """Return the request of ``ask_for`` where an hour counts the same in every way."""
    return ask_for(estimate, partition, risk).resources


def ask_for(estimate: Estimate, partition: Partition, risk: float, weights: Weights = EVEN) -> Ask:
    """Return the request of a workload: the share of the nodes that goes with its GPUs, and the limits of ``ask``."""
    share = share_of(partition, estimate.target)
    memory = estimate.host_memory_bytes and estimate.host_memory_bytes.scaled(max(1, share.gpus_per_node))
    return ask(estimate.elapsed_s, memory, share, partition, risk, weights)


def share_of(partition: Partition, target: Target) -> ResourceSpec:
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


def ask(
    elapsed_s: Interval | None,
    memory_bytes: Interval | None,
    share: ResourceSpec,
    partition: Partition,
    risk: float,
    weights: Weights = EVEN,
) -> Ask:
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
        time = limit_for(elapsed_s, risk, weights, cap=longest)
        walltime_s = _capped(time, round_walltime_s(time.value), longest)
    if memory_bytes is not None:
        most = partition.node.usable_memory_bytes or partition.node.memory_bytes
        if charged := _charged(partition, share, quantile(memory_bytes, 1 - risk)):
            weights = Weights(weights.kill, weights.waste + charged)
        memory = limit_for(memory_bytes, risk, weights, Loss.RUN, cap=most)
        memory_bytes_per_node = math.ceil(_capped(memory, math.ceil(memory.value / GIB) * GIB, most))
    asked = ResourceSpec(
        share.nodes, share.tasks_per_node, share.cores_per_task, share.gpus_per_node, memory_bytes_per_node, walltime_s
    )
    return Ask(asked, _reason(time and _said(time), memory and _said(memory), risk))


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
    if billing is None or not (billing.memory_bytes_per_core or billing.memory_bytes_per_gpu):
        return 0.0
    bills = [_hourly(billing, share, partition, math.ceil(memory_bytes * times)) for times in (1, 2)]
    return round(max(0.0, bills[1] / bills[0] - 1), 1) if all(bills) else 0.0


def _hourly(billing: Billing, share: ResourceSpec, partition: Partition, memory_bytes: int) -> float:
    return price(billing, replace(share, memory_bytes_per_node=memory_bytes), 1.0, partition.node) or 0.0


def _said(limit: Limit) -> tuple[Decided, float, float]:
    return limit.decided, limit.risk, limit.cheapest_risk


@lru_cache(maxsize=4096)
def _reason(time: tuple[Decided, float, float] | None, memory: tuple[Decided, float, float] | None, risk: float) -> str:
    """Return the sentence that says which of risk and cost decided each limit."""
    said = {name: one for name, one in (("walltime", time), ("memory", memory)) if one and one[1]}
    deciding = {one[0] for one in said.values()}
    if len(deciding) == 1 and Decided.CAP not in deciding:
        return _part(" and the ".join(said), list(said.values()), risk)
    return "; ".join(_part(name, [one], risk) for name, one in said.items())


def _part(names: str, said: list[tuple[Decided, float, float]], risk: float) -> str:
    accepted, each = _percent(risk), " and ".join(_percent(taken) for _, taken, _ in said)
    if said[0][0] is Decided.RISK:
        cheapest = " and ".join(_percent(one) for _, _, one in said)
        return f"the accepted risk of {accepted} decides the {names} (cost alone would take {cheapest})"
    if said[0][0] is Decided.CAP:
        return f"the most that may be asked for decides the {names}, which {each} of runs exceed"
    return f"cost decides the {names} (killing {each} of runs costs least; {accepted} are accepted)"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
