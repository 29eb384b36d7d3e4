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
        return cls(interval.point, *spreads(interval))

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
    spread = spreads(interval)[probability >= 0.5]
    return interval.point * math.exp(spread * _z(probability))


def spreads(interval: Interval) -> tuple[float, float]:
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
