"""Recalibrate predictive distributions: map nominal quantile levels to those observed on past data.

The probability integral transform of a measurement is its predicted distribution function at the measured value.
Transforms are uniform where all predicted distributions are right (Dawid 1984). Otherwise the p-quantile of the
observed transforms is the nominal level to use for level p (Kuleshov, Fenner and Ermon 2018; as a conformal interval:
Chernozhukov, Wüthrich and Zhu 2021).
"""

import numpy as np
import numpy.typing as npt

from leadline.estimators.ports import Array, Stored


class Recalibration(Stored):
    """Transforms (m,), ascending, and their weights (m,), which sum to m."""

    transforms: Array
    weights: Array

    @classmethod
    def of(cls, transforms: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> "Recalibration":
        """Return the recalibration from the transforms of m held-out measurements.

        Raises:
            ValueError: there is no transform, or one is not between 0 and 1.
        """
        values = np.asarray(transforms, float)
        if not len(values) or not ((values >= 0) & (values <= 1)).all():
            raise ValueError("recalibration needs transforms between 0 and 1, and at least one")
        counts = np.ones(len(values)) if weights is None else np.asarray(weights, float)
        order = np.argsort(values, kind="stable")
        return cls(values[order], counts[order] * len(values) / counts.sum())

    def upper(self, level: float) -> float:
        """Return the nominal level that a new measurement stays at or below with probability ``level`` at least.

        This is the transform of rank level·(m + 1), or 1 where that rank exceeds m.
        """
        rank = level * (len(self.transforms) + 1)
        place = int(np.searchsorted(np.cumsum(self.weights), rank - 1e-9))
        return float(self.transforms[place]) if place < len(self.transforms) else 1.0

    def lower(self, level: float) -> float:
        """Return the nominal level that a new measurement stays below with probability ``level`` at most."""
        rank = level * (len(self.transforms) + 1)
        place = int(np.searchsorted(np.cumsum(self.weights), rank + 1e-9)) - 1
        return float(self.transforms[place]) if place >= 0 else 0.0
