"""Intervals and upper bounds whose coverage was measured: conformal prediction on log errors, apart for each scale.

An error is ln(measured ÷ predicted) of a run that the model did not see, in widths: how unsure the estimator is of it.
Where a scale has enough runs the bound is the conformal quantile of its own errors, which holds whatever their
distribution; where it has few, the scale of its errors is shrunk towards that of extrapolations that were tried (the
largest configurations held out) and Student's t is used. A row that lies outside what was fitted may be off by as much
more as those extrapolations were, beside what the estimator said of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from leadline.uncertainty.conformal_groups import OTHER, Group, extrapolation, group_of, prior_of, weights_of

Array = npt.NDArray[np.float64]
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
class Calibration:
    """Bounds around points: ``power`` and ``typical`` make the width of a row, ``groups`` hold its quantiles.

    ``error`` is what errors usually are, for rows of which the estimator does not say how unsure it is.
    """

    power: float
    typical: float
    error: float
    groups: dict[str, Group]

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
        outside = self.groups[OTHER].quantile(tail, below=below) * _doubt(spreads, far, self.error)
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

    def widened(self, factor: float) -> "Calibration":
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
    def load(cls, state: dict[str, npt.NDArray[Any]]) -> "Calibration":
        """Return what was dumped."""
        power, typical, error = (float(one) for one in state["width"])
        names = [str(one) for one in state["groups"]]
        groups = {name: Group.load(state, f"{number}.") for number, name in enumerate(names)}
        return cls(power, typical, error, groups)


def calibrate(residuals: Residuals) -> Calibration:
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
    return Calibration(power, typical, error, _groups(residuals, power, typical, error))


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


def _groups(residuals: Residuals, power: float, typical: float, error: float) -> dict[str, Group]:
    """Return the errors of each scale, and how far extrapolations were off in terms of the estimator's own doubt.

    The few runs of a scale are shrunk to the errors of the other scales: those within, or those of their extrapolations
    where these are larger.
    """
    width = _width(residuals.spread, power, typical)
    errors = residuals.log_error / width
    weights = weights_of(residuals.configuration, residuals.blocked, residuals.scale)
    found = {}
    for name in np.unique(residuals.scale[~residuals.blocked]):
        own = ~residuals.blocked & (residuals.scale == name)
        elsewhere = residuals.scale != name
        prior = prior_of(errors, weights, [elsewhere & ~residuals.blocked, elsewhere & residuals.blocked])
        found[str(name)] = group_of(errors[own], weights[own], width[own], prior)
    doubted = residuals.log_error / _doubt(residuals.spread, _far(residuals.beyond), error)
    tried = residuals.blocked if residuals.blocked.any() else ~residuals.blocked
    return {**found, OTHER: extrapolation(doubted[tried], weights[tried])}


def _power(inside: Residuals, typical: float) -> float:
    """Return the power of the spread under which the errors are likeliest, as normal ones of one unknown scale."""

    def unlikelihood(power: float) -> float:
        width = _width(inside.spread, power, typical)
        scale = np.sqrt(np.mean((inside.log_error / width) ** 2))
        return float(np.mean(np.log(width)) + np.log(max(scale, 1e-12)))

    return min(POWERS, key=unlikelihood)
