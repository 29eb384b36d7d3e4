"""What full-scale samples say of a law there: how far it is off as a whole, and for whom more than for others.

Hardware has cliffs: what made no difference within a cache does beyond it. The few full-scale residuals are regressed
on the columns that carry no scale, as much as the evidence allows (Bayesian linear regression, its prior scales
averaged by their marginal likelihood; Bishop 2006, sections 3.3 to 3.5).
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.estimators.tabular.ports import Array, State
from leadline.estimators.tabular.states import floats
from leadline.estimators.tabular.tables import Table, deviation

OFFSETS, SLOPES = (0.03, 0.1, 0.25), (0.0, 0.04, 0.1, 0.2)
"""Prior deviations of the logarithm's offset, and of its slopes on columns of deviation one."""
LEAST_NOISE = 0.03
APART = 0.5
"""A law is bent where full-scale samples lie so far beyond the others, in logarithms."""


@dataclass(frozen=True, slots=True)
class Bend:
    """Moves ln t by up to ``offset`` + x·``slopes`` between ``low`` and ``high``."""

    offset: float
    low: float
    high: float
    slopes: Array

    def at(self, logs: Array, x: Array) -> Array:
        """Return ln t as moved, at rows ``x`` (n, columns); it rises with ``logs`` still."""
        room = self.high - self.low - 1e-6
        by = np.clip(self.offset + x @ self.slopes, -room, room)
        return logs + by * np.clip((logs - self.low) / (self.high - self.low), 0.0, 1.0)

    def dump(self) -> State:
        """Return the bend as arrays."""
        return {"figures": np.array([self.offset, self.low, self.high]), "slopes": self.slopes}


def load(state: State) -> Bend:
    """Return the bend that ``dump`` gave."""
    offset, low, high = (float(one) for one in state["figures"])
    return Bend(offset, low, high, floats(state["slopes"]))


def none(columns: int) -> Bend:
    """Return the bend that moves nothing."""
    return Bend(0.0, 0.0, 1.0, np.zeros(columns))


def learn(x: Array, fitted: Array, table: Table, logs: Array, scales: npt.NDArray[np.bool_]) -> Bend:
    """Return how full-scale samples depart from what is ``fitted``; not at all where they do not lie beyond the others.

    ``x`` (n, columns) are the encoded rows, and ``scales`` the columns that carry scale, on which nothing may depend.
    """
    large, small = table.full_scale, ~table.full_scale
    if not large.any() or not small.any():
        return none(x.shape[1])
    low, high = float(np.quantile(fitted[small], 0.9)), float(np.median(fitted[large]))
    if high - low < APART:
        return none(x.shape[1])
    off = logs[large] - fitted[large]
    noise = max(deviation(logs[small] - fitted[small]), LEAST_NOISE)
    weights = _regress(np.where(scales, 0.0, x[large]), off, noise)
    return Bend(float(weights[0]), low, high, np.where(scales, 0.0, weights[1:]))


def _regress(x: Array, off: Array, noise: float) -> Array:
    """Return the offset and the slopes expected after ``off`` was seen, averaged over their prior deviations."""
    design = np.column_stack([np.ones(len(x)), x])
    found, evidence = [], []
    for offset, slope in itertools.product(OFFSETS, SLOPES):
        prior = np.array([offset**2, *np.full(x.shape[1], slope**2)])
        covariance = (design * prior) @ design.T + noise**2 * np.eye(len(off))
        solved = np.linalg.solve(covariance, off)
        found.append(prior * (design.T @ solved))
        evidence.append(-0.5 * float(off @ solved) - 0.5 * float(np.linalg.slogdet(covariance)[1]))
    shares = np.exp(np.array(evidence) - max(evidence))
    return np.asarray(shares @ np.array(found) / shares.sum(), np.float64)
