"""What to ask a scheduler for: quantiles of the estimate at the chosen risk, rounded as people and sites like them."""

import math
from statistics import NormalDist

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.systems import Partition
from leadline.core.units import GIB, HOUR_S, MINUTE_S

SHORTEST_WALLTIME_S = 5 * MINUTE_S
"""No scheduler is asked for less."""


def quantile(interval: Interval, probability: float) -> float:
    """Return the value that the quantity stays below with ``probability``.

    The interval is read as two halves of a log-normal distribution whose median is the point, so that the quantile at
    its own level's upper end is ``high``. An interval without width gives its point.

    Raises:
        InvalidInput: ``probability`` is not between 0 and 1.
    """
    if not 0 < probability < 1:
        raise InvalidInput(f"a risk of {1 - probability:g} is not usable: choose one between 0 and 1, such as 0.05")
    end = interval.high if probability >= 0.5 else interval.low
    if interval.point <= 0 or end <= 0 or end == interval.point:
        return interval.point
    scale = math.log(end / interval.point) / NormalDist().inv_cdf(
        0.5 + math.copysign(interval.level / 2, probability - 0.5)
    )
    return interval.point * math.exp(scale * NormalDist().inv_cdf(probability))


def request_for(estimate: Estimate, partition: Partition, risk: float) -> ResourceSpec:
    """Return the request that the job exceeds with probability ``risk``: walltime, memory, and its share of the cores.

    A CPU job takes whole nodes; a GPU job takes the cores that go with its GPUs. Unknown time or memory is left to
    the site.
    """
    node, target = partition.node, estimate.target
    gpus = math.ceil(target.gpus / target.nodes) if node.device else 0
    whole = partition.rules.whole_nodes or not gpus
    cores = node.cores
    if cores and node.gpus and not whole:
        cores = max(1, cores * gpus // node.gpus)
    walltime = None if estimate.elapsed_s is None else round_walltime_s(quantile(estimate.elapsed_s, 1 - risk))
    memory = None
    if estimate.host_memory_bytes is not None:
        memory = math.ceil(quantile(estimate.host_memory_bytes, 1 - risk) * max(1, gpus) / GIB) * GIB
    return ResourceSpec(
        nodes=target.nodes,
        cores_per_task=cores,
        gpus_per_node=(node.gpus or gpus) if whole and gpus else gpus,
        memory_bytes_per_node=memory,
        walltime_s=walltime,
    )


def round_walltime_s(walltime_s: float) -> float:
    """Round up to 5 minutes below an hour, 15 minutes below 12 hours, an hour above."""
    step = 5 * MINUTE_S if walltime_s <= HOUR_S else 15 * MINUTE_S if walltime_s <= 12 * HOUR_S else HOUR_S
    return max(SHORTEST_WALLTIME_S, math.ceil(walltime_s / step) * step)
