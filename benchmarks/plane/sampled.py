"""What is known of a quantity from like cases, as a distribution."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


class Sampled:
    """Equally likely values above zero, in ascending order (implements ``recommend.distributions.Distribution``)."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self._sums = [0.0, *accumulate(values)]

    @property
    def median(self) -> float:
        """The value in the middle."""
        return self.quantile(0.5)

    def quantile(self, probability: float) -> float:
        """Return the least of the values that X stays at or below with ``probability``."""
        return self.values[min(len(self.values), max(1, math.ceil(probability * len(self.values) - 1e-9))) - 1]

    def above(self, value: float) -> float:
        """Return the share of the values above ``value``."""
        return 1 - bisect_right(self.values, value) / len(self.values)

    def mean_below(self, value: float) -> float:
        """Return the sum of the values up to ``value`` ÷ how many there are."""
        return self._sums[bisect_right(self.values, value)] / len(self.values)

    def beyond(self, value: float) -> "Sampled | None":
        """Return what is known once X is known to exceed ``value``; ``None`` if no value does."""
        rest = self.values[bisect_right(self.values, value) :]
        return Sampled(rest) if rest else None
