"""Whether one predictor is better than another on the same runs, by more than chance: a paired sign-flip test."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from statistics import fmean

EXACT = 14
"""Runs up to which every assignment of signs is counted; of more, FLIPS are drawn."""
FLIPS = 1999


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean absolute log errors of the predictor ``before`` and of the one ``after``, on the same ``runs``.

    ``p_value`` is the probability of so large a gain were the two equally good: that it is chance which of the two is
    better on a run (Fisher's permutation test, one-sided).
    """

    runs: int
    before: float
    after: float
    p_value: float

    def better(self, risk: float) -> bool:
        """Whether the second is better, at a probability of ``risk`` at most that it is not."""
        return self.after < self.before and self.p_value <= risk


def compare(before: Sequence[float], after: Sequence[float], *, tried: int = 1, seed: int = 0) -> Comparison:
    """Compare the errors ln(measured ÷ predicted) of two predictors on the same n runs.

    ``tried`` is how many predictors the second was chosen from by these very errors; it multiplies the probability
    (Bonferroni).

    Raises:
        ValueError: there is no run, or the two are not of the same runs.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} errors are not those of the same runs")
    gains = [abs(one) - abs(other) for one, other in zip(before, after, strict=True)]
    total = sum(gains)
    close = 1e-12 * sum(map(abs, gains))
    if len(gains) <= EXACT:
        flips = product((1, -1), repeat=len(gains))
        reached = [
            sum(sign * gain for sign, gain in zip(signs, gains, strict=True)) >= total - close for signs in flips
        ]
        p_value = fmean(reached)
    else:
        source = Random(seed)  # noqa: S311 - signs, not secrets
        as_large = sum(
            sum(gain if source.random() < 0.5 else -gain for gain in gains) >= total - close for _ in range(FLIPS)
        )
        p_value = (as_large + 1) / (FLIPS + 1)
    return Comparison(len(gains), fmean(map(abs, before)), fmean(map(abs, after)), min(tried * p_value, 1.0))
