"""How far predictions are from what was measured."""

from collections.abc import Sequence


def mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the mean absolute percentage error, in percent.

    Raises:
        ValueError: no points, unequal lengths, or a measured value that is not positive.
    """
    if not measured or len(measured) != len(predicted) or min(measured) <= 0:
        raise ValueError("MAPE needs as many predictions as positive measurements, and at least one")
    return 100 * sum(abs(p - y) / y for y, p in zip(measured, predicted, strict=True)) / len(measured)


def best_constant(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the factor on ``predicted`` (positive) that minimises the MAPE.

    The error is a sum of absolute values that is linear between its kinks, so the best factor is one of them:
    the median of measured ÷ predicted, weighted by predicted ÷ measured.
    """
    ratios = sorted((y / p, p / y) for y, p in zip(measured, predicted, strict=True))
    half = sum(weight for _, weight in ratios) / 2
    seen = 0.0
    for ratio, weight in ratios:
        seen += weight
        if seen >= half:
            return ratio
    raise ValueError("no points")


def underprediction(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the share of predictions below the measurement, in percent (HARP's UPP)."""
    return 100 * sum(p < y for y, p in zip(measured, predicted, strict=True)) / len(measured)
