"""Intervals and upper bounds with measured coverage: conformal prediction on log errors, by scale.

An error is ln(measured ÷ predicted) of a held-out run, divided by the row's width, which grows with the estimator's own
spread. Where a scale has enough runs, a bound is the conformal quantile of its own errors, valid for any distribution.
Where it has few, Student's t is used, and its scale is shrunk towards that of the other errors. Outside the fitted
range, the errors of earlier extrapolations are added, relative to the estimator's own spread.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array, Columns, State, Stored, floats, nest, unnest
from leadline.estimators.tabular.tables import robust_deviation

EXTRAPOLATIONS = "*"
"""Name of the group of extrapolations, whose errors are relative to the estimator's own spread."""
PRIOR_COUNTS_AS = 3.0
"""Configurations that the prior from other groups weighs as much as."""
LEAST_SPREAD_SHARE = 0.5
"""Share of the estimator's own spread that is kept, however small the errors of extrapolations were."""
FEW = 19
"""Configurations below which no conformal quantile exists for a risk of 5 %."""
TAILS: Array = np.geomspace(0.5, 1e-4, 65)
"""Tails at which Student's quantiles are stored, so that prediction needs no scipy; logarithms are interpolated."""


class ConformalGroup(Stored):
    """Errors (m,) of one scale, sorted and relative to the widths of their rows.

    ``weights`` (m,) sum to the number of configurations. ``student`` has upper quantiles, at ``TAILS``, of the t
    distribution with the group's scale and degrees of freedom. ``least_width`` is the smallest width of a row: in a
    small group, a smaller spread of the estimator is not validated.
    """

    errors: Array
    weights: Array
    student: Array
    least_width: float = 0.0

    def quantile(self, tail: float, *, below: bool) -> float:
        """Return the value that an error exceeds with probability ``tail`` at most (``below``: falls short of).

        With n configurations, the conformal quantile has rank (1 - tail)·(n + 1) (Vovk et al. 2005), and repeats share
        the weight of one (Lee, Barber and Willett 2023). Where that rank exceeds n, it is the larger of Student's t
        and the largest error.
        """
        sign = -1.0 if below else 1.0
        configurations = float(self.weights.sum())
        rank = (1 - tail) * (configurations + 1)
        errors, weights = (-self.errors[::-1], self.weights[::-1]) if below else (self.errors, self.weights)
        if rank > configurations + 1e-9:
            return sign * max(self._student(tail), errors[-1] if len(errors) else 0.0)
        place = int(np.searchsorted(np.cumsum(weights), rank - 1e-9))
        return sign * float(errors[min(place, len(errors) - 1)])

    def _student(self, tail: float) -> float:
        if tail > 0.5:
            return -self._student(1 - tail)
        return float(np.interp(-np.log(tail), -np.log(TAILS), self.student))


def make_group(errors: Array, weights: Array, width: Array, prior: tuple[float, float]) -> ConformalGroup:
    """Return a group of errors (m,), which are relative to their ``width``.

    ``weights`` are 1 ÷ the repeats of each error's configuration. ``prior`` is the scale of the errors of other groups,
    and their number of configurations.
    """
    scale, counts = prior
    counts = min(counts, PRIOR_COUNTS_AS)
    freedom = counts + float(weights.sum())
    variance = (counts * scale**2 + float(np.sum(weights * errors**2))) / freedom
    order = np.argsort(errors)
    least = float(np.median(width)) if 0 < weights.sum() < FEW else 0.0
    return ConformalGroup(errors[order], weights[order], _student(freedom, np.sqrt(variance)), least)


def _student(freedom: float, scale: float) -> Array:
    from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s, needed to calibrate and never to predict

    return np.asarray(scale * stdtrit(freedom, 1 - TAILS))


def _scale_of(errors: Array, weights: Array) -> tuple[float, float]:
    """Return the root mean square of the errors, with outliers clipped at four robust deviations, and their number."""
    return robust_deviation(errors, weights), float(weights.sum())


Texts = npt.NDArray[np.str_]
Numbers = npt.ArrayLike
Names = Sequence[str] | str

