"""The constant factor that a benchmark compares with."""

from collections.abc import Sequence


def best_constant(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the factor on ``predicted`` (positive) that minimises the MAPE.

    The error is a sum of absolute values, linear between its kinks. So the best factor is one of the kinks: the median
    of measured ÷ predicted, weighted by predicted ÷ measured.
    """
    ratios = sorted((y / p, p / y) for y, p in zip(measured, predicted, strict=True))
    half = sum(weight for _, weight in ratios) / 2
    cumulative = 0.0
    for ratio, weight in ratios:
        cumulative += weight
        if cumulative >= half:
            return ratio
    raise ValueError("no points")
