"""Corrections of a fitted model: for full scale, and for the unit time.

Hardware has cliffs, such as the end of a cache. The few full-scale residuals are regressed on the columns without
scale, as far as the evidence allows (Bayesian linear regression, prior scales averaged by marginal likelihood; Bishop
2006, sections 3.3 to 3.5). A Gaussian process corrects the unit time for cliffs, optima and interacting categories.
"""

import itertools

import numpy as np

from leadline.core.frozen import Frozen
from leadline.estimators.gp import GaussianProcess, Process
from leadline.estimators.ports import Array, IntArray, Mask, State, Stored, integers
from leadline.estimators.tabular.encoding import FeatureEncoding
from leadline.estimators.tabular.tables import SampleTable, assign_folds, robust_deviation

# Prior deviations of the logarithm's offset, and of its slopes on columns of deviation one.
OFFSETS, SLOPES = (0.03, 0.1, 0.25), (0.0, 0.04, 0.1, 0.2)
LEAST_NOISE = 0.03
APART = 0.5  # the correction applies if full-scale samples exceed the others by this log distance


class FullScaleCorrection(Stored):
    """Shifts ln t by up to ``offset`` + x·``slopes`` between ``low`` and ``high``."""

    figures = ("offset", "low", "high")

    offset: float
    low: float
    high: float
    slopes: Array

    def at(self, logs: Array, x: Array) -> Array:
        """Return the shifted ln t at rows ``x`` (n, columns), still increasing in ``logs``."""
        room = self.high - self.low - 1e-6
        by = np.clip(self.offset + x @ self.slopes, -room, room)
        return logs + by * np.clip((logs - self.low) / (self.high - self.low), 0.0, 1.0)


def no_full_scale_correction(columns: int) -> FullScaleCorrection:
    """Return the correction that changes nothing."""
    return FullScaleCorrection(0.0, 0.0, 1.0, np.zeros(columns))


def fit_full_scale_correction(
    x: Array, fitted: Array, table: SampleTable, logs: Array, scales: Mask
) -> FullScaleCorrection:
    """Return the correction of ``fitted`` at full scale; none if full scale is not apart.

    ``x`` (n, columns) are the encoded rows. ``scales`` marks the columns that carry scale, which the correction must
    not use.
    """
    large, small = table.full_scale, ~table.full_scale
    if not large.any() or not small.any():
        return no_full_scale_correction(x.shape[1])
    low, high = float(np.quantile(fitted[small], 0.9)), float(np.median(fitted[large]))
    if high - low < APART:
        return no_full_scale_correction(x.shape[1])
    off = logs[large] - fitted[large]
    noise = max(robust_deviation(logs[small] - fitted[small]), LEAST_NOISE)
    weights = _regress(np.where(scales, 0.0, x[large]), off, noise)
    return FullScaleCorrection(float(weights[0]), low, high, np.where(scales, 0.0, weights[1:]))


def _regress(x: Array, off: Array, noise: float) -> Array:
    """Return posterior offset and slopes, averaged over their prior deviations."""
    design = np.column_stack([np.ones(len(x)), x])
    solutions, evidence = [], []
    for offset, slope in itertools.product(OFFSETS, SLOPES):
        prior = np.array([offset**2, *np.full(x.shape[1], slope**2)])
        covariance = (design * prior) @ design.T + noise**2 * np.eye(len(off))
        solved = np.linalg.solve(covariance, off)
        solutions.append(prior * (design.T @ solved))
        evidence.append(-0.5 * float(off @ solved) - 0.5 * float(np.linalg.slogdet(covariance)[1]))
    shares = np.exp(np.array(evidence) - max(evidence))
    return np.asarray(shares @ np.array(solutions) / shares.sum(), np.float64)


REGRESSION = GaussianProcess(trend=False)
# A correction is kept where it leaves at most this share of the squares that were left, on folds not fitted.
WORTHWHILE = 0.8
FOLDS, TRIED_ON = 4, 400
# No correction is learnt from fewer rows …
FEW = 12
# … of which the work takes at least this share of the time.
LEAST_SHARE = 0.2
MOST = 1.5  # no unit time is corrected by more than e to this power


class UnitTimeCorrection(Frozen):
    """Adds the expectation of ``process`` on columns without scale to ln(unit time).

    More work therefore still takes more time.
    """

    process: Process
    columns: IntArray

    def at(self, x: Array) -> tuple[Array, Array]:
        """Return the log correction of the work at each row (n, columns), and its deviation."""
        mean, deviation = self.process.predict(x[:, self.columns])
        return np.clip(mean, -MOST, MOST), deviation

    def dump(self) -> State:
        """Return the correction as arrays."""
        return {"columns": self.columns, **self.process.dump()}

    @classmethod
    def load(cls, state: State) -> "UnitTimeCorrection":
        """Return the correction that ``dump`` wrote."""
        return cls(Process.load(state), integers(state["columns"]))


def fit_unit_time_correction(
    x: Array, residuals: Array, share: Array, table: SampleTable, encoder: FeatureEncoding, seed: int
) -> UnitTimeCorrection | None:
    """Return the correction of the ``residuals`` of ln t; ``None`` if it does not help.

    ``share`` is the work's share of t. ``x`` (n, columns) are the encoded rows. Left-out configurations decide whether
    it helps.
    """
    columns, rows = np.flatnonzero(encoder.scales == 0), np.flatnonzero(share > LEAST_SHARE)
    if not len(columns) or len(rows) < FEW:
        return None
    inputs, target = x[np.ix_(rows, columns)], residuals[rows] / share[rows]
    heed = table.weight[rows] * share[rows] ** 2
    # Wild ones tell less.
    heed *= np.minimum(1.0, (4 * robust_deviation(target) / np.maximum(np.abs(target), 1e-12)) ** 2)
    heed = np.maximum(heed / heed.mean(), 1e-3)
    if not _worthwhile(inputs, target, heed, table.folds[rows], seed):
        return None
    return UnitTimeCorrection(REGRESSION.fit(inputs, target, heed, seed), columns)


def _worthwhile(x: Array, target: Array, heed: Array, folds: IntArray, seed: int) -> bool:
    tried = np.random.default_rng(seed).permutation(len(x))[:TRIED_ON]
    part = assign_folds(folds[tried], FOLDS, seed)
    before = after = 0.0
    for fold in range(FOLDS):
        inside, outside = tried[part != fold], tried[part == fold]
        if len(inside) >= FEW and len(outside):
            process = REGRESSION.fit(x[inside], target[inside], heed[inside], seed)
            predicted = np.clip(process.predict(x[outside])[0], -MOST, MOST)
            before += float(np.sum(heed[outside] * target[outside] ** 2))
            after += float(np.sum(heed[outside] * (target[outside] - predicted) ** 2))
    return after < WORTHWHILE * before