POWERS = (0.0, 0.5, 1.0)
"""Powers of the estimator's own spread to choose from: ignore it, take its root, or all of it."""
DEFAULT_GROWTH = 0.3
"""Log error added for each fitted range outside, where the estimator gives no spread."""
MOST_BEYOND = 10.0
"""Largest distance outside that counts, also for an unknown category."""
WIDEST = 5.0
"""Largest logarithm of a bound ÷ its point."""


class Residuals(Columns):
    """Errors of n held-out runs; arrays of shape (n,).

    ``spread`` is the estimator's standard deviation of the logarithm, NaN where it gives none. ``beyond`` is the
    distance outside the fitted range, in ranges. ``scale`` names the group whose errors are alike. ``blocked`` runs are
    the largest, predicted from smaller ones only. Repeats share their ``configuration``, and count as one.
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
        scale: Names = "",
        blocked: npt.ArrayLike | bool = False,
        configuration: Sequence[str] | None = None,
    ) -> "Residuals":
        """Return the errors of the predictions ``point``; all values are above zero."""
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


class IntervalCalibration(Frozen):
    """Bounds around points, from the ``groups`` of errors by scale and that of extrapolations.

    A row's width is its spread over the ``typical`` one, to the ``power``. ``error`` is the root mean square log error,
    for rows without a spread.
    """

    power: float
    typical: float
    error: float
    groups: dict[str, ConformalGroup]

    def interval(
        self, point: Numbers, spread: Numbers, beyond: Numbers, scale: Names, level: float
    ) -> tuple[Array, Array]:
        """Return the low and high ends of central intervals, each of the points' shape (n,).

        Unknown scales have the errors of extrapolations.
        """
        low, high = (self.upper(point, spread, beyond, scale, (1 - level) / 2, below=below) for below in (True, False))
        return low, high

    def upper(
        self, point: Numbers, spread: Numbers, beyond: Numbers, scale: Names, risk: float, *, below: bool = False
    ) -> Array:
        """Return the values exceeded (``below``: not reached) with probability ``risk``, of the points' shape (n,)."""
        if not 0 < risk < 1:
            raise ValueError(f"a risk and a level must be between 0 and 1, not {risk}")
        points = np.asarray(point, float)
        scales = np.broadcast_to(np.asarray(scale, np.str_), points.shape)
        offsets: Array = np.empty(points.shape)
        spreads = np.broadcast_to(np.asarray(spread, float), points.shape)
        far = np.broadcast_to(_far(np.asarray(beyond, float)), points.shape)
        width = _width(spreads, self.power, self.typical)
        outside = self.groups[EXTRAPOLATIONS].quantile(risk, below=below) * _full_spread(spreads, far, self.error)
        for name in np.unique(scales):
            rows, group = scales == name, self.groups.get(str(name))
            if group is None:
                offsets[rows] = outside[rows]
                continue
            within = np.maximum(width[rows], group.least_width) * group.quantile(risk, below=below)
            extra = np.minimum(far[rows], 1.0) * outside[rows]
            # Independent errors on the same side of the point add in squares.
            same_side = within * extra > 0
            offsets[rows] = np.where(same_side, np.sign(extra) * np.hypot(within, extra), within + extra)
        return points * np.exp(np.clip(offsets, -WIDEST, WIDEST))

    def widened(self, factor: float) -> "IntervalCalibration":
        """Return bounds ``factor`` times as far from their points, in logarithms."""
        groups = {
            name: replace(group, errors=factor * group.errors, student=factor * group.student)
            for name, group in self.groups.items()
        }
        return replace(self, groups=groups)

    def dump(self) -> State:
        """Return the state as arrays by name."""
        state: State = {"width": np.asarray([self.power, self.typical, self.error]),
                        "groups": np.asarray(list(self.groups), np.str_)}  # fmt: skip
        for number, group in enumerate(self.groups.values()):
            state |= nest(str(number), group.dump())
        return state

    @classmethod
    def load(cls, state: State) -> "IntervalCalibration":
        """Restore a calibration from its state."""
        names = state["groups"].astype(str).tolist()
        groups = {name: ConformalGroup.load(unnest(str(number), state)) for number, name in enumerate(names)}
        power, typical, error = floats(state["width"]).tolist()
        return cls(power, typical, error, groups)


