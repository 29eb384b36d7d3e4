"""A campaign's configurations as numbers: logarithms and categories, and what is believed of them before any run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import erfcx

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import Axis, axes, run_configuration, values_of
from leadline.core.campaigns import Campaign, Configuration, PlannedRun
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.runs import Run, Scale, Value

Array = npt.NDArray[np.float64]

INTERCEPT_SD, SLOPE_SD, CATEGORY_SD = 2.5, 0.7, 0.7
"""Prior standard deviations of the linear part, in natural logarithms."""
CORES_SLOPE = -0.5
"""Before anything is known a job is taken to gain half the logarithm of its cores."""


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


class CampaignEncoding:
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


ALIKE = 0.6
"""Correlation of the residual between two categories."""
STARTUP_SD = 0.4
"""Prior spread of d."""
LEAST_SHARE = 0.01
"""Of work in a run's time: a run with less says nothing of f."""
STEPS, CLOSE = 30, 1e-3
"""The most Gauss-Newton steps, and the change of f at which they end."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One figure to learn from: seconds, or a lower bound of them; ``sd`` is its logarithm's spread beyond noise."""

    configuration: Configuration
    seconds: float
    censored: bool = False
    sd: float = 0.0


@dataclass(frozen=True, slots=True)
class RunTimeHyperparameters:
    """Hyperparameters.

    ``startup`` is c as a share of the shortest run, ``unlike`` how much the start-up of configurations differs,
    ``amplitude`` and ``length`` the residual's, in logarithms and in ranges of a parameter, ``noise`` that of log t.
    """

    startup: float = 0.0
    unlike: float = 0.05
    amplitude: float = 0.2
    length: float = 1.0
    noise: float = 0.03


CHOICES: dict[str, tuple[float, ...]] = {
    "startup": (0.0, 0.3, 0.7, 1.0),
    "unlike": (0.02, 0.05, 0.15, 0.4),
    "amplitude": (0.03, 0.08, 0.2, 0.5),
    "length": (0.35, 0.6, 1.0, 2.0),
    "noise": (0.005, 0.015, 0.03, 0.08, 0.2),
}
PRIOR_SD = {"unlike": 1.0, "amplitude": 1.0, "length": 0.8, "noise": 1.0}
"""Spread of the logarithm of each around its default, so that few runs do not decide on extremes."""


@dataclass(frozen=True, slots=True)
class RunTimePrediction:
    """What is known of n configurations: seconds (their median), the covariance of log t, and the noise on it.

    ``log_covariance`` has shape (n, n), or (n,) where only variances were asked for; noise comes on top of it.
    """

    seconds: Array
    log_covariance: Array
    log_noise: Array


