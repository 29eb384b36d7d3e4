"""Model of run times: a start-up plus work by a power law with a smooth residual.

The model is ``t(x) = c · exp(d) + exp(f(x))``, with noise on ``log t``. ``f`` is a Gaussian process: a linear part in
the logarithms of the parameters (with prior slope 1 for a parameter that carries scale) and a smooth residual. ``c`` is
the shortest run or a share of it, and ``d`` is normal around 0. The posterior is found by Gauss-Newton steps, each
linear in ``f`` and ``d``. The hyperparameters maximize the marginal likelihood in Laplace's approximation.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import erfcx

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import Axis, axes, run_configuration, values_of
from leadline.core.campaigns import Campaign, Configuration, PlannedRun
from leadline.core.estimate import NORMAL_90, Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Run, Scale, Value
from leadline.estimators.gp import factor_covariance, squared_distances
from leadline.estimators.ports import Array

# Prior standard deviations of the linear part, in natural logarithms.
INTERCEPT_SD, SLOPE_SD, CATEGORY_SD = 2.5, 0.7, 0.7
CORES_SLOPE = -0.5  # prior slope of the log time over the log of the cores


class _Column(Frozen):
    """One column of the linear part: an axis's logarithm, or one of its categories."""

    name: str
    category: Value | None
    mean: float
    sd: float
    low: float
    span: float
    shift: float = 0.0  # offset before the logarithm; NaN for an axis with values below zero, which stays linear


class CampaignEncoding:
    """Numeric encoding of configurations: a basis with a prior, and coordinates of the residual."""

    def __init__(self, campaign: Campaign) -> None:
        scales = (axes(campaign, Scale.SCALED_DOWN), axes(campaign, Scale.FULL_SCALE))
        self._columns = [column for small, full in zip(*scales, strict=True) for column in _columns(small, full)]
        self.mean = np.array([0.0, *(column.mean for column in self._columns)])
        self.sd = np.array([INTERCEPT_SD, *(column.sd for column in self._columns)])

    def basis(self, configurations: Sequence[Configuration]) -> Array:
        """Return the columns of the linear part, shape (n, 1 + columns): natural logarithms, and 0 or 1."""
        rows = [values_of(configuration) for configuration in configurations]
        table = [[1.0, *(_value(column, row) for column in self._columns)] for row in rows]
        return np.array(table, dtype=np.float64).reshape(len(rows), 1 + len(self._columns))

    def coordinates(self, basis: Array) -> tuple[Array, Array]:
        """Return the numeric columns in units of their range over both scales, and the categories as 0 and 1."""
        is_numeric = np.array([column.category is None for column in self._columns], dtype=bool)
        low = np.array([column.low for column in self._columns if column.category is None])
        span = np.array([column.span for column in self._columns if column.category is None])
        return (basis[:, 1:][:, is_numeric] - low) / span, basis[:, 1:][:, ~is_numeric]


def _columns(small: Axis, full: Axis) -> list[_Column]:
    """Return the columns of an axis; none for a constant."""
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
    unscaled = _Column(small.name, None, mean, SLOPE_SD, 0.0, high - low if math.isnan(shift) else 1.0, shift)
    ends = [_value(unscaled, {small.name: end}) for end in (low, high)]
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


ALIKE = 0.6  # correlation of the residual between two categories
STARTUP_SD = 0.4  # prior standard deviation of d
LEAST_SHARE = 0.01  # minimum share of work in a run's time; below it, the run carries no information on f
STEPS, CLOSE = 30, 1e-3  # maximum Gauss-Newton steps, and the change of f at which they end


class Observation(Frozen):
    """A measured time or a lower bound in seconds; ``sd`` is the extra spread of its logarithm beyond noise."""

    configuration: Configuration
    seconds: float
    censored: bool = False
    sd: float = 0.0


class RunTimeHyperparameters(Frozen):
    """Hyperparameters of ``RunTimeModel``."""

    startup: float = 0.0  # c as a share of the shortest run
    unlike: float = 0.05  # variation of the start-up between configurations
    amplitude: float = 0.2  # the residual's, in logarithms
    length: float = 1.0  # the residual's length scale, in ranges of a parameter
    noise: float = 0.03  # of log t


DEFAULTS = RunTimeHyperparameters()
CHOICES: dict[str, tuple[float, ...]] = {
    "startup": (0.0, 0.3, 0.7, 1.0),
    "unlike": (0.02, 0.05, 0.15, 0.4),
    "amplitude": (0.03, 0.08, 0.2, 0.5),
    "length": (0.35, 0.6, 1.0, 2.0),
    "noise": (0.005, 0.015, 0.03, 0.08, 0.2),
}
# Prior spread of the logarithm of each around its default, which prevents extremes from few runs.
PRIOR_SD = {"unlike": 1.0, "amplitude": 1.0, "length": 0.8, "noise": 1.0}


