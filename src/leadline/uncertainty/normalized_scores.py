"""Intervals from the errors of earlier extrapolations, relative to the estimator's own spread.

A score is |ln(measured ÷ predicted)| ÷ spread. It has no sign: the side on which one extrapolation was off depends on
where it started, and says nothing about another one.
"""

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from leadline.estimators.ports import Array, Stored

LEAST_SPREAD = 1e-6
"""Smallest spread that is believed: no estimator is exact."""
BEYOND_LARGEST = 1.5
"""Factor on the largest score, used where the scores are too few for a level."""


class NormalizedScores(Stored):
    """Scores (m,), ascending, and their weights (m,), which sum to m."""

    scores: Array
    weights: Array

    def factor(self, level: float) -> float:
        """Return the number of spreads that an error exceeds with probability 1 − ``level`` at most.

        This is the conformal quantile of rank level·(m + 1) (Vovk et al. 2005). Where that rank exceeds m, it is
        ``BEYOND_LARGEST`` times the largest score.
        """
        count = len(self.scores)
        rank = level * (count + 1)
        if rank > count + 1e-9:
            return BEYOND_LARGEST * float(self.scores[-1])
        return float(self.scores[min(int(np.searchsorted(np.cumsum(self.weights), rank - 1e-9)), count - 1)])

    def interval(
        self, point: npt.ArrayLike, spread: npt.ArrayLike, level: float, untested: npt.ArrayLike = 0.0
    ) -> tuple[Array, Array]:
        """Return the ends of central intervals around n points, each of shape (n,).

        ``untested`` is the standard deviation that no held-out error can validate, as for a new kind of device. It is
        taken as normal.
        """
        normal = NormalDist().inv_cdf((1 + level) / 2)
        half = np.hypot(self.factor(level) * np.maximum(np.asarray(spread, float), LEAST_SPREAD),
                        normal * np.asarray(untested, float))  # fmt: skip
        width, points = np.exp(half), np.asarray(point, float)
        return points / width, points * width
