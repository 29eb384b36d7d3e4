"""Make foretold distributions hold: the levels at which what was measured lay before are those that are asked for now.

The probability integral transform of a measurement is what its foretold distribution gave to values up to it. Were all
distributions right, transforms would be uniform (Dawid 1984); where they are not, the quantile to ask for at level p
is the p-quantile of the transforms that were seen (Kuleshov, Fenner and Ermon 2018; as a conformal interval:
Chernozhukov, Wüthrich and Zhu 2021).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Recalibration:
    """Transforms (m,), ascending, and their weights (m,), which sum to m."""

    transforms: Array
    weights: Array

    @classmethod
    def of(cls, transforms: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> "Recalibration":
        """Return what transforms of m measurements that the model did not see teach.

        Raises:
            ValueError: there is none, or one does not lie between 0 and 1.
        """
        seen = np.asarray(transforms, float)
        if not len(seen) or not ((seen >= 0) & (seen <= 1)).all():
            raise ValueError("recalibration needs transforms between 0 and 1, and at least one")
        counted = np.ones(len(seen)) if weights is None else np.asarray(weights, float)
        order = np.argsort(seen, kind="stable")
        return cls(seen[order], counted[order] * len(seen) / counted.sum())

    def upper(self, level: float) -> float:
        """Return the level to ask for so that a new measurement lies at or below with probability ``level`` at least.

        It is the transform of rank level·(m + 1); 1 where that rank is above m.
        """
        rank = level * (len(self.transforms) + 1)
        place = int(np.searchsorted(np.cumsum(self.weights), rank - 1e-9))
        return float(self.transforms[place]) if place < len(self.transforms) else 1.0

    def lower(self, level: float) -> float:
        """Return the level to ask for so that a new measurement lies below with probability ``level`` at most."""
        rank = level * (len(self.transforms) + 1)
        place = int(np.searchsorted(np.cumsum(self.weights), rank + 1e-9)) - 1
        return float(self.transforms[place]) if place >= 0 else 0.0

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name."""
        return {"transforms": self.transforms, "weights": self.weights}

    @classmethod
    def load(cls, state: dict[str, npt.NDArray[Any]]) -> "Recalibration":
        """Return what was dumped."""
        return cls(np.asarray(state["transforms"], float), np.asarray(state["weights"], float))
