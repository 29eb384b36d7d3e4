"""Training tables of all estimators: rows, log targets, weights and folds."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Scale, Value
from leadline.estimators.ports import Array, Predictions

# The full-scale samples together count for at least this share, however many scaled-down ones there are …
FULL_SCALE_SHARE = 0.25
# … but none for more than so many of those.
HEAVIEST = 3.0
WIDEST = math.log(10)  # no spread is wider: a factor of ten either way says that nothing is known
# Predictions are clipped to e to this power around the fitted values, so they stay positive and finite.
REACH = 40.0


class SampleTable(Frozen):
    """Samples by columns: ``logs`` (n,), ``weight`` of mean one, ``folds`` by configuration."""

    rows: tuple[Mapping[str, Value], ...]
    logs: Array
    censored: npt.NDArray[np.bool_]
    full_scale: npt.NDArray[np.bool_]
    weight: Array
    folds: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def tabulate_samples(samples: Sequence[Sample], *, least: int, estimator: str) -> SampleTable:
    """Return a table; ``InvalidInput`` if fewer than ``least`` samples are measured or a value is not positive."""
    for sample in samples:
        if not (math.isfinite(sample.value) and sample.value > 0):
            of = f"run {sample.run_id}" if sample.run_id else "a run"
            raise InvalidInput(
                f"the measured value of {of} is {sample.value}, but values must be finite and positive: leave it out"
            )
    measured = sum(not sample.censored for sample in samples)
    if measured < least:
        raise InvalidInput(
            f"{estimator} needs at least {least} finished runs to learn from, but there are {measured}: make more"
        )
    full_scale = np.array([sample.scale is Scale.FULL_SCALE for sample in samples])
    names = [sample.configuration for sample in samples]
    return SampleTable(
        tuple(sample.features for sample in samples),
        np.log([float(sample.value) for sample in samples]),
        np.array([sample.censored for sample in samples]),
        full_scale,
        _weights(full_scale),
        np.array([zlib.crc32(name.encode()) for name in names], np.int64),
    )


def _weights(full_scale: npt.NDArray[np.bool_]) -> Array:
    """Return weights of mean one that keep few full-scale samples from being drowned."""
    many, few = int((~full_scale).sum()), int(full_scale.sum())
    if not many or not few:
        return np.ones(len(full_scale))
    weight_ratio = FULL_SCALE_SHARE / (1 - FULL_SCALE_SHARE) * many / few
    weight = np.where(full_scale, min(max(weight_ratio, 1.0), HEAVIEST), 1.0)
    return np.asarray(weight / weight.mean(), np.float64)


def assign_folds(folds: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold, 0 to ``count`` - 1, of each row; a configuration stays in one fold."""
    distinct = np.unique(folds)
    order = np.random.default_rng(seed).permutation(len(distinct))
    return np.asarray(order[np.searchsorted(distinct, folds)] % count, np.int64)


def robust_deviation(residuals: Array, weight: Array | None = None) -> float:
    """Return the standard deviation about zero, robust to a few outliers."""
    if not len(residuals):
        return WIDEST
    typical = 1.4826 * float(np.median(np.abs(residuals)))
    clipped = np.clip(residuals, -4 * typical, 4 * typical) if typical > 0 else residuals
    return float(np.sqrt(np.average(clipped**2, weights=weight)))


def predictions(logs: Array, limits: Array, spread: Array, beyond: Array, growth: float) -> Predictions:
    """Return predictions from ln(target) and its spread, to which each fitted range of extrapolation adds ``growth``.

    ``limits`` are the least and the largest fitted logarithm.
    """
    point = np.exp(np.clip(logs, limits[0] - REACH, limits[1] + REACH))
    more = np.minimum(growth * np.minimum(beyond, 1e6), WIDEST)
    return Predictions(point, np.minimum(np.hypot(spread, more), WIDEST), beyond)


def impute_censored(table: SampleTable, fit: Callable[[Array, npt.NDArray[np.bool_]], tuple[Array, float]]) -> Array:
    """Return log targets with each lower bound replaced by its expectation (Tobit model, EM)."""
    # `fit` takes the logarithms and the rows to fit. It returns the expectation of each row and its deviation.
    filled, use = table.logs, ~table.censored
    for _ in range(4 if table.censored.any() else 0):
        expected, sigma = fit(filled, use)
        filled = np.where(table.censored, mean_above(table.logs, expected, max(sigma, 1e-3)), table.logs)
        use = np.ones(len(table), bool)
    return filled


def mean_above(bound: Array, mean: Array, sigma: float) -> Array:
    """Return the mean of a normal variable truncated below at ``bound``."""
    standard = np.clip((bound - mean) / sigma, -30, 30)
    density = np.exp(-0.5 * standard**2) / math.sqrt(2 * math.pi)
    tail = np.array([0.5 * math.erfc(score / math.sqrt(2)) for score in standard])
    hazard = np.where(standard > 25, standard + 1 / np.maximum(standard, 1), density / np.maximum(tail, 1e-300))
    return np.asarray(np.maximum(bound, mean + sigma * hazard), np.float64)
