"""What is known of a quantity before it is measured, as a distribution: from an interval, or from a sample."""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval

_NORMAL = NormalDist()
_WIDEST = 8.0
"""Spread of a logarithm beyond which nothing is known anyway; above it the exponentials would overflow."""


class Distribution(Protocol):
    """A quantity X above zero."""

    @property
    def median(self) -> float: ...  # noqa: D102 - a field

    def quantile(self, probability: float) -> float:
        """Return a value that X stays at or below with at least ``probability`` (between 0 and 1)."""

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``], the part of the mean that comes from values up to this one."""


class HalfLogNormals:
    """Two halves of log-normal distributions that meet at their common median, the point of an interval."""

    def __init__(self, median: float, spread_below: float, spread_above: float) -> None:
        self._median, self._below, self._above = median, min(spread_below, _WIDEST), min(spread_above, _WIDEST)

    @classmethod
    def of(cls, interval: Interval) -> "HalfLogNormals":
        """Read an interval so that its ends are the quantiles that its level says."""
        return cls(interval.point, *log_spreads(interval))

    @property
    def median(self) -> float:
        """The value that X exceeds as often as not."""
        return self._median

    def quantile(self, probability: float) -> float:
        """Return the value below which X stays with ``probability``."""
        spread = self._above if probability >= 0.5 else self._below
        return self.median * math.exp(spread * _z(probability))

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        return _phi(-self._z(value))

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]: of a log-normal with spread s, median × exp(s²/2) × Φ(z - s)."""
        below = self.median * math.exp(self._below**2 / 2)
        if value < self.median:
            return below * _phi(self._z(value) - self._below)
        above = self.median * math.exp(self._above**2 / 2)
        return below * _phi(-self._below) + above * (_phi(self._z(value) - self._above) - _phi(-self._above))

    def _z(self, value: float) -> float:
        if value <= 0:
            return -math.inf
        away = math.log(value / self.median)
        spread = self._above if away >= 0 else self._below
        return away / spread if spread else math.copysign(math.inf, away)


def quantile(interval: Interval, probability: float) -> float:
    """Return the value that the quantity stays below with ``probability``.

    The interval is read as two halves of a log-normal distribution whose median is the point, so that the quantile at
    its own level's upper end is ``high``. An interval without width gives its point.

    Raises:
        InvalidInput: ``probability`` is not between 0 and 1.
    """
    if not 0 < probability < 1:
        raise InvalidInput(f"a risk of {1 - probability:g} is not usable: choose one between 0 and 1, such as 0.05")
    if interval.point <= 0:
        return interval.point
    spread = log_spreads(interval)[probability >= 0.5]
    return interval.point * math.exp(spread * _z(probability))


def log_spreads(interval: Interval) -> tuple[float, float]:
    """Return the standard deviations of ln(X ÷ point) below and above the point; 0 where the interval ends there."""
    z = _z(0.5 + interval.level / 2)
    point = interval.point
    below = math.log(point / interval.low) / z if 0 < interval.low < point else 0.0
    above = math.log(interval.high / point) / z if 0 < point < interval.high else 0.0
    return below, above


@lru_cache(maxsize=1024)
def _z(probability: float) -> float:
    return _NORMAL.inv_cdf(probability)


