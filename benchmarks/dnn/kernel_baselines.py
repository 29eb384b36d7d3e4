"""What others would answer for a kernel: peaks, a fitted roofline, the nearest measured kernel, plain boosting."""

from collections.abc import Callable

import numpy as np

from leadline.estimators.learned.fit_kernels import Timings
from leadline.estimators.tabular.ports import Array

SHARES = np.round(np.arange(0.05, 1.51, 0.05), 2)


def peak(_: Timings, rows: Timings) -> Array:
    """Return the floating-point operations over the peak."""
    found: Array = rows.kernels.flops / rows.placed().peak
    return found


def roofline(learned: Timings, rows: Timings) -> Array:
    """Return the larger of arithmetic and traffic at the shares of peak and bandwidth that suit the learned kernels."""
    busy_s, moved_s = _bounds(learned)
    best = (np.inf, 1.0, 1.0)
    for share in SHARES.tolist():
        for other in SHARES.tolist():
            error = float(np.mean(np.abs(np.log(np.maximum(busy_s / share, moved_s / other) / learned.seconds))))
            best = min(best, (error, share, other))
    busy_s, moved_s = _bounds(rows)
    found: Array = np.maximum(busy_s / best[1], moved_s / best[2])
    return found


def nearest(learned: Timings, rows: Timings) -> Array:
    """Return the time of the learned kernel of the most similar sizes and device, times the ratio of rooflines."""
    from sklearn.neighbors import KDTree  # noqa: PLC0415 - only benches need it

    tree = KDTree(_raw(learned))
    at = tree.query(_raw(rows), k=1)[1][:, 0]
    found: Array = learned.seconds[at] * np.maximum(*_bounds(rows)) / np.maximum(*_bounds(learned))[at]
    return found


def boosting(learned: Timings, rows: Timings) -> Array:
    """Return what gradient boosting makes of logarithms of sizes and of the device's figures."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - only benches need it

    grown = HistGradientBoostingRegressor(max_iter=150, random_state=0).fit(_raw(learned), np.log(learned.seconds))
    found: Array = np.exp(grown.predict(_raw(rows)))
    return found


METHODS: dict[str, Callable[[Timings, Timings], Array]] = {
    "flops over peak": peak,
    "fitted roofline": roofline,
    "nearest kernel": nearest,
    "boosting on raw figures": boosting,
}


def _bounds(rows: Timings) -> tuple[Array, Array]:
    placed = rows.placed()
    return rows.kernels.flops / placed.peak, rows.kernels.moved / placed.bytes_per_s


def _raw(rows: Timings) -> Array:
    kernels, placed = rows.kernels, rows.placed()
    figures = (
        kernels.b, kernels.m, kernels.n, kernels.k, kernels.rows, kernels.columns, kernels.moved,
        placed.peak, placed.bytes_per_s, placed.l2_bytes, placed.units,
    )  # fmt: skip
    return np.column_stack([kernels.name.astype(float), *(np.log(each) for each in figures)])
