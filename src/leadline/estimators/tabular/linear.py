"""Multiple linear regression, held back by a ridge penalty that leave-one-out errors choose."""

from dataclasses import dataclass

import numpy as np

from leadline.estimators.tabular.ports import Array, State
from leadline.estimators.tabular.states import floats

PENALTIES = tuple(10.0**power for power in (-6, -5, -4, -3, -2, -1, 0))
"""Tried ridge penalties, per row."""


@dataclass(frozen=True, slots=True)
class Plane:
    """``intercept + x · slopes``."""

    intercept: float
    slopes: Array

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the plane's height at each row; it believes no spread."""
        return self.intercept + x @ self.slopes, np.full(len(x), np.nan)

    def dump(self) -> State:
        """Return the plane as arrays."""
        return {"intercept": np.array([self.intercept]), "slopes": self.slopes}


@dataclass(frozen=True, slots=True)
class Ridge:
    """Least squares with a penalty on the slopes (Hoerl and Kennard 1970)."""

    least: int = 6

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Plane:  # noqa: ARG002 - nothing is drawn
        """Fit a plane; the penalty is the one of least leave-one-out error, which has a closed form."""
        root = np.sqrt(weight)[:, None]
        centre, mean = np.average(x, axis=0, weights=weight), float(np.average(y, weights=weight))
        inside, target = root * (x - centre), root[:, 0] * (y - mean)
        left, sizes, right = np.linalg.svd(inside, full_matrices=False)
        share = weight / weight.sum()
        best: tuple[float, Array] = (np.inf, np.zeros(x.shape[1]))
        for penalty in PENALTIES:
            kept = sizes**2 / (sizes**2 + penalty * len(y))
            fitted = left @ (kept * (left.T @ target))
            leverage = np.minimum(left**2 @ kept + share, 1 - 1e-9)
            error = float(np.mean(((target - fitted) / (1 - leverage)) ** 2))
            if error < best[0]:
                slopes = right.T @ (
                    np.divide(kept, sizes, out=np.zeros_like(sizes), where=sizes > 0) * (left.T @ target)
                )
                best = (error, slopes)
        return Plane(mean - float(centre @ best[1]), best[1])

    def load(self, state: State) -> Plane:
        """Return the plane that ``dump`` gave."""
        return Plane(float(floats(state["intercept"])[0]), floats(state["slopes"]))