class RunTimePrediction(Frozen):
    """Predicted times of n configurations: median seconds, covariance of log t, and additional noise.

    ``log_covariance`` has shape (n, n), or (n,) with variances only; it excludes the noise.
    """

    seconds: Array
    log_covariance: Array
    log_noise: Array


class RunTimeModel:
    """The posterior of run times given ``observations`` and hyperparameters; the prior without any."""

    def __init__(
        self,
        encoding: CampaignEncoding,
        observations: Sequence[Observation] = (),
        settings: RunTimeHyperparameters = DEFAULTS,
    ) -> None:
        self.encoding = encoding
        self.observations = observations
        self.settings = settings
        self.evidence = 0.0
        times = [observation.seconds for observation in observations if not observation.censored and not observation.sd]
        self._startup = settings.startup * min(times, default=0.0)
        self._basis = encoding.basis([observation.configuration for observation in observations])
        self._mean = encoding.mean.copy()
        if observations:
            self._mean[0] = self._level()
            self._prior = self._basis @ self._mean
            self._condition()

    def _level(self) -> float:
        """Return the prior mean of f at logarithms of 0, such that work is a third of the typical run."""
        excess = np.log([observation.seconds for observation in self.observations]) - self._basis @ self.encoding.mean
        return float(np.median(excess)) - (1.0 if self._startup else 0.0)

    def _condition(self) -> None:
        """Find the posterior mode of f at the observations, and factor the covariance there."""
        log_seconds = np.log([observation.seconds for observation in self.observations])
        extra = np.array([observation.sd for observation in self.observations])
        censored = np.array([observation.censored for observation in self.observations])
        plain = self._covariance(self._basis, self._basis)
        f, d, target = log_seconds + math.log(0.5 if self._startup else 1.0), 0.0, log_seconds
        # A censored time counts as its expected value above the bound, which changes with each fit.
        for _ in range(STEPS):
            fitted, share, pull = self._linear(f, d)
            noise = np.hypot(self._noise(share), extra)
            target = np.where(censored, _expected_above(log_seconds, fitted, np.hypot(noise, 0.1)), log_seconds)
            working = f + pull * d + (target - fitted) / share
            covariance = plain + STARTUP_SD**2 * np.outer(pull, pull)
            self._lower = factor_covariance(covariance + np.diag((noise / share) ** 2 + 1e-9))
            self._weights = cho_solve((self._lower, True), working - self._prior)
            # Without the clip, a first guess far off makes exp(f) overflow.
            change = np.clip(self._prior + plain @ self._weights - f, -1.5, 1.5)
            f, d = f + change, float(np.clip(STARTUP_SD**2 * pull @ self._weights, -1.0, 1.0))
            if np.abs(change).max() < CLOSE or not (self._startup or censored.any()):
                break
        self._pull, self._shift = pull, d
        white = solve_triangular(self._lower, working - self._prior, lower=True)
        self.evidence = float(-0.5 * white @ white - np.log(np.diag(self._lower)).sum() - np.log(share).sum())

    def _linear(self, f: Array, d: float) -> tuple[Array, Array, Array]:
        """Return log t, its derivative by f, and its derivative by d in units of the former."""
        work, startup = np.exp(np.clip(f, -50.0, 50.0)), self._startup * math.exp(d)
        share = np.maximum(work / (work + startup), LEAST_SHARE)
        return np.log(work + startup), share, (1 - share) / share

    def _covariance(self, rows: Array, columns: Array) -> Array:
        """Return the prior covariance of f between the rows of two bases, shape (n, m)."""
        linear = (rows * self.encoding.sd**2) @ columns.T
        (numeric, categories), (numeric2, categories2) = map(self.encoding.coordinates, (rows, columns))
        distances = squared_distances(numeric, numeric2) / (
            self.settings.length**2 * max(1.0, math.sqrt(numeric.shape[1]))
        )
        different = 0.5 * squared_distances(categories, categories2)
        return np.asarray(linear + self.settings.amplitude**2 * np.exp(-0.5 * distances) * ALIKE**different)

    def predict(self, configurations: Sequence[Configuration], *, jointly: bool = False) -> RunTimePrediction:
        """Predict the run times of configurations, with covariances if ``jointly``."""
        basis = self.encoding.basis(configurations)
        if not self.observations:
            covariance = self._covariance(basis, basis)
            covariance = covariance if jointly else np.diag(covariance).copy()
            return RunTimePrediction(np.exp(basis @ self._mean), covariance, self._noise(np.ones(len(configurations))))
        cross = self._covariance(self._basis, basis)
        logs, share, pull = self._linear(basis @ self._mean + cross.T @ self._weights, self._shift)
        explained = solve_triangular(self._lower, cross + STARTUP_SD**2 * np.outer(self._pull, pull), lower=True)
        if jointly:
            covariance = self._covariance(basis, basis) + STARTUP_SD**2 * np.outer(pull, pull) - explained.T @ explained
            covariance = covariance * np.outer(share, share)
        else:
            covariance = (basis**2) @ self.encoding.sd**2 + self.settings.amplitude**2 + (STARTUP_SD * pull) ** 2
            covariance = np.maximum(covariance - (explained**2).sum(0), 0.0) * share**2
        return RunTimePrediction(np.exp(logs), covariance, self._noise(share))

    def _noise(self, share: Array) -> Array:
        """Return the spread of log t of one run, given the share of work in its time."""
        return np.asarray(np.hypot(self.settings.noise, self.settings.unlike * (1 - share)))


