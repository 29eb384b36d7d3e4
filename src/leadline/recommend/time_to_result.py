"""When a result is there, counted from submission: the wait in the queue and the run after it."""

import math
from dataclasses import dataclass
from functools import lru_cache

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.waits import QueueWait
from leadline.uncertainty.distributions import quantile

RUNS = 40
"""Quantiles that a run is taken apart into."""


@dataclass(frozen=True, slots=True)
class TimeToResult:
    """Wait + run as ``sums_s``, equally likely values in ascending order."""

    sums_s: tuple[float, ...]

    def quantile(self, probability: float) -> float:
        """Return the time that is exceeded with probability 1 − ``probability`` at most.

        Raises:
            InvalidInput: the probability does not lie between 0 and 1.
        """
        if not 0 < probability < 1:
            raise InvalidInput(f"a risk of {1 - probability:g} is not usable: choose one between 0 and 1, such as 0.05")
        return self.sums_s[max(0, math.ceil(probability * len(self.sums_s) - 1e-9) - 1)]

    def interval(self, level: float) -> Interval:
        """Return the median and the range that holds the time with probability ``level``."""
        tail = (1 - level) / 2
        return Interval(self.quantile(0.5), self.quantile(tail), self.quantile(1 - tail), level)


@lru_cache(maxsize=256)
def time_to_result(wait: QueueWait, run_s: Interval) -> TimeToResult:
    """Return the distribution of wait + run, taken as independent: each quantile of one with each of the other.

    They are: how long a queue is does not depend on how far the estimate of this job's run is off.
    """
    runs = [quantile(run_s, (number + 0.5) / RUNS) for number in range(RUNS)]
    return TimeToResult(tuple(sorted(wait_s + one for wait_s in wait.quantiles_s for one in runs)))
