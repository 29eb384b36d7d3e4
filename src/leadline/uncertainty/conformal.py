"""Intervals and upper bounds whose coverage was measured: conformal prediction on log errors, apart for each scale.

An error is ln(measured ÷ predicted) of a run that the model did not see. It is divided by how unsure the estimator says
it is, and by how much errors were seen to grow outside what was fitted. Where a scale has enough runs the bound is the
conformal quantile of its own errors, which holds whatever their distribution; where it has few, the scale of its errors
is shrunk towards that of extrapolations that were tried (the largest configurations held out) and Student's t is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leadline.uncertainty.conformal_groups import Group, group_of, grouped

Array = npt.NDArray[np.float64]
Texts = npt.NDArray[np.str_]

POWERS = (0.0, 0.5, 1.0)
"""How far the estimator's own spread is believed: not at all, by its root, wholly."""
DEFAULT_GROWTH = 1.0
"""How much wider errors become, in times the width within, for each fitted range beyond; before any was seen."""
GROWTH_COUNTS_AS = 4.0
"""As many extrapolations as the default weighs."""
MOST_BEYOND = 10.0
"""Where a row lies farther outside, or is of a category never seen, the width is that of here."""


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
    """Bounds around points: ``power``, ``typical`` and ``growth`` make the width of a row, ``groups`` its quantiles."""

    power: float
    typical: float
    growth: float
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
        quantiles = {name: group_of(self.groups, name).quantile(tail, below=below) for name in np.unique(scales)}
        width = _width(np.asarray(spread, float), np.asarray(beyond, float), self.power, self.typical, self.growth)
        found: Array = points * np.exp(width * np.asarray([quantiles[name] for name in scales], float))
        return found

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole as named arrays without objects."""
        found: dict[str, npt.NDArray[Any]] = {
            "width": np.asarray([self.power, self.typical, self.growth]),
            "groups": np.asarray(list(self.groups), np.str_),
        }
        for number, group in enumerate(self.groups.values()):
            found |= {f"{number}.{name}": array for name, array in group.dump().items()}
        return found

    @classmethod
    def load(cls, state: dict[str, npt.NDArray[Any]]) -> "Calibration":
        """Return what was dumped."""
        power, typical, growth = (float(one) for one in state["width"])
        names = [str(one) for one in state["groups"]]
        groups = {name: Group.load(state, f"{number}.") for number, name in enumerate(names)}
        return cls(power, typical, growth, groups)


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
    growth = _growth(residuals, basis, power, typical)
    width = _width(residuals.spread, residuals.beyond, power, typical, growth)
    groups = grouped(residuals.log_error / width, residuals.scale, residuals.blocked, residuals.configuration)
    return Calibration(power, typical, growth, groups)


def cross_interval(
    fold_points: npt.ArrayLike, fold_of: Sequence[int], log_errors: npt.ArrayLike, level: float
) -> tuple[Array, Array]:
    """Return CV+ intervals (Barber et al. 2021), which cover at least 2·level - 1 whatever the model and distribution.

    Args:
        fold_points: what each fold's model predicts for the new rows, shape (folds, n); with as many folds as runs it
            is the jackknife+.
        fold_of: the fold that each of m runs was left out of, shape (m,).
        log_errors: ln(measured ÷ predicted) of each by its fold's model, shape (m,).
        level: 0 to 1.
    """
    points = np.log(np.asarray(fold_points, float))[np.asarray(fold_of, int)]
    sizes = np.abs(np.asarray(log_errors, float))[:, None]
    m = len(sizes)
    rank = int(np.ceil(level * (m + 1) - 1e-9))
    if rank > m:
        return np.zeros(points.shape[1]), np.full(points.shape[1], np.inf)
    low = np.sort(points - sizes, axis=0)[m - rank]
    high = np.sort(points + sizes, axis=0)[rank - 1]
    return np.exp(low), np.exp(high)


def _width(spread: Array, beyond: Array, power: float, typical: float, growth: float) -> Array:
    """Return by how much errors of each row are wider than those of a typical row within what was fitted."""
    own = np.where(np.isfinite(spread) & (spread > 0), spread, typical) / typical
    far = np.minimum(np.where(np.isnan(beyond), 0.0, beyond), MOST_BEYOND)
    # a spread of nearly nothing is not believed: the width is at least a quarter of the typical one
    width: Array = np.hypot(own, 0.25) ** power * (1 + growth * far)
    return width


def _power(inside: Residuals, typical: float) -> float:
    """Return the power of the spread under which the errors are likeliest, as normal ones of one unknown scale."""

    def unlikelihood(power: float) -> float:
        width = _width(inside.spread, np.zeros_like(inside.spread), power, typical, 0.0)
        scale = np.sqrt(np.mean((inside.log_error / width) ** 2))
        return float(np.mean(np.log(width)) + np.log(max(scale, 1e-12)))

    return min(POWERS, key=unlikelihood)


def _growth(residuals: Residuals, inside: Residuals, power: float, typical: float) -> float:
    """Return how errors grow with the distance beyond what was fitted, by least squares, shrunk to the default."""
    outside = residuals.at((residuals.beyond > 0) & np.isfinite(residuals.beyond))
    within = inside.at(inside.beyond == 0)
    if len(outside.log_error) == 0 or len(within.log_error) == 0:
        return DEFAULT_GROWTH
    plain = _width(within.spread, within.beyond, power, typical, 0.0)
    unit = max(float(np.mean(np.abs(within.log_error / plain))), 1e-12)
    width = _width(outside.spread, np.zeros_like(outside.beyond), power, typical, 0.0)
    excess = np.abs(outside.log_error / width) / unit - 1
    far = np.minimum(outside.beyond, MOST_BEYOND)
    weight = GROWTH_COUNTS_AS * float(np.mean(far**2))
    slope = (float(np.sum(far * excess)) + weight * DEFAULT_GROWTH) / (float(np.sum(far**2)) + weight)
    return max(slope, 0.0)
