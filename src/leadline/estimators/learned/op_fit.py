"""Find a law of ops from measured steps: damped Gauss-Newton on robust errors of the logarithm of the step.

A ridge draws weights towards those believed before. A small error counts by its square; one beyond ``ODD`` by its
size, so that odd models do not decide; one beyond ``FAR`` by its logarithm: such a model runs a kernel that no size
tells, and a class that it alone calls would take the blame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from leadline.estimators.learned.op_kriging import Shares, krige
from leadline.estimators.learned.op_law import (
    FLAGS,
    JOIN,
    OWN,
    SHARED,
    WEIGHTS,
    Array,
    Basis,
    Observed,
    Weights,
    departures,
    powers,
    slopes_s,
    step_of,
)  # fmt: skip
from leadline.estimators.learned.op_table import CLASSES, Cells

Whole = npt.NDArray[np.int64]

FREEDOM = 0.03
"""The ridge on what every op of a class has in common and on flags, beside that on what sizes change."""
ODD, FAR = 0.04, 0.4
MOST_DEPARTED = 1.0
"""Errors beyond e to this power tell no more of what ops depart by."""
LONGEST_STEP = 1.0
MOST_TRIES = 8
ENOUGH = 1e-3
"""A round that lowers the cost by a smaller share ends the search."""
LEAST_DAMPING = 1e-2
LAUNCHES_S = (1e-6, 3e-5)
"""The host's launch lies between these."""


def fit(observed: Sequence[Observed], prior: Weights, *, ridge: float, start: Weights | None = None) -> list[Weights]:
    """Return the law of each setting: weights in common, an offset and a launch of its own.

    ``ridge`` is how many odd steps' worth the belief in ``prior`` weighs, for each weight on a size. ``start`` is where
    the search begins, by default at ``prior``. What ``prior`` departs by is kept.
    """
    begin = start or prior
    search = _Search.of(observed, prior, ridge)
    x = np.concatenate([begin.f[search.used], np.full(len(observed), begin.offset),
                        np.full(len(observed), np.log(begin.launch_s))])  # fmt: skip
    x, normal = _descended(search, x)
    variance = np.full(WEIGHTS, 1 / (ridge * FREEDOM))
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


def departed(observed: Observed, weights: Weights) -> Weights:
    """Return the law with what its ops depart from it by, beside what they do already, as the steps' errors tell."""
    basis, owner = observed.basis, observed.basis.table.owner
    power = powers(basis, weights, departures(basis, weights))
    step_s, device_s = step_of(basis, power, weights.launch_s)
    share = slopes_s(basis, power) * basis.table.count / device_s[owner]
    first, sizes = basis.table.first[observed.graph], np.diff(basis.table.first)[observed.graph]
    row = np.repeat(np.arange(len(observed.graph)), sizes)
    op = np.arange(len(row)) + np.repeat(first - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    error = np.clip(np.log(observed.step_s / step_s[observed.graph]), -MOST_DEPARTED, MOST_DEPARTED)
    found = krige(Shares(basis.table, row, op, share[op]), error)
    return replace(weights, departures=weights.departures.with_more(found) if weights.departures else found)


@dataclass(frozen=True, slots=True)
class _Search:
    """What is minimised over x: the weights ``used``, then an offset and ln(launch) of each setting."""

    observed: Sequence[Observed]
    cells: Sequence[Cells]
    prior: Weights
    used: Whole
    place: Whole
    departed: Sequence[Array]
    pull: Array

    @classmethod
    def of(cls, observed: Sequence[Observed], prior: Weights, ridge: float) -> "_Search":
        """Return the search for the law of ``observed``, near ``prior``."""
        used = np.unique(np.concatenate([_columns(one.basis) for one in observed]))
        place = np.full(WEIGHTS, -1)
        place[used] = np.arange(len(used))
        pull = np.concatenate([ridge * _stiffness()[used], np.full(2 * len(observed), ridge * FREEDOM / 10)])
        cells = [Cells.of(one.basis.table) for one in observed]
        departed = [departures(one.basis, prior) for one in observed]
        return cls(observed, cells, prior, used, place, departed, pull)

    def law(self, x: Array, number: int) -> Weights:
        """Return the law of one setting."""
        f, size = self.prior.f.copy(), len(self.used)
        f[self.used] = x[:size]
        launch_s = float(np.exp(x[size + len(self.observed) + number]))
        return Weights(f, float(x[size + number]), launch_s, departures=self.prior.departures)

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
            priced, _ = step_of(one.basis, powers(one.basis, law, self.departed[number]), law.launch_s)
            total += float(_loss(np.log(one.step_s / priced[one.graph])).sum())
        return total

    def normal(self, x: Array) -> tuple[Array, Array]:
        """Return the normal matrix and the right side of a step of Gauss-Newton."""
        used, settings = len(self.used), len(self.observed)
        normal, right = np.diag(self.pull), -self.pull * self.away(x)
        for number, one in enumerate(self.observed):
            law = self.law(x, number)
            power = powers(one.basis, law, self.departed[number])
            slopes, error = _linearised(one, self.cells[number], power, law.launch_s, self.place)
            weighted = slopes * _believed(error)[:, None]
            columns = np.r_[np.arange(used), used + number, used + settings + number]
            normal[np.ix_(columns, columns)] += weighted.T @ slopes
            right[columns] += weighted.T @ error
        return normal, right


def _linearised(one: Observed, cells: Cells, power: Array, launch_s: float, place: Whole) -> tuple[Array, Array]:
    """Return the slopes of ln(step) by each weight used, the offset and ln(launch), and ln(measured ÷ priced)."""
    basis, table, owner = one.basis, one.basis.table, cells.owner
    graphs, size = table.graphs, int(place.max()) + 1
    variable = slopes_s(basis, power) * table.count
    step_s, device_s = step_of(basis, power, launch_s)
    share = (device_s / step_s) ** JOIN
    slopes = np.zeros((graphs, size + 2))
    for number in np.flatnonzero(place[:SHARED] >= 0):
        slopes[:, place[number]] = np.bincount(owner, variable * basis.shared[:, number], graphs)
    for column in range(OWN):
        where = place[SHARED + cells.classes * OWN + column]
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


def _columns(basis: Basis) -> Whole:
    """Return the weights that some op of ``basis`` speaks of."""
    shared = np.flatnonzero((basis.shared != 0).any(axis=0))
    spoken = np.zeros((len(CLASSES), OWN), bool)
    for column in range(OWN):
        spoken[np.unique(basis.table.classes[basis.own[:, column] != 0]), column] = True
    return np.concatenate([shared, SHARED + np.flatnonzero(spoken.ravel())])


def _stiffness() -> Array:
    stiffness = np.ones(WEIGHTS)
    for column in (0, *FLAGS):
        stiffness[SHARED + column :: OWN] = FREEDOM
    return stiffness
