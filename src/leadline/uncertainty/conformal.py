"""The errors of one group (a scale) and their quantiles: its own where it has enough, shrunk to others' where not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EXTRAPOLATIONS = "*"
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
class ConformalGroup:
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
    def load(cls, state: Mapping[str, npt.NDArray[Any]], prefix: str) -> "ConformalGroup":
        """Return what was dumped under names that begin with ``prefix``."""
        errors, weights, student = (
            np.asarray(state[prefix + name], float) for name in ("errors", "weights", "student")
        )
        return cls(errors, weights, student, float(state[prefix + "least_width"][0]))


def make_group(errors: Array, weights: Array, width: Array, prior: tuple[float, float]) -> ConformalGroup:
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
    return ConformalGroup(errors[order], weights[order], _student(freedom, np.sqrt(variance)), least)


def make_extrapolation_group(errors: Array, weights: Array) -> ConformalGroup:
    """Return the group of extrapolations; ``errors`` are those that were tried, in terms of the estimator's doubt.

    They go wrong together, so that many count as few; and the estimator's doubt is what is thought before any.
    """
    scale, counts = _scale_of(errors, weights)
    variance = (PRIOR_COUNTS_AS + counts * scale**2) / (PRIOR_COUNTS_AS + counts)
    return ConformalGroup(
        np.empty(0), np.empty(0), _student(PRIOR_COUNTS_AS, max(float(np.sqrt(variance)), LEAST_DOUBT))
    )


def prior_scale(errors: Array, weights: Array, parts: Sequence[npt.NDArray[np.bool_]]) -> tuple[float, float]:
    """Return the larger of the scales of several parts of the errors, with the configurations it comes from.

    So errors within do not speak for those beyond. (0, 0) where all parts are empty.
    """
    return max((_scale_of(errors[part], weights[part]) for part in parts if part.any()), default=(0.0, 0.0))


def configuration_weights(
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


Texts = npt.NDArray[np.str_]

POWERS = (0.0, 0.5, 1.0)
"""How far the estimator's own spread is believed: not at all, by its root, wholly."""
DEFAULT_GROWTH = 0.3
"""The error that each fitted range beyond adds, where the estimator does not say how unsure it is."""
MOST_BEYOND = 10.0
"""Where a row lies farther outside, or is of a category never seen, it counts as here."""
WIDEST = 5.0
"""The logarithm of the farthest that a bound may lie from its point."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """Errors of n runs, each predicted by a model that was fitted without its configuration; arrays of shape (n,).

    ``spread`` and ``beyond`` are as the estimator gave them (``Predicted``). ``scale`` names the group whose errors are
    alike. ``blocked`` marks predictions of the largest configurations by a model that was fitted on smaller ones only.
    Repeats share their ``configuration``, and count as one.
    """

    log_error: Array
    spread: Array
    beyond: Array
    scale: Texts
    blocked: npt.NDArray[np.bool_]
    configuration: Texts

    @classmethod
    def of(
        cls,
        measured: npt.ArrayLike,
        point: npt.ArrayLike,
        *,
        spread: npt.ArrayLike | None = None,
        beyond: npt.ArrayLike | None = None,
        scale: Sequence[str] | str = "",
        blocked: npt.ArrayLike | bool = False,
        configuration: Sequence[str] | None = None,
    ) -> "Residuals":
        """Return the errors of predictions ``point`` of what was ``measured``, both above zero."""
        errors = np.log(np.asarray(measured, float)) - np.log(np.asarray(point, float))
        n = len(errors)
        return cls(
            errors,
            np.full(n, np.nan) if spread is None else np.asarray(spread, float),
            np.zeros(n) if beyond is None else np.asarray(beyond, float),
            np.broadcast_to(np.asarray(scale, np.str_), n),
            np.broadcast_to(np.asarray(blocked, bool), n),
            np.asarray([str(i) for i in range(n)] if configuration is None else configuration, np.str_),
        )

    @classmethod
    def joined(cls, *parts: "Residuals") -> "Residuals":
        """Return the errors of several folds as one."""
        return cls(
            np.concatenate([one.log_error for one in parts]),
            np.concatenate([one.spread for one in parts]),
            np.concatenate([one.beyond for one in parts]),
            np.concatenate([one.scale for one in parts]),
            np.concatenate([one.blocked for one in parts]),
            np.concatenate([one.configuration for one in parts]),
        )

    def at(self, chosen: npt.NDArray[np.bool_]) -> "Residuals":
        """Return the errors where ``chosen`` is true."""
        return Residuals(
            self.log_error[chosen],
            self.spread[chosen],
            self.beyond[chosen],
            self.scale[chosen],
            self.blocked[chosen],
            self.configuration[chosen],
        )


@dataclass(frozen=True, slots=True)
class IntervalCalibration:
    """Bounds around points: ``power`` and ``typical`` make the width of a row, ``groups`` hold its quantiles.

    ``error`` is what errors usually are, for rows of which the estimator does not say how unsure it is.
    """

    power: float
    typical: float
    error: float
    groups: dict[str, ConformalGroup]

    def interval(
        self,
        point: npt.ArrayLike,
        spread: npt.ArrayLike,
        beyond: npt.ArrayLike,
        scale: Sequence[str] | str,
        level: float,
    ) -> tuple[Array, Array]:
        """Return the low and the high ends of central intervals of ``level`` (0 to 1), each of the points' shape (n,).

        A scale of which no run was seen has the errors of extrapolations.
        """
        tail = (1 - level) / 2
        return (
            self._bound(point, spread, beyond, scale, tail, below=True),
            self._bound(point, spread, beyond, scale, tail, below=False),
        )

    def upper(
        self,
        point: npt.ArrayLike,
        spread: npt.ArrayLike,
        beyond: npt.ArrayLike,
        scale: Sequence[str] | str,
        risk: float,
    ) -> Array:
        """Return what is exceeded with probability ``risk`` (0 to 1), of the points' shape (n,)."""
        return self._bound(point, spread, beyond, scale, risk, below=False)

    def _bound(
        self,
        point: npt.ArrayLike,
        spread: npt.ArrayLike,
        beyond: npt.ArrayLike,
        scale: Sequence[str] | str,
        tail: float,
        *,
        below: bool,
    ) -> Array:
        if not 0 < tail < 1:
            raise ValueError(f"a risk lies between 0 and 1, and a level too: {tail} does not")
        points = np.asarray(point, float)
        scales = np.broadcast_to(np.asarray(scale, np.str_), points.shape)
        found: Array = np.empty(points.shape)
        spreads = np.broadcast_to(np.asarray(spread, float), points.shape)
        far = np.broadcast_to(_far(np.asarray(beyond, float)), points.shape)
        width = _width(spreads, self.power, self.typical)
        outside = self.groups[EXTRAPOLATIONS].quantile(tail, below=below) * _doubt(spreads, far, self.error)
        for name in np.unique(scales):
            rows, group = scales == name, self.groups.get(str(name))
            if group is None:
                found[rows] = outside[rows]
                continue
            within = np.maximum(width[rows], group.least_width) * group.quantile(tail, below=below)
            extra = np.minimum(far[rows], 1.0) * outside[rows]
            alike = within * extra > 0
            found[rows] = np.where(alike, np.sign(extra) * np.hypot(within, extra), within + extra)
        return points * np.exp(np.clip(found, -WIDEST, WIDEST))

    def widened(self, factor: float) -> "IntervalCalibration":
        """Return bounds that lie ``factor`` times as far from their points, in logarithms."""
        groups = {
            name: replace(one, errors=factor * one.errors, student=factor * one.student)
            for name, one in self.groups.items()
        }
        return replace(self, groups=groups)

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole as named arrays without objects."""
        found: dict[str, npt.NDArray[Any]] = {
            "width": np.asarray([self.power, self.typical, self.error]),
            "groups": np.asarray(list(self.groups), np.str_),
        }
        for number, one in enumerate(self.groups.values()):
            found |= {f"{number}.{name}": array for name, array in one.dump().items()}
        return found

    @classmethod
    def load(cls, state: dict[str, npt.NDArray[Any]]) -> "IntervalCalibration":
        """Return what was dumped."""
        power, typical, error = (float(one) for one in state["width"])
        names = [str(one) for one in state["groups"]]
        groups = {name: ConformalGroup.load(state, f"{number}.") for number, name in enumerate(names)}
        return cls(power, typical, error, groups)


def calibrate(residuals: Residuals) -> IntervalCalibration:
    """Learn how wide the bounds must be from errors of runs that the models did not see.

    Raises:
        ValueError: there is no error to learn from, or one is not finite.
    """
    if len(residuals.log_error) == 0 or not np.isfinite(residuals.log_error).all():
        raise ValueError("calibration needs errors of held-out runs, all finite, and at least one")
    inside = residuals.at(~residuals.blocked)
    basis = inside if len(inside.log_error) else residuals
    known = basis.spread[np.isfinite(basis.spread) & (basis.spread > 0)]
    typical = float(np.median(known)) if len(known) else 1.0
    power = _power(basis, typical) if len(known) else 0.0
    error = float(np.sqrt(np.mean(basis.log_error**2)))
    return IntervalCalibration(power, typical, error, _groups(residuals, power, typical, error))


def _width(spread: Array, power: float, typical: float) -> Array:
    """Return how much wider errors of each row are than a typical row's, as far as the estimator can tell."""
    own = np.where(np.isfinite(spread) & (spread > 0), spread, typical) / typical
    # a spread of nearly nothing is not believed: the width is at least a quarter of the typical one
    width: Array = np.hypot(own, 0.25) ** power
    return width


