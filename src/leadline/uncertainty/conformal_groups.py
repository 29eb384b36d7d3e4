"""The errors of one group (a scale) and their quantiles: its own where it has enough, shrunk to others' where not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

OTHER = "*"
"""The group of a scale of which no run was seen."""
PRIOR_COUNTS_AS = 4.0
"""As many configurations of its own as what is known from elsewhere weighs in the scale of a group's errors."""
TAILS: Array = np.geomspace(0.5, 1e-4, 65)
"""Where Student's quantiles are kept, so that asking needs no scipy; between them the logarithm is interpolated."""


@dataclass(frozen=True, slots=True)
class Group:
    """Errors of one scale, in widths.

    ``errors`` are sorted, shape (m,); ``weights`` sum to the number of configurations. ``student`` are the upper
    quantiles at ``TAILS`` of the t distribution with the group's scale and degrees of freedom.
    """

    errors: Array
    weights: Array
    student: Array

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
        return {"errors": self.errors, "weights": self.weights, "student": self.student}

    @classmethod
    def load(cls, state: Mapping[str, npt.NDArray[Any]], prefix: str) -> "Group":
        """Return what was dumped under names that begin with ``prefix``."""
        return cls(*(np.asarray(state[prefix + name], float) for name in ("errors", "weights", "student")))


def group_of(groups: Mapping[str, Group], scale: str) -> Group:
    """Return the group of a scale, or that of scales never seen."""
    return groups.get(scale, groups[OTHER])


def grouped(errors: Array, scale: npt.NDArray[np.str_], blocked: npt.NDArray[np.bool_],
            configuration: npt.NDArray[np.str_]) -> dict[str, Group]:  # fmt: skip
    """Return scale → its errors with the t distribution shrunk to what is known from elsewhere; all of shape (n,).

    Elsewhere are the other scales and the extrapolations that were tried: the larger of the two, so that errors within
    do not speak for those beyond. Errors of ``blocked`` rows belong to no scale.
    """
    weights = _weights(configuration, blocked, scale)
    found = {}
    for name in np.unique(scale[~blocked]):
        own = ~blocked & (scale == name)
        others = [
            _scale_of(errors[part], weights[part]) for part in (~blocked & (scale != name), blocked) if part.any()
        ]
        order = np.argsort(errors[own])
        found[str(name)] = _group(errors[own][order], weights[own][order], max(others, default=None))
    everywhere = [_scale_of(errors[part], weights[part]) for part in (~blocked, blocked) if part.any()]
    return {**found, OTHER: _group(np.empty(0), np.empty(0), max(everywhere))}


def _group(errors: Array, weights: Array, prior: tuple[float, float] | None) -> Group:
    """Return a group; ``prior`` is a scale of errors from elsewhere and from how many configurations it comes."""
    from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s, needed to calibrate and never to ask

    scale, counts = prior or (0.0, 0.0)
    counts = min(counts, PRIOR_COUNTS_AS)
    freedom = counts + float(weights.sum())
    variance = (counts * scale**2 + float(np.sum(weights * errors**2))) / freedom
    return Group(errors, weights, np.sqrt(variance) * stdtrit(freedom, 1 - TAILS))


def _scale_of(errors: Array, weights: Array) -> tuple[float, float]:
    """Return the root mean square, no error counted as above four times what is usual, and how many there are."""
    usual = 4 * 1.4826 * float(np.median(np.abs(errors)))
    clipped = np.minimum(np.abs(errors), usual) if usual > 0 else np.abs(errors)
    return float(np.sqrt(np.average(clipped**2, weights=weights))), float(weights.sum())


def _weights(configuration: npt.NDArray[np.str_], blocked: npt.NDArray[np.bool_], scale: npt.NDArray[np.str_]) -> Array:
    """Return one ÷ the repeats of each row's configuration."""
    names = np.char.add(np.char.add(np.where(blocked, "b", "i"), np.char.add(scale, "\n")), configuration)
    _, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / counts[place]
    return weights
