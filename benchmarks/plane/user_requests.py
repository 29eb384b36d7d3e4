"""Walltime requests of users relative to their needs, as in a published trace.

``python -m benchmarks.plane.user_requests DATA`` computes ``RATIOS`` from the trace in the folder DATA.
"""

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.plane.job_trace import metacentrum_jobs
from benchmarks.plane.loop_jobs import NODE, MeasuredJob, minutes_s
from leadline.core.jobs import ResourceSpec
from leadline.core.queues import AccountedJob
from leadline.core.units import DAY_S, MINUTE_S

RATIOS = (
    0.1111, 0.9998, 1.009, 1.235, 1.469, 1.593, 1.807, 2.149, 2.352, 2.571, 2.793, 3.13, 3.607, 4.316, 5.066, 6.19,
    7.248, 7.887, 9.308, 14.18, 19.49, 21.62, 23.61, 26.77, 36.52, 48.63, 63.05, 104.1, 174.3, 253.9, 382.5, 672.2,
    1377.0, 3150.0, 4488.0, 7200.0, 14400.0, 54980.0, 172800.0, 403200.0, 5357000.0,
)  # fmt: skip
"""Requested ÷ used walltime of 12,528 jobs of MetaCentrum (2013): 41 quantiles at equal distances from 0 to 1.

A job that was killed at its limit has a ratio of at most 1, as its true need is unknown."""
MAX_WALLTIME_S = 7 * DAY_S
"""Maximum walltime of the loop's partition."""


def ratio_quantiles(jobs: Sequence[AccountedJob]) -> tuple[float, ...]:
    """Return the quantiles of requested ÷ used walltime, in the form of ``RATIOS``."""
    ratios = [(job.walltime_s or math.nan) / (job.elapsed_s or math.nan) for job in jobs]
    return tuple(float(f"{value:.4g}") for value in np.quantile(ratios, np.linspace(0, 1, len(RATIOS))))


def user_ratios(count: int, seed: int) -> list[float]:
    """Return ratios of ``count`` jobs, one from each of ``count`` equal parts of the distribution, in random order."""
    chance = random.Random(seed)  # noqa: S311 - a draw of requests, not of secrets
    shares = [(number + chance.random()) / count for number in range(count)]
    chance.shuffle(shares)
    drawn = np.exp(np.interp(shares, np.linspace(0, 1, len(RATIOS)), np.log(RATIOS)))
    return [float(ratio) for ratio in drawn]


def user_request(job: MeasuredJob, ratio: float) -> ResourceSpec:
    """Return the request of a user whose walltime is ``ratio`` times the job's need.

    The trace has no usable memory requests. So the memory is the node's share of as many cores as cover the need, the
    usual default of a site. A ratio of at most 1 stays too short when it is rounded to Slurm's minutes.
    """
    limit_s = ratio * job.elapsed_s
    whole_s = minutes_s(limit_s) if ratio > 1 else max(1, limit_s // MINUTE_S) * MINUTE_S
    core_share = (NODE.memory_bytes or 0) / (NODE.cores or 1)
    return ResourceSpec(
        cores_per_task=1, walltime_s=min(whole_s, MAX_WALLTIME_S),
        memory_bytes_per_node=round(math.ceil(job.memory_bytes / core_share) * core_share),
    )  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(f"{ratio_quantiles(metacentrum_jobs(Path(sys.argv[1]), truncated=False))}\n")
