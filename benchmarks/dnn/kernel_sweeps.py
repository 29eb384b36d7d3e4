"""Which of a device's measured kernels a sweep of 90 seconds would have measured, and how long that takes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.splits import Array
from leadline.catalog.probes.timing_cost import timing_cost_s, timing_probability
from leadline.estimators.step_time.fitted_kernels import kernel_groups
from leadline.estimators.step_time.kernel_fitting import KernelSamples
from leadline.estimators.step_time.kernel_gp import kernel_coordinates

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """At most so many kernels of an operator, within so many seconds."""

    most: int
    seconds: float


SWEEP_PLANS = {
    "aten.addmm": SweepPlan(700, 42.0),
    "aten.bmm": SweepPlan(400, 14.0),
    "aten.convolution": SweepPlan(400, 9.0),
    "aten._softmax": SweepPlan(20, 1.0),
    "aten.native_layer_norm": SweepPlan(20, 1.0),
}
OTHER_PLAN = SweepPlan(10, 0.3)
HALF_PLAN = SweepPlan(150, 5.0)
"""What is swept of each operator, of those that work element by element, and of products on matrix units: 75 s in all.
``leadline calibrate`` takes 85 % of its time for kernels, the rest for what is not a kernel."""
DRAWN = 1 << 14


def swept_kernels(rows: KernelSamples, expected_s: Array, plan: SweepPlan | None = None) -> tuple[Whole, float]:
    """Return positions of the kernels that a sweep measures, and the seconds it takes; each operator by its plan.

    The sizes fill their space by a Sobol sequence; the longer a kernel is expected to take, the less often it is drawn.
    """
    found: list[Whole] = []
    took_s = 0.0
    for name in np.unique(rows.kernels.name).tolist():
        own = np.flatnonzero(rows.kernels.name == name)
        chosen, seconds = _drawn(rows.at(own), expected_s[own], plan or SWEEP_PLANS.get(rows.names[name], OTHER_PLAN))
        found.append(own[chosen])
        took_s += seconds
    return np.sort(np.concatenate(found)), took_s


def _drawn(rows: KernelSamples, expected_s: Array, plan: SweepPlan) -> tuple[Whole, float]:
    """Return positions of one operator's kernels, at most half of them, until the time of the plan is spent."""
    from scipy.stats import qmc, rankdata  # noqa: PLC0415 - only benches need it

    where = kernel_coordinates(int(kernel_groups(rows.placed())[0]), rows.kernels)
    where = where[:, np.ptp(where, axis=0) > 1e-9]
    found: list[int] = []
    took_s, most = 0.0, min(plan.most, len(rows) // 2)
    if not where.shape[1] or not most:  # one kernel, or one that was timed again and again
        return np.array(found, np.int64), took_s
    shares = np.column_stack([rankdata(column) / len(column) for column in where.T])
    likely, took = timing_probability(expected_s), timing_cost_s(rows.seconds)
    free = np.ones(len(rows), bool)
    for *point, chance in qmc.Sobol(shares.shape[1] + 1, seed=0).random(DRAWN):
        nearest = int(np.argmin(np.where(free, ((shares - point) ** 2).sum(1), np.inf)))
        if chance > likely[nearest]:
            continue
        free[nearest] = False
        found.append(nearest)
        took_s += float(took[nearest])
        if len(found) >= most or took_s > plan.seconds:
            break
    return np.array(sorted(found), np.int64), took_s
