"""What runs of a campaign take, by a Gaussian process over log time around a power law; before any run, by its prior.

The model is t(x) = c + exp(f(x)): ``c`` is the start-up that every run pays, and f has a linear part in the logarithms
of the parameters (each slope with a prior; a parameter that carries scale has slope 1 before anything is known) and a
smooth residual. All of it is closed form but for a handful of hyperparameters, which are chosen by marginal likelihood.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import erfcx

from leadline.campaigns.space import Axis, axes, values_of
from leadline.core.campaigns import Campaign, Configuration
from leadline.core.runs import Scale
from leadline.core.samples import Value

Array = npt.NDArray[np.float64]

INTERCEPT_SD, SLOPE_SD, CATEGORY_SD = 10.0, 0.7, 0.7
"""Prior standard deviations of the linear part, in natural logarithms."""
CORES_SLOPE = -0.5
"""Before anything is known a job is taken to gain half the logarithm of its cores."""
ALIKE = 0.6
"""Correlation of the residual between two categories."""
JITTER = 1e-9


@dataclass(frozen=True, slots=True)
class Observation:
    """One figure to learn from: seconds, or a lower bound of them; ``sd`` is its logarithm's spread beyond noise."""

    configuration: Configuration
    seconds: float
    censored: bool = False
    sd: float = 0.0


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the linear part: an axis's logarithm, or one of its categories."""

    name: str
    category: Value | None
    mean: float
    sd: float
    low: float
    span: float
    shift: float = 0.0
    """Added before the logarithm is taken; NaN for an axis that reaches below zero, which stays linear."""


class Encoding:
    """Configurations of a campaign as numbers: a basis with a prior, and coordinates for the residual."""

    def __init__(self, campaign: Campaign) -> None:
        found = [_columns(small, full) for small, full in zip(*_both(campaign), strict=True)]
        self._columns = [column for columns in found for column in columns]
        self.mean = np.array([0.0, *(column.mean for column in self._columns)])
        self.sd = np.array([INTERCEPT_SD, *(column.sd for column in self._columns)])

    def basis(self, found: Sequence[Configuration]) -> Array:
        """Return the columns of the linear part, shape (n, 1 + columns): natural logarithms, and 0 or 1."""
        rows = [values_of(one) for one in found]
        table = [[1.0, *(_value(column, row) for column in self._columns)] for row in rows]
        return np.array(table, dtype=np.float64).reshape(len(rows), 1 + len(self._columns))

    def coordinates(self, basis: Array) -> tuple[Array, Array]:
        """Return the numeric columns in units of their range over both scales, and the categories as 0 and 1."""
        numeric = [index for index, one in enumerate(self._columns, 1) if one.category is None]
        others = [index for index, one in enumerate(self._columns, 1) if one.category is not None]
        low = np.array([self._columns[index - 1].low for index in numeric])
        span = np.array([self._columns[index - 1].span for index in numeric])
        return (basis[:, numeric] - low) / span if numeric else basis[:, :0], basis[:, others]


def _both(campaign: Campaign) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    return axes(campaign, Scale.SCALED_DOWN), axes(campaign, Scale.FULL_SCALE)


def _columns(small: Axis, full: Axis) -> list[_Column]:
    """Return the columns of an axis; none of one that never varies."""
    if not small.numeric:
        if len(small.levels) < 2:
            return []
        return [_Column(small.name, level, 0.0, CATEGORY_SD, 0.0, 1.0) for level in small.levels]
    ends = [float(end) for axis in (small, full) for end in (axis.levels or (axis.low, axis.high))]
    low, high = min(ends), max(ends)
    if low == high:
        return []
    shift = 0.0 if low > 0 else math.nan if low < 0 else 1.0 if small.whole else high / 10
    mean = CORES_SLOPE if small.name == "cores" else 0.0
    if small.carries_scale and low >= 0:
        mean = math.copysign(1.0, full.low * full.high - small.low * small.high)
    unknown = _Column(small.name, None, mean, SLOPE_SD, 0.0, high - low if math.isnan(shift) else 1.0, shift)
    ends = [_value(unknown, {small.name: end}) for end in (low, high)]
    sd = 2 * SLOPE_SD if math.isnan(shift) else SLOPE_SD
    return [_Column(small.name, None, mean, sd, ends[0], ends[1] - ends[0], shift)]