def calibrate(residuals: Residuals) -> IntervalCalibration:
    """Return the bounds that held-out errors justify.

    Raises:
        ValueError: there is no error, or one is not finite.
    """
    if len(residuals.log_error) == 0 or not np.isfinite(residuals.log_error).all():
        raise ValueError("calibration needs errors of held-out runs, all finite, and at least one")
    inside = residuals.at(~residuals.blocked)
    basis = inside if len(inside.log_error) else residuals
    spreads = basis.spread[np.isfinite(basis.spread) & (basis.spread > 0)]
    typical = float(np.median(spreads)) if len(spreads) else 1.0
    power = _power(basis, typical) if len(spreads) else 0.0
    error = float(np.sqrt(np.mean(basis.log_error**2)))
    return IntervalCalibration(power, typical, error, _groups(residuals, power, typical, error))


def _width(spread: Array, power: float, typical: float) -> Array:
    """Return the width of each row relative to a typical row, from the estimator's spread."""
    relative = np.where(np.isfinite(spread) & (spread > 0), spread, typical) / typical
    # A spread of almost nothing is not credible: the width is at least a quarter of the typical one.
    return np.asarray(np.hypot(relative, 0.25) ** power)


def _far(beyond: Array) -> Array:
    return np.asarray(np.minimum(np.where(np.isnan(beyond), 0.0, beyond), MOST_BEYOND))


def _full_spread(spread: Array, far: Array, error: float) -> Array:
    """Return the spread of each row, with a substitute where the estimator gives none."""
    full: Array = np.where(np.isfinite(spread) & (spread > 0), spread, np.hypot(error, DEFAULT_GROWTH * far))
    return np.maximum(full, 1e-9)


def _groups(residuals: Residuals, power: float, typical: float, error: float) -> dict[str, ConformalGroup]:
    """Return the errors of each scale, and those of extrapolations relative to the estimator's spread.

    A scale with few runs is shrunk towards the errors of the other scales, or of their extrapolations if larger.
    """
    width = _width(residuals.spread, power, typical)
    errors = residuals.log_error / width
    # Repeats of a configuration share the weight of one, by scale and separately for extrapolations.
    names = np.char.add(np.where(residuals.blocked, "b", "i"), np.char.add(residuals.scale, "\n"))
    _, place, counts = np.unique(np.char.add(names, residuals.configuration), return_inverse=True, return_counts=True)
    weights = 1.0 / counts[place]
    groups = {}
    for name in np.unique(residuals.scale[~residuals.blocked]):
        inside = ~residuals.blocked & (residuals.scale == name)
        elsewhere = residuals.scale != name
        # The largest scale, because errors within the fitted range say little about extrapolations.
        parts = [elsewhere & ~residuals.blocked, elsewhere & residuals.blocked]
        prior = max((_scale_of(errors[part], weights[part]) for part in parts if part.any()), default=(0.0, 0.0))
        groups[str(name)] = make_group(errors[inside], weights[inside], width[inside], prior)
    relative = residuals.log_error / _full_spread(residuals.spread, _far(residuals.beyond), error)
    tried = residuals.blocked if residuals.blocked.any() else ~residuals.blocked
    scale, count = _scale_of(relative[tried], weights[tried])
    # Extrapolations from one set of runs go wrong together, so many count as few. The prior is the estimator's spread.
    variance = (PRIOR_COUNTS_AS + count * scale**2) / (PRIOR_COUNTS_AS + count)
    student = _student(PRIOR_COUNTS_AS, max(float(np.sqrt(variance)), LEAST_SPREAD_SHARE))
    return {**groups, EXTRAPOLATIONS: ConformalGroup(np.empty(0), np.empty(0), student)}


def _power(inside: Residuals, typical: float) -> float:
    """Return the power of the spread that makes the errors likeliest, as normal errors of one unknown scale."""

    def unlikelihood(power: float) -> float:
        width = _width(inside.spread, power, typical)
        scale = np.sqrt(np.mean((inside.log_error / width) ** 2))
        return float(np.mean(np.log(width)) + np.log(max(scale, 1e-12)))

    return min(POWERS, key=unlikelihood)
