"""The errors of one group (a scale) and their quantiles: its own where it has enough, shrunk to others' where not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

OTHER = "*"
"""The group of extrapolations, whose errors are in terms of the estimator's own doubt."""
PRIOR_COUNTS_AS = 3.0
"""As many configurations of its own as what is known from elsewhere weighs in the scale of a group's errors."""
LEAST_DOUBT = 0.5
"""The share of the estimator's own doubt that is kept, however well the extrapolations that were tried went."""
FEW = 19
"""Configurations below which the conformal quantile of a risk of 5 % does not exist."""
TAILS: Array = np.geomspace(0.5, 1e-4, 65)
"""Where Student's quantiles are kept, so that asking needs no scipy; between them the logarithm is interpolated."""


@dataclass(frozen=True, slots=True)
class Group:
    """Errors of one scale, in widths.

    ``errors`` are sorted, shape (m,); ``weights`` sum to the number of configurations. ``student`` are the upper
    quantiles at ``TAILS`` of the t distribution with the group's scale and degrees of freedom. No row is thought surer
    than ``least_width``: in a group of few the estimator's own doubts have not been tried.
    """

    errors: Array
    weights: Array
    student: Array
    least_width: float = 0.0

    @property
    def configurations(self) -> float:
        """How many runs there are, repeats of one counted as one."""
        return float(self.weights.sum())

    def quantile(self, tail: float, *, below: bool) -> float:
        """Return what an error exceeds with probability ``tail`` at most (``below``: falls short of).

        With n configurations the conformal quantile has rank (1 - tail)·(n + 1) (Vovk et al. 2005), and repeats share
        the weight of one (Lee, Barber and Willett 2023); where that rank is above n, Student's t stands in, beyond
        every error that was seen.
        """
        sign = -1.0 if below else 1.0
        rank = (1 - tail) * (self.configurations + 1)
        errors, weights = (-self.errors[::-1], self.weights[::-1]) if below else (self.errors, self.weights)
        if rank > self.configurations + 1e-9:
            return sign * max(self._student(tail), errors[-1] if len(errors) else 0.0)
        place = int(np.searchsorted(np.cumsum(weights), rank - 1e-9))
        return sign * float(errors[min(place, len(errors) - 1)])

    def _student(self, tail: float) -> float:
        if tail > 0.5:
            return -self._student(1 - tail)
        return float(np.interp(-np.log(tail), -np.log(TAILS), self.student))

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name."""
        return {
            "errors": self.errors,
            "weights": self.weights,
            "student": self.student,
            "least_width": np.asarray([self.least_width]),
        }

    @classmethod
    def load(cls, state: Mapping[str, npt.NDArray[Any]], prefix: str) -> "Group":
        """Return what was dumped under names that begin with ``prefix``."""
        errors, weights, student = (
            np.asarray(state[prefix + name], float) for name in ("errors", "weights", "student")
        )
        return cls(errors, weights, student, float(state[prefix + "least_width"][0]))


def group_of(errors: Array, weights: Array, width: Array, prior: tuple[float, float]) -> Group:
    """Return a group of errors in widths, each of shape (m,).

    Args:
        errors: of the group's own runs.
        weights: one ÷ the repeats of each one's configuration.
        width: of each.
        prior: the scale of errors from elsewhere, and from how many configurations it comes.
    """
    scale, counts = prior
    counts = min(counts, PRIOR_COUNTS_AS)
    freedom = counts + float(weights.sum())
    variance = (counts * scale**2 + float(np.sum(weights * errors**2))) / freedom
    order = np.argsort(errors)
    least = float(np.median(width)) if 0 < weights.sum() < FEW else 0.0
    return Group(errors[order], weights[order], _student(freedom, np.sqrt(variance)), least)


def extrapolation(errors: Array, weights: Array) -> Group:
    """Return the group of extrapolations; ``errors`` are those that were tried, in terms of the estimator's doubt.

    They go wrong together, so that many count as few; and the estimator's doubt is what is thought before any.
    """
    scale, counts = _scale_of(errors, weights)
    variance = (PRIOR_COUNTS_AS + counts * scale**2) / (PRIOR_COUNTS_AS + counts)
    return Group(np.empty(0), np.empty(0), _student(PRIOR_COUNTS_AS, max(float(np.sqrt(variance)), LEAST_DOUBT)))


def prior_of(errors: Array, weights: Array, parts: Sequence[npt.NDArray[np.bool_]]) -> tuple[float, float]:
    """Return the larger of the scales of several parts of the errors, with the configurations it comes from.

    So errors within do not speak for those beyond. (0, 0) where all parts are empty.
    """
    return max((_scale_of(errors[part], weights[part]) for part in parts if part.any()), default=(0.0, 0.0))


def weights_of(
    configuration: npt.NDArray[np.str_], blocked: npt.NDArray[np.bool_], scale: npt.NDArray[np.str_]
) -> Array:
    """Return one ÷ the repeats of each row's configuration, apart for each scale and for extrapolations."""
    names = np.char.add(np.char.add(np.where(blocked, "b", "i"), np.char.add(scale, "\n")), configuration)
    _, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / counts[place]
    return weights


def _student(freedom: float, scale: float) -> Array:
    from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s, needed to calibrate and never to ask

    found: Array = scale * stdtrit(freedom, 1 - TAILS)
    return found


def _scale_of(errors: Array, weights: Array) -> tuple[float, float]:
    """Return the root mean square, no error counted as above four times what is usual, and how many there are."""
    usual = 4 * 1.4826 * float(np.median(np.abs(errors)))
    clipped = np.minimum(np.abs(errors), usual) if usual > 0 else np.abs(errors)
    return float(np.sqrt(np.average(clipped**2, weights=weights))), float(weights.sum())