def _value(column: _Column, row: dict[str, Value]) -> float:
    value = row.get(column.name)
    if column.category is not None:
        return float(value == column.category)
    if value is None or isinstance(value, str):
        return column.low
    if math.isnan(column.shift):
        return float(value) / column.span
    return math.log(max(float(value) + column.shift, 1e-12))


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters: ``startup`` as a share of the shortest run, the rest in logarithms and ranges."""

    startup: float = 0.0
    amplitude: float = 0.2
    length: float = 1.0
    noise: float = 0.05


CHOICES: dict[str, tuple[float, ...]] = {
    "startup": (0.0, 0.4, 0.7, 0.85, 0.93, 0.97),
    "amplitude": (0.03, 0.1, 0.25, 0.6),
    "length": (0.4, 0.8, 1.6, 3.2),
    "noise": (0.01, 0.025, 0.06, 0.15),
}
PRIOR_SD = {"amplitude": 1.0, "length": 0.8, "noise": 1.0}
"""Spread of the logarithm of each around its default, so that few runs do not decide on extremes."""


@dataclass(slots=True)
class Law:
    """What is known of a campaign's times from ``observations``; without any, its prior."""

    encoding: Encoding
    observations: Sequence[Observation] = ()
    settings: Settings = field(default_factory=Settings)
    startup_s: float = 0.0
    _basis: Array = field(init=False)
    _lower: Array = field(init=False)
    _weights: Array = field(init=False)
    evidence: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """Factor the covariance of what was observed."""
        self._basis = self.encoding.basis([one.configuration for one in self.observations])
        times = np.array([one.seconds for one in self.observations])
        uncensored = [one.seconds for one in self.observations if not one.censored and not one.sd]
        self.startup_s = self.settings.startup * min(uncensored, default=0.0)
        beyond = np.maximum(times - self.startup_s, 0.02 * times)
        stretch = times / beyond
        noise = np.array([math.hypot(self.settings.noise, one.sd) for one in self.observations]) * stretch
        covariance = self.covariance(self._basis, self._basis) + np.diag(noise**2 + JITTER)
        self._lower = np.asarray(np.linalg.cholesky(covariance))
        target = np.asarray(np.log(beyond))
        prior = self._basis @ self.encoding.mean
        for _ in range(4 if any(one.censored for one in self.observations) else 1):
            white = solve_triangular(self._lower, target - prior, lower=True)
            self._weights = solve_triangular(self._lower.T, white, lower=False)
            target = self._above_bounds(np.asarray(target), np.log(beyond), covariance, noise)
        self.evidence = float(-0.5 * white @ white - np.log(np.diag(self._lower)).sum() + np.log(stretch).sum())

    def _above_bounds(self, target: Array, bound: Array, covariance: Array, noise: Array) -> Array:
        """Return the targets with each lower bound replaced by what is expected above it (one step of EM)."""
        at = [index for index, one in enumerate(self.observations) if one.censored]
        if not at:
            return target
        fitted = target - (noise**2 + JITTER) * self._weights
        spread = np.sqrt(noise**2 + np.diag(covariance) * 0.02)
        updated = target.copy()
        for index in at:
            below = (bound[index] - fitted[index]) / spread[index]
            hazard = math.sqrt(2 / math.pi) / float(erfcx(below / math.sqrt(2)))
            updated[index] = max(fitted[index] + spread[index] * hazard, bound[index])
        return updated

    def covariance(self, one: Array, other: Array) -> Array:
        """Return the prior covariance of f between the rows of two bases, shape (n, m)."""
        linear = (one * self.encoding.sd**2) @ other.T
        (numeric, categories), (numeric2, categories2) = map(self.encoding.coordinates, (one, other))
        if numeric.shape[1]:
            scaled, scaled2 = numeric / self.settings.length, numeric2 / self.settings.length
            squared = (scaled**2).sum(1)[:, None] + (scaled2**2).sum(1)[None, :] - 2 * scaled @ scaled2.T
            residual = np.exp(-0.5 * np.maximum(squared, 0.0) / max(1.0, math.sqrt(numeric.shape[1])))
        else:
            residual = np.ones((len(one), len(other)))
        apart = 0.5 * np.abs(categories[:, None, :] - categories2[None, :, :]).sum(2)
        return np.asarray(linear + self.settings.amplitude**2 * residual * ALIKE**apart)

    def predict_log(self, basis: Array) -> Array:
        """Return the mean of f at the rows of a basis, shape (n,)."""
        prior = basis @ self.encoding.mean
        return np.asarray(prior + self.covariance(basis, self._basis) @ self._weights if self.observations else prior)

    def posterior(self, basis: Array) -> tuple[Array, Array]:
        """Return mean (n,) and covariance (n, n) of f at the rows of a basis."""
        prior = basis @ self.encoding.mean
        if not self.observations:
            return prior, self.covariance(basis, basis)
        cross = self.covariance(self._basis, basis)
        explained = solve_triangular(self._lower, cross, lower=True)
        return prior + cross.T @ self._weights, self.covariance(basis, basis) - explained.T @ explained

    def predict(self, found: Sequence[Configuration]) -> tuple[Array, Array]:
        """Return seconds (n,), the median, and the standard deviation of its logarithm, noise apart."""
        basis = self.encoding.basis(found)
        prior = basis @ self.encoding.mean
        variance = (basis**2) @ self.encoding.sd**2 + self.settings.amplitude**2
        if self.observations:
            cross = self.covariance(self._basis, basis)
            explained = solve_triangular(self._lower, cross, lower=True)
            prior, variance = prior + cross.T @ self._weights, variance - (explained**2).sum(0)
        beyond = np.exp(np.clip(prior, -50, 50))
        share = beyond / (beyond + self.startup_s)
        return self.startup_s + beyond, np.sqrt(np.maximum(variance, 0.0)) * share


def fit(campaign: Campaign, observations: Sequence[Observation]) -> Law:
    """Return the law with the hyperparameters under which what was observed is most likely."""
    encoding = Encoding(campaign)
    best = Law(encoding, observations)
    if len(observations) < 3:
        return best
    score = _score(best)
    for _ in range(2):
        before = best.settings
        for name, choices in CHOICES.items():
            for choice in choices:
                if choice == getattr(best.settings, name):
                    continue
                tried = Law(encoding, observations, _with(best.settings, name, choice))
                if (found := _score(tried)) > score:
                    best, score = tried, found
        if best.settings == before:
            break
    return best


def _with(settings: Settings, name: str, value: float) -> Settings:
    return Settings(**{**{one: getattr(settings, one) for one in CHOICES}, name: value})


def _score(law: Law) -> float:
    """Return the log of marginal likelihood times prior."""
    usual = Settings()
    off = [math.log(getattr(law.settings, name) / getattr(usual, name)) / spread for name, spread in PRIOR_SD.items()]
    return law.evidence - 0.5 * sum(one**2 for one in off)
