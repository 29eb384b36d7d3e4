"""What is known of a quantity that is already beyond some value: a job that runs on, one that was killed at a limit."""

import math
from functools import lru_cache

from leadline.core.estimate import Interval
from leadline.uncertainty.distributions import Distribution, HalfLogNormals

DOUBT = 0.02
"""Probability that a forecast is of another job altogether: other data, another number of epochs, a hang."""
TAIL = 1.0
"""Exponent of what is then known: of what has lasted t, half lasts as long again. So it was found of processes
(Harchol-Balter & Downey, 1997); of 10,318 jobs of the MetaCentrum trace that were foretold by the mean of the user's
last two, those that lasted 1.2 times as long as foretold have 0.96 (Hill's estimate), later ones less."""
_STEPS = 80
"""Bisections of a logarithm; what is left of the widest bracket is far below rounding."""


class ScaleFree:
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


class Doubted:
    """A forecast that is wrong altogether with probability ``DOUBT``: a mixture, as Tukey's contaminated normal.

    Up to its median it is the forecast; beyond it, the part that is wrong is scale-free from there. Seen from the
    start that hardly matters; of a job that outlived its forecast it is all that is left.
    """

    def __init__(self, interval: Interval) -> None:
        self._known = HalfLogNormals.of(interval)
        self._wrong = ScaleFree(self._known.median)

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
        if value <= self.median:
            return self._known.above(value)
        return (1 - DOUBT) * self._known.above(value) + DOUBT / 2 * self._wrong.above(value)

    def mean_below(self, value: float) -> float:
        """Return E[X; X ≤ ``value``]."""
        if value <= self.median:
            return self._known.mean_below(value)
        below = self._known.mean_below(self.median)
        beyond = self._known.mean_below(value) - below
        return below + (1 - DOUBT) * beyond + DOUBT / 2 * self._wrong.mean_below(value)


class Beyond:
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


def surviving(interval: Interval | None, past: float) -> Distribution | None:
    """Return what is known of a quantity that is larger than ``past`` (0: nothing is known of that).

    ``interval`` is the forecast of the quantity, or ``None`` where there is none: then only ``past`` tells.
    """
    if interval is None or interval.point <= 0:
        return ScaleFree(past) if past > 0 else None
    return _surviving(interval, past)


@lru_cache(maxsize=4096)
def _surviving(interval: Interval, past: float) -> Distribution:
    return Beyond(Doubted(interval), past) if past > 0 else Doubted(interval)


def _bisect(known: Distribution, above: float, least: float) -> float:
    """Return the value that is exceeded with probability ``above``; it is at least ``least`` (> 0)."""
    low, high = math.log(least), math.log(least) + 1.0
    while known.above(math.exp(high)) > above:
        low, high = high, high + 2 * (high - low)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if known.above(math.exp(middle)) > above else (low, middle)
    return math.exp(high)