def _phi(z: float) -> float:
    """Return the standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


DOUBT = 0.02
"""Probability that a forecast is of another job altogether: other data, another number of epochs, a hang."""
TAIL = 1.0
"""Exponent of what is then known: of what has lasted t, half lasts as long again. So it was found of processes
(Harchol-Balter & Downey, 1997); of 10,318 jobs of the MetaCentrum trace that were foretold by the mean of the user's
last two, those that lasted 1.2 times as long as foretold have 0.96 (Hill's estimate), later ones less."""
_NOTHING = 1e-9
"""Share of a forecast that tells nothing when it was outlived."""
_STEPS = 80
"""Bisections of a logarithm; what is left of the widest bracket is far below rounding."""


class ParetoDistribution:
    """A quantity of which only ``least`` is known: P(X > x) = (least ÷ x) ** ``TAIL`` (Pareto)."""

    def __init__(self, least: float) -> None:
        self._least = least

    @property
    def median(self) -> float:
        """The value that X exceeds as often as not."""
        return self.quantile(0.5)

    def quantile(self, probability: float) -> float:
        """Return the value below which X stays with ``probability``."""
        return float(self._least * (1 - probability) ** (-1 / TAIL))

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        return float((self._least / value) ** TAIL) if value > self._least else 1.0

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``] = least × ln(value ÷ least), for an exponent of 1."""
        return self._least * math.log(value / self._least) if value > self._least else 0.0


class ContaminatedForecast:
    """A forecast that is wrong altogether with probability ``DOUBT``: a mixture, as Tukey's contaminated normal.

    Up to its median it is the forecast; beyond it, the part that is wrong is scale-free from there. Seen from the
    start that hardly matters; of a job that outlived its forecast it is all that is left.
    """

    def __init__(self, interval: Interval) -> None:
        self._known = HalfLogNormals.of(interval)
        self._wrong = ParetoDistribution(self._known.median)

    @property
    def median(self) -> float:
        """The value that X exceeds as often as not."""
        return self._known.median

    def quantile(self, probability: float) -> float:
        """Return the value below which X stays with ``probability``."""
        if probability <= 0.5:
            return self._known.quantile(probability)
        return _bisect(self, 1 - probability, self.median)

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        if value < self.median:
            return self._known.above(value)
        return (1 - DOUBT) * self._known.above(value) + DOUBT / 2 * self._wrong.above(value)

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]."""
        if value <= self.median:
            return self._known.mean_below(value)
        below = self._known.mean_below(self.median)
        beyond = self._known.mean_below(value) - below
        return below + (1 - DOUBT) * beyond + DOUBT / 2 * self._wrong.mean_below(value)


class ConditionalDistribution:
    """Another quantity given that it is larger than ``past``: P(X > x | X > past) = P(X > x) ÷ P(X > past)."""

    def __init__(self, known: Distribution, past: float) -> None:
        self._known, self._past = known, max(past, 0.0)
        self._left = known.above(self._past)

    @property
    def median(self) -> float:
        """The value that X exceeds as often as not."""
        return self.quantile(0.5)

    def quantile(self, probability: float) -> float:
        """Return the value below which X stays with ``probability``."""
        if self._left >= 1.0:
            return self._known.quantile(probability)
        return _bisect(self, 1 - probability, self._past)

    def above(self, value: float) -> float:
        """Return the probability of X > ``value``."""
        return self._known.above(value) / self._left if value > self._past else 1.0

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]."""
        if value <= self._past:
            return 0.0
        return (self._known.mean_below(value) - self._known.mean_below(self._past)) / self._left


def survival_distribution(interval: Interval | None, past: float) -> Distribution | None:
    """Return what is known of a quantity that is larger than ``past`` (0: nothing is known of that).

    ``interval`` is the forecast of the quantity, or ``None`` where there is none: then only ``past`` tells.
    """
    if interval is None or interval.point <= 0:
        return ParetoDistribution(past) if past > 0 else None
    return _surviving(interval, past)


@lru_cache(maxsize=4096)
def _surviving(interval: Interval, past: float) -> Distribution:
    return (
        ConditionalDistribution(ContaminatedForecast(interval), past)
        if past > _NOTHING * interval.point
        else ContaminatedForecast(interval)
    )


def _bisect(known: Distribution, above: float, least: float) -> float:
    """Return the value that is exceeded with probability ``above``; it is at least ``least`` (> 0)."""
    low, high = math.log(least), math.log(least) + 1.0
    while known.above(math.exp(high)) > above:
        low, high = high, high + 2 * (high - low)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if known.above(math.exp(middle)) > above else (low, middle)
    return math.exp(high)
