"""Fit op utilization to measured steps of whole graphs: one setting, another device, or few runs.

A setting is what changes kernels without showing in a specification: framework release, memory layout, training or
inference. Similar settings share weights and deviate as far as their own steps require.

The fit is a damped Gauss-Newton on robust log errors of the step, with a ridge towards prior weights. Errors count by
their square below ``ODD``, by their size below ``FAR``, and by their logarithm above it. A model with such an error
runs a kernel that no size predicts, and a class that it alone calls would absorb it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array, IntArray
from leadline.estimators.step_time.gauss_newton import minimize
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, Cells
from leadline.estimators.step_time.op_utilization import (
    CLASS_COLUMNS,
    FLAG_COLUMNS,
    OVERLAP_POWER,
    SHARED_COLUMNS,
    WEIGHT_COUNT,
    ObservedSteps,
    OpBasis,
    OpUtilization,
    fit_op_residuals,
    op_powers,
    op_residuals,
    slopes_s,
    step_and_device_s,
)

# Ridge on intercepts and flags, relative to that on sizes.
FREEDOM = 0.03
ODD, FAR = 0.04, 0.4
# Larger log errors are clipped, since they no longer determine residuals of ops.
MOST_DEPARTED = 1.0
# Bounds of the host's launch.
LAUNCHES_S = (1e-6, 3e-5)


def fit_op_utilization(
    observed: Sequence[ObservedSteps], prior: OpUtilization, *, ridge: float, start: OpUtilization | None = None
) -> list[OpUtilization]:
    """Return the model of each setting: common weights, its own offset and launch.

    ``ridge`` is the weight of the prior in odd steps, for each weight on a size. The search begins at ``start``, by
    default at ``prior``. The residuals of ``prior`` are kept.
    """
    begin = start or prior
    search = _Search.of(observed, prior, ridge)
    x = np.concatenate([begin.f[search.used], np.full(len(observed), begin.offset),
                        np.full(len(observed), np.log(begin.launch_s))])  # fmt: skip
    low, high = np.full((2, len(x)), [[-np.inf], [np.inf]])
    low[-len(observed) :], high[-len(observed) :] = np.log(LAUNCHES_S)
    x, normal = minimize(
        search.cost, search.normal, x, damping=0.0, easier=10, harder=10, least=1e-2, enough=1e-3, rounds=10_000,
        low=low, high=high,
    )  # fmt: skip
    variance = np.full(WEIGHT_COUNT, 1 / (ridge * FREEDOM))
    variance[search.used] = np.diag(np.linalg.inv(normal))[: len(search.used)]
    return [replace(search.law(x, number), variance=variance) for number in range(len(observed))]


def add_op_residuals(observed: ObservedSteps, weights: OpUtilization) -> OpUtilization:
    """Return the model with residuals of its ops, inferred from the errors of steps."""
    basis, owner = observed.basis, observed.basis.table.owner
    power = op_powers(basis, weights, op_residuals(basis, weights))
    step_s, device_s = step_and_device_s(basis, power, weights.launch_s)
    share = slopes_s(basis, power) * basis.table.count / device_s[owner]
    first, sizes = basis.table.first[observed.graph], np.diff(basis.table.first)[observed.graph]
    row = np.repeat(np.arange(len(observed.graph)), sizes)
    op = np.arange(len(row)) + np.repeat(first - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    error = np.clip(np.log(observed.step_s / step_s[observed.graph]), -MOST_DEPARTED, MOST_DEPARTED)
    residuals = fit_op_residuals(basis.table, row, op, share[op], error)
    return replace(weights, departures=weights.departures.merge(residuals) if weights.departures else residuals)


class _Search(Frozen):
    """The minimised problem over x: weights ``used``, then offset and ln(launch) of each setting."""

    observed: Sequence[ObservedSteps]
    cells: Sequence[Cells]
    prior: OpUtilization
    used: IntArray
    place: IntArray
    departed: Sequence[Array]
    pull: Array

    @classmethod
    def of(cls, observed: Sequence[ObservedSteps], prior: OpUtilization, ridge: float) -> "_Search":
        """Return the search for the law of ``observed``, near ``prior``."""
        used = np.unique(np.concatenate([_columns(steps.basis) for steps in observed]))
        place = np.full(WEIGHT_COUNT, -1)
        place[used] = np.arange(len(used))
        stiffness = np.ones(WEIGHT_COUNT)
        for column in (0, *FLAG_COLUMNS):
            stiffness[SHARED_COLUMNS + column :: CLASS_COLUMNS] = FREEDOM
        pull = np.concatenate([ridge * stiffness[used], np.full(2 * len(observed), ridge * FREEDOM / 10)])
        cells = [Cells.of(steps.basis.table) for steps in observed]
        departed = [op_residuals(steps.basis, prior) for steps in observed]
        return cls(observed, cells, prior, used, place, departed, pull)

    def law(self, x: Array, number: int) -> OpUtilization:
        """Return the law of one setting."""
        f, size = self.prior.f.copy(), len(self.used)
        f[self.used] = x[:size]
        launch_s = float(np.exp(x[size + len(self.observed) + number]))
        return OpUtilization(f, float(x[size + number]), launch_s, departures=self.prior.departures)

    def away(self, x: Array) -> Array:
        """Return the distance of ``x`` to the prior; launches have no prior."""
        settings = len(self.observed)
        offsets, launches = np.full(settings, self.prior.offset), x[len(x) - settings :]
        return np.asarray(x - np.concatenate([self.prior.f[self.used], offsets, launches]))

    def cost(self, x: Array) -> tuple[float, list[Array]]:
        """Return the robust cost of the errors plus the ridge, and exp(f) of the ops of each setting."""
        total, powers = 0.5 * float(self.pull @ self.away(x) ** 2), []
        for number, steps in enumerate(self.observed):
            law = self.law(x, number)
            powers.append(op_powers(steps.basis, law, self.departed[number]))
            priced, _ = step_and_device_s(steps.basis, powers[-1], law.launch_s)
            total += float(_loss(np.log(steps.step_s / priced[steps.graph])).sum())
        return total, powers

    def normal(self, x: Array, state: list[Array]) -> tuple[Array, Array]:
        used, settings = len(self.used), len(self.observed)
        normal, right = np.diag(self.pull), -self.pull * self.away(x)
        for number, steps in enumerate(self.observed):
            launch_s = self.law(x, number).launch_s
            slopes, error = _linearised(steps, self.cells[number], state[number], launch_s, self.place)
            weighted = slopes * _believed(error)[:, None]
            columns = np.r_[np.arange(used), used + number, used + settings + number]
            normal[np.ix_(columns, columns)] += weighted.T @ slopes
            right[columns] += weighted.T @ error
        return normal, right


def _linearised(
    steps: ObservedSteps, cells: Cells, power: Array, launch_s: float, place: IntArray
) -> tuple[Array, Array]:
    """Return slopes of ln(step) by weights, offset and ln(launch), and ln(measured ÷ predicted)."""
    basis, table, owner = steps.basis, steps.basis.table, cells.owner
    graphs, size = table.graphs, int(place.max()) + 1
    variable = slopes_s(basis, power) * table.count
    step_s, device_s = step_and_device_s(basis, power, launch_s)
    share = (device_s / step_s) ** OVERLAP_POWER
    slopes = np.zeros((graphs, size + 2))
    for number in np.flatnonzero(place[:SHARED_COLUMNS] >= 0):
        slopes[:, place[number]] = np.bincount(owner, variable * basis.shared[:, number], graphs)
    for column in range(CLASS_COLUMNS):
        where = place[SHARED_COLUMNS + cells.classes * CLASS_COLUMNS + column]
        used = where >= 0
        if used.any():
            sums = np.bincount(cells.cell, variable * basis.by_class[:, column], len(where))
            slopes[cells.graph[used], where[used]] = sums[used]
    slopes[:, size] = np.bincount(owner, variable, graphs)
    slopes *= (share / device_s)[:, None]
    slopes[:, size + 1] = 1 - share
    return slopes[steps.graph], np.log(steps.step_s) - np.log(step_s[steps.graph])


def _loss(error: Array) -> Array:
    """Return the cost of log errors: quadratic, then linear, then logarithmic."""
    size = np.abs(error)
    linear = np.where(size < ODD, size**2 / (2 * ODD), size - ODD / 2)
    return np.asarray(np.where(size < FAR, linear, FAR - ODD / 2 + FAR * np.log(np.maximum(size, FAR) / FAR)))


def _believed(error: Array) -> Array:
    """Return the least-squares weights that descend ``_loss``: its slope over the error."""
    size = np.abs(error)
    return np.asarray(1 / np.maximum(size, ODD) * np.minimum(1, FAR / np.maximum(size, ODD)))


def _columns(basis: OpBasis) -> IntArray:
    """Return the weights that some op of ``basis`` uses."""
    shared = np.flatnonzero((basis.shared != 0).any(axis=0))
    spoken = np.zeros((len(KERNEL_CLASSES), CLASS_COLUMNS), bool)
    for column in range(CLASS_COLUMNS):
        spoken[np.unique(basis.table.classes[basis.by_class[:, column] != 0]), column] = True
    return np.concatenate([shared, SHARED_COLUMNS + np.flatnonzero(spoken.ravel())])


# Ridges towards the prior for few steps, firmest first. A device's deviation is unknown, so the mean of all fits is
# used; each starts at the previous one.
FEW_RIDGES = (640.0, 160.0, 40.0, 10.0)


def fit_few_steps(weights: OpUtilization, few: ObservedSteps) -> OpUtilization:
    """Return the model nearest to ``weights`` for a setting or device with few measured steps."""
    tried: list[OpUtilization] = []
    for ridge in FEW_RIDGES:
        tried += fit_op_utilization([few], weights, ridge=ridge, start=tried[-1] if tried else None)
    mean = replace(
        tried[-1],
        f=np.mean([model.f for model in tried], axis=0),
        offset=float(np.mean([model.offset for model in tried])),
        launch_s=float(np.exp(np.mean([np.log(model.launch_s) for model in tried]))),
    )
    return add_op_residuals(few, mean)
