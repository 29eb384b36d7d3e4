"""How far predictions, intervals and requests are from what was measured.

``measured`` is above zero and as long as what stands beside it; every function raises ``ValueError`` where it is not,
or where there is nothing to score.
"""

import statistics
from collections.abc import Iterator, Sequence


def mae(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the mean absolute error, in the unit of what was measured."""
    return _mean([abs(p - y) for y, p in _pairs(measured, predicted)])


def mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the mean absolute percentage error, in percent."""
    return 100 * _mean([abs(p - y) / y for y, p in _pairs(measured, predicted)])


def underprediction(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the share of predictions below the measurement, in percent (HARP's UPP)."""
    return 100 * _mean([float(p < y) for y, p in _pairs(measured, predicted)])


def up_mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the MAPE over the under-predicted points alone (HARP's UP_MAPE), in percent; 0 where there are none."""
    return 100 * _mean([(y - p) / y for y, p in _pairs(measured, predicted) if p < y], none=0.0)


def ov_mape(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the MAPE over the over-predicted points alone (HARP's OV_MAPE), in percent; 0 where there are none."""
    return 100 * _mean([(p - y) / y for y, p in _pairs(measured, predicted) if p > y], none=0.0)


def over_request(measured: Sequence[float], requested: Sequence[float]) -> float:
    """Return the median of requested ÷ measured: 1.25 asks for a quarter more than is needed."""
    return statistics.median(r / y for y, r in _pairs(measured, requested))


def pinball(measured: Sequence[float], predicted: Sequence[float], quantile: float) -> float:
    """Return the mean pinball loss, in the unit of what was measured; the true ``quantile`` (0 to 1) minimises it."""
    return _mean([max(quantile * (y - p), (quantile - 1) * (y - p)) for y, p in _pairs(measured, predicted)])


def coverage(measured: Sequence[float], low: Sequence[float], high: Sequence[float]) -> float:
    """Return the share of measurements within their interval, its ends included, in percent."""
    return 100 * _mean([float(a <= y <= b) for y, a, b in _triples(measured, low, high)])


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


def _pairs(measured: Sequence[float], predicted: Sequence[float]) -> Iterator[tuple[float, float]]:
    _check(measured, predicted)
    return zip(measured, predicted, strict=True)


def _triples(
    measured: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> Iterator[tuple[float, float, float]]:
    _check(measured, low)
    _check(measured, high)
    return zip(measured, low, high, strict=True)


def _check(measured: Sequence[float], predicted: Sequence[float]) -> None:
    if len(measured) == 0 or len(measured) != len(predicted) or not min(measured) > 0:
        raise ValueError("a metric needs as many predictions as positive measurements, and at least one")


def _mean(values: Sequence[float], *, none: float | None = None) -> float:
    if not values and none is not None:
        return none
    return float(sum(values) / len(values))