def _expected_above(bound: Array, fitted: Array, spread: Array) -> Array:
    """Return the mean of normal variables around ``fitted``, truncated below at ``bound``."""
    hazard = math.sqrt(2 / math.pi) / erfcx(np.clip((bound - fitted) / spread, -30, 30) / math.sqrt(2))
    return np.asarray(np.maximum(fitted + spread * hazard, bound))


def fit_run_time_model(campaign: Campaign, observations: Sequence[Observation]) -> RunTimeModel:
    """Return the model with the hyperparameters of highest posterior probability."""
    encoding = CampaignEncoding(campaign)
    best = RunTimeModel(encoding, observations)
    if len(observations) < 3:
        return best
    score = _score(best)
    # Coordinate search: two passes over coarse grids are enough for at most a few dozen runs.
    for _ in range(2):
        before = best.settings
        for name, choices in CHOICES.items():
            for choice in choices:
                if choice == getattr(best.settings, name) or (name == "unlike" and not best.settings.startup):
                    continue
                candidate = RunTimeModel(encoding, observations, replace(best.settings, **{name: choice}))
                if (candidate_score := _score(candidate)) > score:
                    best, score = candidate, candidate_score
        if best.settings == before:
            break
    return best


def _score(model: RunTimeModel) -> float:
    """Return the log of marginal likelihood times prior."""
    deviations = [
        math.log(getattr(model.settings, name) / getattr(DEFAULTS, name)) / spread for name, spread in PRIOR_SD.items()
    ]
    return model.evidence - 0.5 * sum(deviation**2 for deviation in deviations)


GUESS_SD = 1.0  # spread of the logarithm of a user's guess: a factor of 2.7 either way
LEVEL = 0.9


class RunTimeForecaster:
    """Forecasts runs from the ended ones, without failures; timed-out runs are lower bounds."""

    def __init__(self, campaign: Campaign, finished: Sequence[Run] = (), cheapest: Configuration | None = None) -> None:
        self.campaign = campaign
        observations = run_observations(finished)
        if not observations and campaign.first_run_s is not None and cheapest is not None:
            observations = [Observation(cheapest, campaign.first_run_s, sd=GUESS_SD)]
        self.informed = bool(observations)
        self.model: RunTimeModel = fit_run_time_model(campaign, observations)

    def seconds(self, configurations: Sequence[Configuration]) -> list[Interval | None]:
        """Forecast the time of each configuration; ``None`` for all while there is no information."""
        if not self.informed or not configurations:
            return [None] * len(configurations)
        prediction = self.model.predict(configurations)
        points, spreads = prediction.seconds, np.sqrt(prediction.log_covariance + prediction.log_noise**2)
        limit_s = self.campaign.walltime_s or np.inf
        bounds = np.minimum(points * np.exp(NORMAL_90 * np.array([0 * spreads, -spreads, spreads])), limit_s)
        return [Interval(point, low, high, LEVEL) for point, low, high in bounds.T.tolist()]

    def relative(self, configurations: Sequence[Configuration]) -> list[float]:
        """Return the predicted work of each configuration relative to the smallest."""
        points = self.model.predict(configurations).seconds
        return [float(work) for work in points / points.min()]

    def forecast(self, planned: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
        """Return the runs with their forecast times."""
        times = self.seconds([run.configuration for run in planned])
        return tuple(replace(run, forecast_s=time) for run, time in zip(planned, times, strict=True))


def run_observations(finished: Sequence[Run]) -> list[Observation]:
    """Return the times of completed runs, and lower bounds from runs cut off by their limit."""
    observations = []
    for run in finished:
        elapsed = run.measured.get("elapsed_s")
        if elapsed is None or not elapsed.value > 0:
            continue
        if run.state in (JobState.COMPLETED, JobState.TIMEOUT):
            observations.append(Observation(run_configuration(run), elapsed.value, run.state is JobState.TIMEOUT))
    return observations


def forecast_cost(campaign: Campaign, planned: PlannedRun) -> float | None:
    """Return a run's forecast cost in the budget's unit; ``None`` without a forecast."""
    if planned.forecast_s is None:
        return None
    return compute_cost(campaign, planned.configuration.resources, planned.forecast_s.point)