class RunTimeModel:
    """What is known from ``observations`` under given hyperparameters; without any, the prior."""

    def __init__(
        self,
        encoding: CampaignEncoding,
        observations: Sequence[Observation] = (),
        settings: RunTimeHyperparameters = RunTimeHyperparameters(),
    ) -> None:
        self.encoding = encoding
        self.observations = observations
        self.settings = settings
        self.evidence = 0.0
        times = [one.seconds for one in observations if not one.censored and not one.sd]
        self._startup = settings.startup * min(times, default=0.0)
        self._basis = encoding.basis([one.configuration for one in observations])
        self._mean = encoding.mean.copy()
        if observations:
            self._mean[0] = self._level()
            self._prior = self._basis @ self._mean
            self._condition()

    def _level(self) -> float:
        """Return the prior mean of f where every logarithm is 0, such that work is a third of the usual run."""
        beyond = np.log([one.seconds for one in self.observations]) - self._basis @ self.encoding.mean
        return float(np.median(beyond)) - (1.0 if self._startup else 0.0)

    def _condition(self) -> None:
        """Find the posterior mode of f at what was observed, and factor the covariance there."""
        said = np.log([one.seconds for one in self.observations])
        extra = np.array([one.sd for one in self.observations])
        censored = np.array([one.censored for one in self.observations])
        plain = self._covariance(self._basis, self._basis)
        f, d, target = said + math.log(0.5 if self._startup else 1.0), 0.0, said
        for _ in range(STEPS):
            fitted, share, pull = self._linear(f, d)
            noise = np.hypot(self._noise(share), extra)
            target = np.where(censored, _expected_above(said, fitted, np.hypot(noise, 0.1)), said)
            working = f + pull * d + (target - fitted) / share
            covariance = plain + STARTUP_SD**2 * np.outer(pull, pull)
            self._lower = np.linalg.cholesky(covariance + np.diag((noise / share) ** 2 + 1e-9))
            self._weights = cho_solve((self._lower, True), working - self._prior)
            change = np.clip(self._prior + plain @ self._weights - f, -1.5, 1.5)
            f, d = f + change, float(np.clip(STARTUP_SD**2 * pull @ self._weights, -1.0, 1.0))
            if np.abs(change).max() < CLOSE or not (self._startup or censored.any()):
                break
        self._pull, self._shift = pull, d
        white = solve_triangular(self._lower, working - self._prior, lower=True)
        self.evidence = float(-0.5 * white @ white - np.log(np.diag(self._lower)).sum() - np.log(share).sum())

    def _linear(self, f: Array, d: float) -> tuple[Array, Array, Array]:
        """Return log t, its derivative by f, and that by d in units of the former."""
        work, startup = np.exp(np.clip(f, -50.0, 50.0)), self._startup * math.exp(d)
        share = np.maximum(work / (work + startup), LEAST_SHARE)
        return np.log(work + startup), share, (1 - share) / share

    def _covariance(self, one: Array, other: Array) -> Array:
        """Return the prior covariance of f between the rows of two bases, shape (n, m)."""
        linear = (one * self.encoding.sd**2) @ other.T
        (numeric, categories), (numeric2, categories2) = map(self.encoding.coordinates, (one, other))
        apart = squared_distances(numeric, numeric2) / (self.settings.length**2 * max(1.0, math.sqrt(numeric.shape[1])))
        different = 0.5 * squared_distances(categories, categories2)
        return np.asarray(linear + self.settings.amplitude**2 * np.exp(-0.5 * apart) * ALIKE**different)

    def predict(self, found: Sequence[Configuration], *, jointly: bool = False) -> RunTimePrediction:
        """Return what runs of these configurations take, with covariances if ``jointly``."""
        basis = self.encoding.basis(found)
        if not self.observations:
            own = self._covariance(basis, basis)
            own = own if jointly else np.diag(own).copy()
            return RunTimePrediction(np.exp(basis @ self._mean), own, self._noise(np.ones(len(found))))
        cross = self._covariance(self._basis, basis)
        logs, share, pull = self._linear(basis @ self._mean + cross.T @ self._weights, self._shift)
        explained = solve_triangular(self._lower, cross + STARTUP_SD**2 * np.outer(self._pull, pull), lower=True)
        if jointly:
            own = self._covariance(basis, basis) + STARTUP_SD**2 * np.outer(pull, pull) - explained.T @ explained
            own = own * np.outer(share, share)
        else:
            own = (basis**2) @ self.encoding.sd**2 + self.settings.amplitude**2 + (STARTUP_SD * pull) ** 2
            own = np.maximum(own - (explained**2).sum(0), 0.0) * share**2
        return RunTimePrediction(np.exp(logs), own, self._noise(share))

    def _noise(self, share: Array) -> Array:
        """Return the spread of log t of one run, where work is that share of its time."""
        return np.asarray(np.hypot(self.settings.noise, self.settings.unlike * (1 - share)))


