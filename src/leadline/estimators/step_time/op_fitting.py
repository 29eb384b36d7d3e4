"""Fit op utilization to measured steps of whole graphs: one setting, another device, or few runs.

A setting is what changes kernels without showing in a specification: framework release, memory layout, training or
inference. Similar settings share weights and deviate as far as their own steps require.

The fit is a damped Gauss-Newton on robust log errors of the step, with a ridge towards prior weights. Errors count by
their square below ``ODD``, by their size below ``FAR``, and by their logarithm above it. A model with such an error
runs a kernel that no size predicts, and a class that it alone calls would absorb it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leadline.estimators.ports import IntArray, State, nest, unnest
from leadline.estimators.step_time.op_residuals import OpShares, fit_op_residuals
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, Cells
from leadline.estimators.step_time.op_utilization import (
    CLASS_COLUMNS,
    FLAG_COLUMNS,
    OVERLAP_POWER,
    SHARED_COLUMNS,
    WEIGHT_COUNT,
    Array,
    ObservedSteps,
    OpBasis,
    OpUtilization,
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
LONGEST_STEP = 1.0
MOST_TRIES = 8
# A round that lowers the cost by a smaller share ends the search.
ENOUGH = 1e-3
LEAST_DAMPING = 1e-2
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
    x, normal = _minimize(search, x)
    variance = np.full(WEIGHT_COUNT, 1 / (ridge * FREEDOM))
    variance[search.used] = np.diag(np.linalg.inv(normal))[: len(search.used)]
    return [replace(search.law(x, number), variance=variance) for number in range(len(observed))]


def _minimize(search: "_Search", x: Array) -> tuple[Array, Array]:
    """Return the point of least cost and the normal matrix there, by damped Gauss-Newton."""
    cost, damping = search.cost(x), 0.0
    while True:
        normal, right = search.normal(x)
        before = cost
        for _ in range(MOST_TRIES):
            damped = normal + damping * np.diag(np.diag(normal))
            tried = search.bounded(x + np.clip(np.linalg.solve(damped, right), -LONGEST_STEP, LONGEST_STEP))
            reached = search.cost(tried)
            if reached < cost:
                x, cost = tried, reached
                damping = damping / 10 if damping > LEAST_DAMPING else 0.0
                break
            damping = max(10 * damping, LEAST_DAMPING)
        if before - cost < ENOUGH * before:
            return x, normal


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
    residuals = fit_op_residuals(OpShares(basis.table, row, op, share[op]), error)
    return replace(weights, departures=weights.departures.merge(residuals) if weights.departures else residuals)


@dataclass(frozen=True, slots=True)
class _Search:
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
        pull = np.concatenate([ridge * _stiffness()[used], np.full(2 * len(observed), ridge * FREEDOM / 10)])
        cells = [Cells.of(steps.basis.table) for steps in observed]
        departed = [op_residuals(steps.basis, prior) for steps in observed]
        return cls(observed, cells, prior, used, place, departed, pull)

    def law(self, x: Array, number: int) -> OpUtilization:
        """Return the law of one setting."""
        f, size = self.prior.f.copy(), len(self.used)
        f[self.used] = x[:size]
        launch_s = float(np.exp(x[size + len(self.observed) + number]))
        return OpUtilization(f, float(x[size + number]), launch_s, departures=self.prior.departures)

    def bounded(self, x: Array) -> Array:
        """Return ``x`` with launches clipped to the possible range."""
        bounded, first = x.copy(), len(self.used) + len(self.observed)
        bounded[first:] = np.clip(bounded[first:], *np.log(LAUNCHES_S))
        return bounded

    def away(self, x: Array) -> Array:
        """Return the distance of ``x`` to the prior; launches have no prior."""
        settings = len(self.observed)
        offsets, launches = np.full(settings, self.prior.offset), x[len(x) - settings :]
        distance: Array = x - np.concatenate([self.prior.f[self.used], offsets, launches])
        return distance

    def cost(self, x: Array) -> float:
        """Return the robust cost of the errors plus the ridge."""
        total = 0.5 * float(self.pull @ self.away(x) ** 2)
        for number, steps in enumerate(self.observed):
            law = self.law(x, number)
            priced, _ = step_and_device_s(steps.basis, op_powers(steps.basis, law, self.departed[number]), law.launch_s)
            total += float(_loss(np.log(steps.step_s / priced[steps.graph])).sum())
        return total

    def normal(self, x: Array) -> tuple[Array, Array]:
        """Return the normal matrix and the right side of a step of Gauss-Newton."""
        used, settings = len(self.used), len(self.observed)
        normal, right = np.diag(self.pull), -self.pull * self.away(x)
        for number, steps in enumerate(self.observed):
            law = self.law(x, number)
            power = op_powers(steps.basis, law, self.departed[number])
            slopes, error = _linearised(steps, self.cells[number], power, law.launch_s, self.place)
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
    loss: Array = np.where(size < FAR, linear, FAR - ODD / 2 + FAR * np.log(np.maximum(size, FAR) / FAR))
    return loss


def _believed(error: Array) -> Array:
    """Return the least-squares weights that descend ``_loss``: its slope over the error."""
    size = np.abs(error)
    weight: Array = 1 / np.maximum(size, ODD) * np.minimum(1, FAR / np.maximum(size, ODD))
    return weight


def _columns(basis: OpBasis) -> IntArray:
    """Return the weights that some op of ``basis`` uses."""
    shared = np.flatnonzero((basis.shared != 0).any(axis=0))
    spoken = np.zeros((len(KERNEL_CLASSES), CLASS_COLUMNS), bool)
    for column in range(CLASS_COLUMNS):
        spoken[np.unique(basis.table.classes[basis.by_class[:, column] != 0]), column] = True
    return np.concatenate([shared, SHARED_COLUMNS + np.flatnonzero(spoken.ravel())])


def _stiffness() -> Array:
    stiffness = np.ones(WEIGHT_COUNT)
    for column in (0, *FLAG_COLUMNS):
        stiffness[SHARED_COLUMNS + column :: CLASS_COLUMNS] = FREEDOM
    return stiffness


COMMON_RIDGE = 20.0
OWN_RIDGE = 10.0
# Ridges towards the prior for few steps, firmest first. A device's deviation is unknown, so the mean of all fits is
# used; each starts at the previous one.
FEW_RIDGES = (640.0, 160.0, 40.0, 10.0)
# Share of a model's error that carries over to another device, since library and graph cause much of it.
CARRIED = 0.8

SettingModels = dict[str, OpUtilization]


def fit_settings(
    observed: Mapping[str, ObservedSteps], alike: Mapping[str, str], *, start: SettingModels | None = None
) -> SettingModels:
    """Return the model of each setting; ``alike`` names the group that shares weights.

    ``start`` holds models of nearly the same steps, which shorten the search.
    """
    models: SettingModels = {}
    for group in dict.fromkeys(alike[name] for name in observed):
        names = [name for name in observed if alike[name] == group]
        near = start.get(f"{group} in common") if start else None
        together = fit_op_utilization(
            [observed[name] for name in names], OpUtilization.prior(), ridge=COMMON_RIDGE, start=near
        )
        for name, common in zip(names, together, strict=True):
            models[name] = add_op_residuals(
                observed[name], fit_op_utilization([observed[name]], common, ridge=OWN_RIDGE)[0]
            )
        models[f"{group} in common"] = together[0]
    return models


def fit_few_steps(weights: OpUtilization, few: ObservedSteps, expected: Array | None = None) -> OpUtilization:
    """Return the model nearest to ``weights`` for a setting or device with few measured steps.

    ``expected`` (k,) are the errors to expect of these models (``expected_errors``). They keep a model's peculiarity
    from counting as the device's.
    """
    if expected is not None:
        few = ObservedSteps(few.basis, few.graph, few.step_s * np.exp(-expected))
    tried: list[OpUtilization] = []
    for ridge in FEW_RIDGES:
        tried += fit_op_utilization([few], weights, ridge=ridge, start=tried[-1] if tried else None)
    return add_op_residuals(few, _mean_of(tried))


def _mean_of(laws: Sequence[OpUtilization]) -> OpUtilization:
    """Return the model of mean weights; residuals and variances are the same in all."""
    return replace(
        laws[-1],
        f=np.mean([model.f for model in laws], axis=0),
        offset=float(np.mean([model.offset for model in laws])),
        launch_s=float(np.exp(np.mean([np.log(model.launch_s) for model in laws]))),
    )


def expected_errors(elsewhere: Array) -> Array:
    """Return the expected ln(measured ÷ predicted) given errors on another device; 0 for NaN."""
    expected: Array = CARRIED * np.nan_to_num(elsewhere)
    return expected


def dump_settings(laws: SettingModels) -> State:
    """Return the models as arrays."""
    state: State = {"settings": np.array(list(laws))}
    for number, weights in enumerate(laws.values()):
        state |= nest(str(number), weights.dump())
    return state


def load_settings(state: State) -> SettingModels:
    """Return the models that ``dump_settings`` wrote."""
    return {str(name): OpUtilization.load(unnest(str(number), state)) for number, name in enumerate(state["settings"])}
