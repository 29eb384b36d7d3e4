"""Find a law of ops from measured steps: damped Gauss-Newton on robust errors of the logarithm of the step.

A ridge draws weights towards those believed before. A small error counts by its square; one beyond ``ODD`` by its
size, so that odd models do not decide; one beyond ``FAR`` by its logarithm: such a model runs a kernel that no size
tells, and a class that it alone calls would take the blame.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from leadline.estimators.ports import State, nest, unnest
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
    departures,
    op_powers,
    slopes_s,
    step_and_device_s,
)

Whole = npt.NDArray[np.int64]

# The ridge on what every op of a class has in common and on flags, beside that on what sizes change.
FREEDOM = 0.03
ODD, FAR = 0.04, 0.4
# Errors beyond e to this power tell no more of what ops depart by.
MOST_DEPARTED = 1.0
LONGEST_STEP = 1.0
MOST_TRIES = 8
# A round that lowers the cost by a smaller share ends the search.
ENOUGH = 1e-3
LEAST_DAMPING = 1e-2
# The host's launch lies between these.
LAUNCHES_S = (1e-6, 3e-5)


def fit_op_utilization(
    observed: Sequence[ObservedSteps], prior: OpUtilization, *, ridge: float, start: OpUtilization | None = None
) -> list[OpUtilization]:
    """Return the law of each setting: weights in common, an offset and a launch of its own.

    ``ridge`` is how many odd steps' worth the belief in ``prior`` weighs, for each weight on a size. ``start`` is where
    the search begins, by default at ``prior``. What ``prior`` departs by is kept.
    """
    begin = start or prior
    search = _Search.of(observed, prior, ridge)
    x = np.concatenate([begin.f[search.used], np.full(len(observed), begin.offset),
                        np.full(len(observed), np.log(begin.launch_s))])  # fmt: skip
    x, normal = _descended(search, x)
    variance = np.full(WEIGHT_COUNT, 1 / (ridge * FREEDOM))
    variance[search.used] = np.diag(np.linalg.inv(normal))[: len(search.used)]
    return [replace(search.law(x, number), variance=variance) for number in range(len(observed))]


def _descended(search: "_Search", x: Array) -> tuple[Array, Array]:
    """Return where the cost is least, and the normal matrix there, by Gauss-Newton damped where it overshoots."""
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


def departed(observed: ObservedSteps, weights: OpUtilization) -> OpUtilization:
    """Return the law with what its ops depart from it by, beside what they do already, as the steps' errors tell."""
    basis, owner = observed.basis, observed.basis.table.owner
    power = op_powers(basis, weights, departures(basis, weights))
    step_s, device_s = step_and_device_s(basis, power, weights.launch_s)
    share = slopes_s(basis, power) * basis.table.count / device_s[owner]
    first, sizes = basis.table.first[observed.graph], np.diff(basis.table.first)[observed.graph]
    row = np.repeat(np.arange(len(observed.graph)), sizes)
    op = np.arange(len(row)) + np.repeat(first - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    error = np.clip(np.log(observed.step_s / step_s[observed.graph]), -MOST_DEPARTED, MOST_DEPARTED)
    found = fit_op_residuals(OpShares(basis.table, row, op, share[op]), error)
    return replace(weights, departures=weights.departures.with_more(found) if weights.departures else found)


@dataclass(frozen=True, slots=True)
class _Search:
    """What is minimised over x: the weights ``used``, then an offset and ln(launch) of each setting."""

    observed: Sequence[ObservedSteps]
    cells: Sequence[Cells]
    prior: OpUtilization
    used: Whole
    place: Whole
    departed: Sequence[Array]
    pull: Array

    @classmethod
    def of(cls, observed: Sequence[ObservedSteps], prior: OpUtilization, ridge: float) -> "_Search":
        """Return the search for the law of ``observed``, near ``prior``."""
        used = np.unique(np.concatenate([_columns(one.basis) for one in observed]))
        place = np.full(WEIGHT_COUNT, -1)
        place[used] = np.arange(len(used))
        pull = np.concatenate([ridge * _stiffness()[used], np.full(2 * len(observed), ridge * FREEDOM / 10)])
        cells = [Cells.of(one.basis.table) for one in observed]
        departed = [departures(one.basis, prior) for one in observed]
        return cls(observed, cells, prior, used, place, departed, pull)

    def law(self, x: Array, number: int) -> OpUtilization:
        """Return the law of one setting."""
        f, size = self.prior.f.copy(), len(self.used)
        f[self.used] = x[:size]
        launch_s = float(np.exp(x[size + len(self.observed) + number]))
        return OpUtilization(f, float(x[size + number]), launch_s, departures=self.prior.departures)

    def bounded(self, x: Array) -> Array:
        """Return ``x`` with launches that a host can have."""
        found, first = x.copy(), len(self.used) + len(self.observed)
        found[first:] = np.clip(found[first:], *np.log(LAUNCHES_S))
        return found

    def away(self, x: Array) -> Array:
        """Return how far ``x`` is from the belief; no launch is believed more than another."""
        settings = len(self.observed)
        offsets, launches = np.full(settings, self.prior.offset), x[len(x) - settings :]
        found: Array = x - np.concatenate([self.prior.f[self.used], offsets, launches])
        return found

    def cost(self, x: Array) -> float:
        """Return half the weighed squares of small errors, large errors by their size, and the ridge."""
        total = 0.5 * float(self.pull @ self.away(x) ** 2)
        for number, one in enumerate(self.observed):
            law = self.law(x, number)
            priced, _ = step_and_device_s(one.basis, op_powers(one.basis, law, self.departed[number]), law.launch_s)
            total += float(_loss(np.log(one.step_s / priced[one.graph])).sum())
        return total

    def normal(self, x: Array) -> tuple[Array, Array]:
        """Return the normal matrix and the right side of a step of Gauss-Newton."""
        used, settings = len(self.used), len(self.observed)
        normal, right = np.diag(self.pull), -self.pull * self.away(x)
        for number, one in enumerate(self.observed):
            law = self.law(x, number)
            power = op_powers(one.basis, law, self.departed[number])
            slopes, error = _linearised(one, self.cells[number], power, law.launch_s, self.place)
            weighted = slopes * _believed(error)[:, None]
            columns = np.r_[np.arange(used), used + number, used + settings + number]
            normal[np.ix_(columns, columns)] += weighted.T @ slopes
            right[columns] += weighted.T @ error
        return normal, right


def _linearised(one: ObservedSteps, cells: Cells, power: Array, launch_s: float, place: Whole) -> tuple[Array, Array]:
    """Return the slopes of ln(step) by each weight used, the offset and ln(launch), and ln(measured ÷ priced)."""
    basis, table, owner = one.basis, one.basis.table, cells.owner
    graphs, size = table.graphs, int(place.max()) + 1
    variable = slopes_s(basis, power) * table.count
    step_s, device_s = step_and_device_s(basis, power, launch_s)
    share = (device_s / step_s) ** OVERLAP_POWER
    slopes = np.zeros((graphs, size + 2))
    for number in np.flatnonzero(place[:SHARED_COLUMNS] >= 0):
        slopes[:, place[number]] = np.bincount(owner, variable * basis.shared[:, number], graphs)
    for column in range(CLASS_COLUMNS):
        where = place[SHARED_COLUMNS + cells.classes * CLASS_COLUMNS + column]
        known = where >= 0
        if known.any():
            found = np.bincount(cells.cell, variable * basis.own[:, column], len(where))
            slopes[cells.graph[known], where[known]] = found[known]
    slopes[:, size] = np.bincount(owner, variable, graphs)
    slopes *= (share / device_s)[:, None]
    slopes[:, size + 1] = 1 - share
    return slopes[one.graph], np.log(one.step_s) - np.log(step_s[one.graph])


def _loss(error: Array) -> Array:
    """Return what errors of the logarithm cost: their square, their size, and their logarithm in the end."""
    size = np.abs(error)
    linear = np.where(size < ODD, size**2 / (2 * ODD), size - ODD / 2)
    found: Array = np.where(size < FAR, linear, FAR - ODD / 2 + FAR * np.log(np.maximum(size, FAR) / FAR))
    return found


def _believed(error: Array) -> Array:
    """Return the weights under which least squares descend ``_loss``: its slope over the error."""
    size = np.abs(error)
    found: Array = 1 / np.maximum(size, ODD) * np.minimum(1, FAR / np.maximum(size, ODD))
    return found


def _columns(basis: OpBasis) -> Whole:
    """Return the weights that some op of ``basis`` speaks of."""
    shared = np.flatnonzero((basis.shared != 0).any(axis=0))
    spoken = np.zeros((len(KERNEL_CLASSES), CLASS_COLUMNS), bool)
    for column in range(CLASS_COLUMNS):
        spoken[np.unique(basis.table.classes[basis.own[:, column] != 0]), column] = True
    return np.concatenate([shared, SHARED_COLUMNS + np.flatnonzero(spoken.ravel())])


def _stiffness() -> Array:
    stiffness = np.ones(WEIGHT_COUNT)
    for column in (0, *FLAG_COLUMNS):
        stiffness[SHARED_COLUMNS + column :: CLASS_COLUMNS] = FREEDOM
    return stiffness


COMMON_RIDGE = 20.0
OWN_RIDGE = 10.0
# How firmly few steps are met with what was believed; how far a device departs is not known, so all are asked, the
# firmest first: its answer is near the next one's.
FEW_RIDGES = (640.0, 160.0, 40.0, 10.0)
# Share of a model's error on one device that is found on another: much of it is the library's and the graph's.
CARRIED = 0.8

SettingModels = dict[str, OpUtilization]


def fit_settings(
    observed: Mapping[str, ObservedSteps], alike: Mapping[str, str], *, start: SettingModels | None = None
) -> SettingModels:
    """Return the law of each setting; ``alike`` names the group of settings that shares weights.

    ``start`` holds laws of nearly the same steps, from which the search is shorter.
    """
    found: SettingModels = {}
    for group in dict.fromkeys(alike[name] for name in observed):
        names = [name for name in observed if alike[name] == group]
        near = start.get(f"{group} in common") if start else None
        together = fit_op_utilization(
            [observed[name] for name in names], OpUtilization.prior(), ridge=COMMON_RIDGE, start=near
        )
        for name, common in zip(names, together, strict=True):
            found[name] = departed(observed[name], fit_op_utilization([observed[name]], common, ridge=OWN_RIDGE)[0])
        found[f"{group} in common"] = together[0]
    return found


def fit_few_steps(weights: OpUtilization, few: ObservedSteps, known: Array | None = None) -> OpUtilization:
    """Return the law of a setting or device of which only a few steps were measured, nearest to ``weights``.

    ``known`` (k,) are the errors to expect of these few (``expected_errors``): what is odd about a model is then not taken for
    what is odd about the device.
    """
    if known is not None:
        few = ObservedSteps(few.basis, few.graph, few.step_s * np.exp(-known))
    tried: list[OpUtilization] = []
    for ridge in FEW_RIDGES:
        tried += fit_op_utilization([few], weights, ridge=ridge, start=tried[-1] if tried else None)
    return departed(few, _mean_of(tried))


def _mean_of(laws: Sequence[OpUtilization]) -> OpUtilization:
    """Return the law whose every weight is the mean of theirs; what they depart by and how sure they are is alike."""
    return replace(
        laws[-1],
        f=np.mean([one.f for one in laws], axis=0),
        offset=float(np.mean([one.offset for one in laws])),
        launch_s=float(np.exp(np.mean([np.log(one.launch_s) for one in laws]))),
    )


def expected_errors(elsewhere: Array) -> Array:
    """Return ln(measured ÷ priced) to expect of models with these errors on another device; 0 where it is NaN."""
    found: Array = CARRIED * np.nan_to_num(elsewhere)
    return found


def dump_settings(laws: SettingModels) -> State:
    """Return the laws as arrays."""
    found: State = {"settings": np.array(list(laws))}
    for number, weights in enumerate(laws.values()):
        found |= nest(str(number), weights.dump())
    return found


def load_settings(state: State) -> SettingModels:
    """Return the laws that were dumped."""
    return {str(name): OpUtilization.load(unnest(str(number), state)) for number, name in enumerate(state["settings"])}