def squared_distances(one: Array, other: Array) -> Array:
    """Return the squared distances between the rows of two tables, shape (n, m)."""
    return np.asarray(np.maximum((one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T, 0.0))


def _expected_above(bound: Array, fitted: Array, spread: Array) -> Array:
    """Return the mean of normal variables around ``fitted``, given that they lie above ``bound``."""
    hazard = math.sqrt(2 / math.pi) / erfcx(np.clip((bound - fitted) / spread, -30, 30) / math.sqrt(2))
    return np.asarray(np.maximum(fitted + spread * hazard, bound))


def fit_run_time_model(campaign: Campaign, observations: Sequence[Observation]) -> RunTimeModel:
    """Return the law with the hyperparameters under which what was observed is most likely."""
    encoding = CampaignEncoding(campaign)
    best = RunTimeModel(encoding, observations)
    if len(observations) < 3:
        return best
    score = _score(best)
    for _ in range(2):
        before = best.settings
        for name, choices in CHOICES.items():
            for choice in choices:
                if choice == getattr(best.settings, name) or (name == "unlike" and not best.settings.startup):
                    continue
                tried = RunTimeModel(encoding, observations, replace(best.settings, **{name: choice}))
                if (found := _score(tried)) > score:
                    best, score = tried, found
        if best.settings == before:
            break
    return best


def _score(law: RunTimeModel) -> float:
    """Return the log of marginal likelihood times prior."""
    usual = RunTimeHyperparameters()
    off = [math.log(getattr(law.settings, name) / getattr(usual, name)) / spread for name, spread in PRIOR_SD.items()]
    return law.evidence - 0.5 * sum(one**2 for one in off)


GUESS_SD = 1.0
"""Spread of the logarithm of a user's guess: a factor of 2.7 either way."""
LEVEL, NORMAL_95 = 0.9, 1.645


class RunTimeForecaster:
    """Forecasts the runs of a campaign from its runs that ended, failures apart; timed-out ones are lower bounds."""

    def __init__(self, campaign: Campaign, finished: Sequence[Run] = (), cheapest: Configuration | None = None) -> None:
        self.campaign = campaign
        found = run_observations(finished)
        self.informed = bool(found) or (campaign.first_run_s is not None and cheapest is not None)
        if not found and campaign.first_run_s is not None and cheapest is not None:
            found = [Observation(cheapest, campaign.first_run_s, sd=GUESS_SD)]
        self.model: RunTimeModel = fit_run_time_model(campaign, found)

    def seconds(self, found: Sequence[Configuration]) -> list[Interval | None]:
        """Return what runs of these configurations take; ``None`` for each where nothing is known yet."""
        if not self.informed or not found:
            return [None] * len(found)
        known = self.model.predict(found)
        points, spreads = known.seconds, np.sqrt(known.log_covariance + known.log_noise**2)
        most = self.campaign.walltime_s or np.inf
        ends = [
            np.minimum(points * factor, most)
            for factor in np.exp(NORMAL_95 * np.array([0 * spreads, -spreads, spreads]))
        ]
        return [Interval(float(point), float(low), float(high), LEVEL) for point, low, high in zip(*ends, strict=True)]

    def relative(self, found: Sequence[Configuration]) -> list[float]:
        """Return the work of each configuration in units of the least of them, as far as it is known."""
        points = self.model.predict(found).seconds
        return [float(one) for one in points / points.min()]

    def forecast(self, planned: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
        """Return the runs with what each is forecast to take."""
        times = self.seconds([one.configuration for one in planned])
        return tuple(replace(one, forecast_s=time) for one, time in zip(planned, times, strict=True))


def run_observations(finished: Sequence[Run]) -> list[Observation]:
    """Return what can be learned from runs: times of those that completed, bounds of those cut off by their limit."""
    found = []
    for run in finished:
        elapsed = run.measured.get("elapsed_s")
        if elapsed is None or not elapsed.value > 0:
            continue
        if run.state in (JobState.COMPLETED, JobState.TIMEOUT):
            found.append(Observation(run_configuration(run), elapsed.value, run.state is JobState.TIMEOUT))
    return found


def forecast_cost(campaign: Campaign, planned: PlannedRun) -> float | None:
    """Return a run's forecast cost in the budget's unit; ``None`` where its time is not known."""
    if planned.forecast_s is None:
        return None
    return compute_cost(campaign, planned.configuration.resources, planned.forecast_s.point)
