"""Error metrics, selection policies built on them, and a paired comparison of two predictors.

The metrics take measured values above zero and as many predictions. They raise ``ValueError`` for other values, and
where there is nothing to score.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from random import Random
from statistics import fmean

from leadline.core.errors import UnknownName
from leadline.core.frozen import Frozen


def mae(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the mean absolute error, in the unit of the measurement."""
    return _mean([abs(p - y) for y, p in _rows(measured, predicted)])


def mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the mean absolute percentage error, in percent."""
    return 100 * _mean([abs(p - y) / y for y, p in _rows(measured, predicted)])


def underprediction(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the share of predictions below the measurement, in percent (HARP's UPP)."""
    return 100 * _mean([float(p < y) for y, p in _rows(measured, predicted)])


def up_mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the MAPE over the under-predicted points alone (HARP's UP_MAPE), in percent; 0 where there are none."""
    return 100 * _mean([(y - p) / y for y, p in _rows(measured, predicted) if p < y] or [0.0])


def ov_mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the MAPE over the over-predicted points alone (HARP's OV_MAPE), in percent; 0 where there are none."""
    return 100 * _mean([(p - y) / y for y, p in _rows(measured, predicted) if p > y] or [0.0])


def over_request(measured: Sequence[float], requested: Sequence[float]) -> float:
    """Return the median of requested ÷ measured: 1.25 requests a quarter more than needed."""
    return statistics.median(r / y for y, r in _rows(measured, requested))


def pinball(measured: Sequence[float], predicted: Sequence[float], quantile: float) -> float:
    """Return the mean pinball loss, in the unit of the measurement; the true ``quantile`` minimises it."""
    return _mean([max(quantile * (y - p), (quantile - 1) * (y - p)) for y, p in _rows(measured, predicted)])


def coverage(measured: Sequence[float], low: Sequence[float], high: Sequence[float]) -> float:
    """Return the share of measurements within their interval, its ends included, in percent."""
    return 100 * _mean([float(a <= y <= b) for y, a, b in _rows(measured, low, high)])


def _rows(measured: Sequence[float], *predicted: Sequence[float]) -> Iterator[tuple[float, ...]]:
    if not len(measured) or any(len(column) != len(measured) for column in predicted) or not min(measured) > 0:
        raise ValueError("a metric needs as many predictions as positive measurements, and at least one")
    return zip(measured, *predicted, strict=True)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))


Key = Callable[[Sequence[float], Sequence[float]], tuple[float, ...]]
"""Function of measured and predicted values to the scores that a policy compares in order; less is better."""

PINBALL_QUANTILE = 0.9
"""Pinball policy: under-prediction costs nine times as much as over-prediction by the same amount."""
WASTE = 0.2
"""Cost policy: price of a second requested and not used, relative to a second of running."""
GROWTH = 1.5
"""Cost policy: factor by which a killed run increases its next request."""
REQUEUE = 0.25
"""Cost policy: price of another wait in the queue after each kill, as a share of the run."""
MOST_RERUNS = 40


def choose_model(policy: str, measured: Sequence[float], predictions: Mapping[str, Sequence[float]]) -> str:
    """Return the name of the model that a policy chooses by its predictions of validation runs; the first of equals.

    ``policy`` is a key of ``POLICIES``, or ``wtm-published``.

    Raises:
        UnknownName: no such policy.
    """
    if policy == "wtm-published":
        return wtm_published(measured, predictions)
    if policy not in POLICIES:
        raise UnknownName("policy", policy, [*POLICIES, "wtm-published"])
    return min(predictions, key=lambda name: POLICIES[policy](measured, predictions[name]))


