"""Intervals from how far extrapolations that were tried were off, in terms of the estimator's own doubt.

A score is |ln(measured ÷ predicted)| ÷ doubt. It has no sign: whether an extrapolation is too high or too low depends
on where it starts, so that the side on which one was off says nothing of another's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEAST_DOUBT = 1e-6
"""A doubt below this counts as this: an estimator that claims to know exactly is not believed."""
BEYOND_SEEN = 1.5
"""Where too few scores were made for a level, the largest counts so many times."""


@dataclass(frozen=True, slots=True)
class NormalizedScores:
    """Scores (m,), ascending, and their weights (m,), which sum to m."""

    scores: Array
    weights: Array

    @classmethod
    def of(
        cls, log_error: npt.ArrayLike, doubt: npt.ArrayLike, unit: Sequence[str] | None = None
    ) -> "NormalizedScores":
        """Return the scores of m errors, ln(measured ÷ predicted), that the estimator doubted by so much.

        ``unit`` names errors that go wrong together (those of one curve): each unit weighs as much as any other,
        however many errors it has. What is asked later is of the same units, so that each error counts as one run.

        Raises:
            ValueError: there is no error, or one is not finite.
        """
        errors = np.abs(np.asarray(log_error, float))
        if not len(errors) or not np.isfinite(errors).all():
            raise ValueError("scores need errors of held-out runs, all finite, and at least one")
        _, place, counts = np.unique(
            np.arange(len(errors)) if unit is None else np.asarray(unit, np.str_),
            return_inverse=True,
            return_counts=True,
        )
        scores = errors / np.maximum(np.asarray(doubt, float), LEAST_DOUBT)
        order = np.argsort(scores)
        weights = len(errors) / len(counts) / counts[place]
        return cls(scores[order], weights[order])

    def factor(self, level: float) -> float:
        """Return by how many doubts an error is exceeded with probability 1 − ``level`` at most.

        Of m scores it is the conformal quantile of rank level·(m + 1) (Vovk et al. 2005); beyond all scores where that
        rank is above m.
        """
        rank = level * (len(self.scores) + 1)
        if rank > len(self.scores) + 1e-9:
            return BEYOND_SEEN * float(self.scores[-1])
        return float(self.scores[min(int(np.searchsorted(np.cumsum(self.weights), rank - 1e-9)), len(self.scores) - 1)])

    def interval(
        self, point: npt.ArrayLike, doubt: npt.ArrayLike, level: float, believed: npt.ArrayLike = 0.0
    ) -> tuple[Array, Array]:
        """Return the ends (n,) of central intervals of ``level`` (0 to 1) around points of so much doubt.

        ``believed`` is the deviation of what no try can tell (a device of a new kind), taken as normal.
        """
        normal = NormalDist().inv_cdf((1 + level) / 2)
        half = np.hypot(self.factor(level) * np.maximum(np.asarray(doubt, float), LEAST_DOUBT),
                        normal * np.asarray(believed, float))  # fmt: skip
        width, points = np.exp(half), np.asarray(point, float)
        return points / width, points * width

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name."""
        return {"scores": self.scores, "weights": self.weights}

    @classmethod
    def load(cls, state: dict[str, npt.NDArray[Any]]) -> "NormalizedScores":
        """Return what was dumped."""
        return cls(np.asarray(state["scores"], float), np.asarray(state["weights"], float))