def _far(beyond: Array) -> Array:
    found: Array = np.minimum(np.where(np.isnan(beyond), 0.0, beyond), MOST_BEYOND)
    return found


def _doubt(spread: Array, far: Array, error: float) -> Array:
    """Return how unsure the estimator is of each row, also where it does not say."""
    doubt: Array = np.where(np.isfinite(spread) & (spread > 0), spread, np.hypot(error, DEFAULT_GROWTH * far))
    return np.maximum(doubt, 1e-9)


def _groups(residuals: Residuals, power: float, typical: float, error: float) -> dict[str, ConformalGroup]:
    """Return the errors of each scale, and how far extrapolations were off in terms of the estimator's own doubt.

    The few runs of a scale are shrunk to the errors of the other scales: those within, or those of their extrapolations
    where these are larger.
    """
    width = _width(residuals.spread, power, typical)
    errors = residuals.log_error / width
    weights = configuration_weights(residuals.configuration, residuals.blocked, residuals.scale)
    found = {}
    for name in np.unique(residuals.scale[~residuals.blocked]):
        own = ~residuals.blocked & (residuals.scale == name)
        elsewhere = residuals.scale != name
        prior = prior_scale(errors, weights, [elsewhere & ~residuals.blocked, elsewhere & residuals.blocked])
        found[str(name)] = make_group(errors[own], weights[own], width[own], prior)
    doubted = residuals.log_error / _doubt(residuals.spread, _far(residuals.beyond), error)
    tried = residuals.blocked if residuals.blocked.any() else ~residuals.blocked
    return {**found, EXTRAPOLATIONS: make_extrapolation_group(doubted[tried], weights[tried])}


def _power(inside: Residuals, typical: float) -> float:
    """Return the power of the spread under which the errors are likeliest, as normal ones of one unknown scale."""

    def unlikelihood(power: float) -> float:
        width = _width(inside.spread, power, typical)
        scale = np.sqrt(np.mean((inside.log_error / width) ** 2))
        return float(np.mean(np.log(width)) + np.log(max(scale, 1e-12)))

    return min(POWERS, key=unlikelihood)