def wtm(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """Return HARP's walltime metric: the under-predicted share, then the error of the others (UPP, OV_MAPE)."""
    return underprediction(measured, predicted), ov_mape(measured, predicted)


def wtm_published(measured: Sequence[float], predictions: Mapping[str, Sequence[float]]) -> str:
    """Return the model that HARP 1.0 chooses, which differs from its published walltime metric.

    Where several models share the least UPP, the release takes the least OV_MAPE of *all* models. So a model that
    under-predicts everything (OV_MAPE 0) wins the tie.
    """
    scores = {name: wtm(measured, predicted) for name, predicted in predictions.items()}
    least = min(upp for upp, _ in scores.values())
    tied = [name for name, (upp, _) in scores.items() if upp == least]
    return tied[0] if len(tied) == 1 else min(scores, key=lambda name: scores[name][1])


def expected_cost(measured: Sequence[float], requested: Sequence[float]) -> float:
    """Return the mean cost of requesting ``requested`` on top of the run itself, as a share of the measured time.

    A request that is not used costs ``WASTE`` of its length. A killed run costs its whole request and ``REQUEUE`` of
    its own length, and runs again with ``GROWTH`` times the request until that suffices.
    """
    return _mean([_cost(y, r) for y, r in _rows(measured, requested)])


def _cost(needed: float, requested: float) -> float:
    # A request of nearly nothing would be killed without end.
    least = needed * GROWTH**-MOST_RERUNS
    kills = MOST_RERUNS
    if requested >= needed:
        kills = 0
    elif requested > least:
        kills = math.ceil(math.log(needed / requested) / math.log(GROWTH) - 1e-12)
    requested = max(requested, least)
    lost = requested * (GROWTH**kills - 1) / (GROWTH - 1)
    return (lost + WASTE * max(requested * GROWTH**kills - needed, 0.0)) / needed + REQUEUE * kills


POLICIES: dict[str, Key] = {
    "mae": lambda measured, predicted: (mae(measured, predicted),),
    "mape": lambda measured, predicted: (mape(measured, predicted),),
    "wtm": wtm,
    "pinball": lambda measured, predicted: (pinball(measured, predicted, PINBALL_QUANTILE),),
    "cost": lambda measured, predicted: (expected_cost(measured, predicted),),
}
"""Selection policies; ``mae`` and ``wtm`` are HARP's, and ``mape`` counts short and long runs alike."""


EXACT = 14
"""Runs up to which all assignments of signs are counted; for more, ``FLIPS`` are drawn."""
FLIPS = 1999


class PairedComparison(Frozen):
    """Mean absolute log errors of two predictors on the same runs.

    ``p_value`` is the probability of so large a gain if both were equally good (Fisher's permutation test, one-sided).
    """

    runs: int
    before: float
    after: float
    p_value: float

    def better(self, risk: float) -> bool:
        """Return whether the second predictor is better, with probability ``risk`` at most that it is not."""
        return self.after < self.before and self.p_value <= risk


def compare_errors(
    before: Sequence[float], after: Sequence[float], *, tried: int = 1, seed: int = 0
) -> PairedComparison:
    """Compare the log errors of two predictors on the same runs by a paired sign-flip test.

    ``tried`` is the number of predictors among which these errors chose the second. It multiplies the p-value
    (Bonferroni).

    Raises:
        ValueError: there is no run, or the two have different numbers of runs.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} errors are not those of the same runs")
    gains = [abs(first) - abs(second) for first, second in zip(before, after, strict=True)]
    total = sum(gains)
    # Sums of equal gains in another order may differ by rounding.
    close = 1e-12 * sum(map(abs, gains))
    if len(gains) <= EXACT:
        flips = product((1, -1), repeat=len(gains))
        p_value = fmean(
            sum(sign * gain for sign, gain in zip(signs, gains, strict=True)) >= total - close for signs in flips
        )
    else:
        source = Random(seed)  # noqa: S311 - signs, not secrets
        as_large = sum(
            sum(gain if source.random() < 0.5 else -gain for gain in gains) >= total - close for _ in range(FLIPS)
        )
        p_value = (as_large + 1) / (FLIPS + 1)
    return PairedComparison(len(gains), fmean(map(abs, before)), fmean(map(abs, after)), min(tried * p_value, 1.0))
