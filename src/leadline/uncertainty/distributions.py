"""Distributions of a quantity that is not measured yet, from an interval, or given that it exceeds some value."""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval

_WIDEST = 8.0
"""Largest spread of a logarithm: above it the exponentials would overflow."""


class Distribution(Protocol):
    """The distribution of a quantity X above zero."""

    @property
    def median(self) -> float:
        """The median of X."""
        return self.quantile(0.5)

    def quantile(self, probability: float) -> float:
        """Return a value that X stays at or below with at least this probability."""

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``], the contribution of values up to this one to the mean."""


class HalfLogNormals(Distribution):
    """Two log-normal halves that meet at their common median, the point of an interval."""

    def __init__(self, median: float, spread_below: float, spread_above: float) -> None:
        self._median, self._below, self._above = median, min(spread_below, _WIDEST), min(spread_above, _WIDEST)

    @classmethod
    def of(cls, interval: Interval) -> "HalfLogNormals":
        """Return the distribution whose quantiles at the interval's level are its ends."""
        return cls(interval.point, *log_spreads(interval))

    def quantile(self, probability: float) -> float:
        """Return the value that X stays below with this probability."""
        return self._median * math.exp((self._above if probability >= 0.5 else self._below) * _z(probability))

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        return _phi(-self._z(value))

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]; for a log-normal of spread s it is median × exp(s²/2) × Φ(z - s)."""
        below = self._median * math.exp(self._below**2 / 2)
        if value < self._median:
            return below * _phi(self._z(value) - self._below)
        above = self._median * math.exp(self._above**2 / 2)
        return below * _phi(-self._below) + above * (_phi(self._z(value) - self._above) - _phi(-self._above))

    def _z(self, value: float) -> float:
        if value <= 0:
            return -math.inf
        away = math.log(value / self._median)
        spread = self._above if away >= 0 else self._below
        return away / spread if spread else math.copysign(math.inf, away)


def quantile(interval: Interval, probability: float) -> float:
    """Return the value that the quantity stays below with this probability.

    The interval is read as two log-normal halves whose median is its point. An interval without width gives its point.

    Raises:
        InvalidInput: ``probability`` is not between 0 and 1.
    """
    if not 0 < probability < 1:
        raise InvalidInput(f"a risk of {1 - probability:g} is not usable: choose one between 0 and 1, such as 0.05")
    if interval.point <= 0:
        return interval.point
    return interval.point * math.exp(log_spreads(interval)[probability >= 0.5] * _z(probability))


def log_spreads(interval: Interval) -> tuple[float, float]:
    """Return the standard deviations of ln(X ÷ point) below and above the point; 0 for a side without width."""
    z = _z(0.5 + interval.level / 2)
    point = interval.point
    below = math.log(point / interval.low) / z if 0 < interval.low < point else 0.0
    above = math.log(interval.high / point) / z if 0 < point < interval.high else 0.0
    return below, above


_z = lru_cache(maxsize=1024)(NormalDist().inv_cdf)


def _phi(z: float) -> float:
    """Return the standard normal distribution function at z."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


WRONG_FORECAST = 0.02
"""Probability that a forecast is wrong altogether: other data, another number of epochs, a hang."""
TAIL = 1.0
"""Exponent of the survival of such a job: half of those that lasted t last as long again.

The same was measured of processes (Harchol-Balter & Downey, 1997). Of 10,318 jobs of the MetaCentrum trace, predicted
by the mean of the user's last two, those that lasted 1.2 times the prediction have 0.96 (Hill's estimate), later ones
less.
"""
_NOTHING = 1e-9
"""Share of a forecast whose survival carries no information."""
_STEPS = 80
"""Bisections of a logarithm, enough to shrink the widest bracket far below rounding."""


class ParetoDistribution(Distribution):
    """A quantity with a known lower bound only: P(X > x) = (least ÷ x) ** ``TAIL``."""

    def __init__(self, least: float) -> None:
        self._least = least

    def quantile(self, probability: float) -> float:
        """Return the value that X stays below with this probability."""
        return float(self._least * (1 - probability) ** (-1 / TAIL))

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        return float((self._least / value) ** TAIL) if value > self._least else 1.0

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``] = least × ln(value ÷ least), for an exponent of 1."""
        return self._least * math.log(value / self._least) if value > self._least else 0.0


class ContaminatedForecast(Distribution):
    """A forecast that is wrong with probability ``WRONG_FORECAST``: a mixture, as Tukey's contaminated normal.

    Up to its median it is the forecast. Above it, the wrong part is scale-free. That part hardly matters at the start
    of a job, but it is all that remains of a job that outlived its forecast.
    """

    def __init__(self, interval: Interval) -> None:
        self._base = HalfLogNormals.of(interval)
        self._wrong = ParetoDistribution(self._base.median)

    def quantile(self, probability: float) -> float:
        """Return the value that X stays below with this probability."""
        if probability <= 0.5:
            return self._base.quantile(probability)
        return _bisect(self, 1 - probability, self.median)

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        if value < self.median:
            return self._base.above(value)
        return (1 - WRONG_FORECAST) * self._base.above(value) + WRONG_FORECAST / 2 * self._wrong.above(value)

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]."""
        if value <= self.median:
            return self._base.mean_below(value)
        below = self._base.mean_below(self.median)
        beyond = self._base.mean_below(value) - below
        return below + (1 - WRONG_FORECAST) * beyond + WRONG_FORECAST / 2 * self._wrong.mean_below(value)


class ConditionalDistribution(Distribution):
    """A quantity given that it exceeds ``past``: P(X > x | X > past) = P(X > x) ÷ P(X > past)."""

    def __init__(self, base: Distribution, past: float) -> None:
        self._base, self._past = base, max(past, 0.0)
        self._remaining = base.above(self._past)

    def quantile(self, probability: float) -> float:
        """Return the value that X stays below with this probability."""
        if self._remaining >= 1.0:
            return self._base.quantile(probability)
        return _bisect(self, 1 - probability, self._past)

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        return self._base.above(value) / self._remaining if value > self._past else 1.0

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]."""
        if value <= self._past:
            return 0.0
        return (self._base.mean_below(value) - self._base.mean_below(self._past)) / self._remaining


def survival_distribution(interval: Interval | None, past: float) -> Distribution | None:
    """Return the distribution of a quantity that already exceeds ``past``; ``None`` without a forecast or a past."""
    if interval is None or interval.point <= 0:
        return ParetoDistribution(past) if past > 0 else None
    return _surviving(interval, past)


@lru_cache(maxsize=4096)
def _surviving(interval: Interval, past: float) -> Distribution:
    forecast = ContaminatedForecast(interval)
    return ConditionalDistribution(forecast, past) if past > _NOTHING * interval.point else forecast


def _bisect(base: Distribution, above: float, least: float) -> float:
    """Return the value exceeded with probability ``above``, which is at least ``least`` (> 0)."""
    low, high = math.log(least), math.log(least) + 1.0
    while base.above(math.exp(high)) > above:
        low, high = high, high + 2 * (high - low)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if base.above(math.exp(middle)) > above else (low, middle)
    return math.exp(high)
