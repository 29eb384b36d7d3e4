"""The measured kernels of a device that a sweep of 90 seconds would have timed, and its duration."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.splits import Array
from leadline.catalog.probes.timing_cost import timing_cost_s, timing_probability
from leadline.estimators.step_time.fitted_kernels import kernel_groups
from leadline.estimators.step_time.kernel_table import kernel_coordinates
from leadline.estimators.step_time.swept_kernels import KernelSamples

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Limits of an operator's sweep: number of kernels, and seconds."""

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
"""Plans by operator, for element-wise operators and for products on matrix units: 75 s in total. ``leadline calibrate``
takes 85 % of its time for kernels."""
DRAWN = 1 << 14


def swept_kernels(rows: KernelSamples, expected_s: Array, plan: SweepPlan | None = None) -> tuple[Whole, float]:
    """Return the positions of the kernels that a sweep times, and its seconds; each operator has its plan.

    The sizes follow a Sobol sequence; kernels with a longer expected time are drawn less often.
    """
    positions: list[Whole] = []
    took_s = 0.0
    for name in np.unique(rows.kernels.name).tolist():
        of_operator = np.flatnonzero(rows.kernels.name == name)
        chosen, seconds = _drawn(
            rows.at(of_operator), expected_s[of_operator], plan or SWEEP_PLANS.get(rows.names[name], OTHER_PLAN)
        )
        positions.append(of_operator[chosen])
        took_s += seconds
    return np.sort(np.concatenate(positions)), took_s


def _drawn(rows: KernelSamples, expected_s: Array, plan: SweepPlan) -> tuple[Whole, float]:
    """Return positions of one operator's kernels, at most half of them, within the time of the plan."""
    from scipy.stats import qmc, rankdata  # noqa: PLC0415 - only benches need it

    where = kernel_coordinates(int(kernel_groups(rows.placed())[0]), rows.kernels)
    where = where[:, np.ptp(where, axis=0) > 1e-9]
    positions: list[int] = []
    took_s, most = 0.0, min(plan.most, len(rows) // 2)
    if not where.shape[1] or not most:  # one kernel, or one that was timed again and again
        return np.array(positions, np.int64), took_s
    shares = np.column_stack([rankdata(column) / len(column) for column in where.T])
    likely, took = timing_probability(expected_s), timing_cost_s(rows.seconds)
    free = np.ones(len(rows), bool)
    for *point, chance in qmc.Sobol(shares.shape[1] + 1, seed=0).random(DRAWN):
        nearest = int(np.argmin(np.where(free, ((shares - point) ** 2).sum(1), np.inf)))
        if chance > likely[nearest]:
            continue
        free[nearest] = False
        positions.append(nearest)
        took_s += float(took[nearest])
        if len(positions) >= most or took_s > plan.seconds:
            break
    return np.array(sorted(positions), np.int64), took_s
