"""Simple baselines for Leadline's estimates: nearest neighbours, plain boosting and rooflines."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.vision_data import VisionSteps
from leadline.core.hardware import Device
from leadline.estimators.ports import Array
from leadline.estimators.step_time.swept_kernels import KernelSamples


def nearest_row(learned: Array, values: Array, rows: Array, scale: Array | None = None) -> Array:
    """Return for each row of ``rows`` (n, columns) the value of the nearest of ``learned`` (m, columns).

    Columns are divided by ``scale``, by default their standard deviation over the learned rows.
    """
    from scipy.spatial import cKDTree  # noqa: PLC0415 - only benches of public data need it

    scale = np.maximum(learned.std(axis=0), 1e-9) if scale is None else scale
    nearest: Array = values[cKDTree(learned / scale).query(rows / scale)[1]]
    return nearest


def boosted_rows(learned: Array, values: Array, rows: Array) -> Array:
    """Predict positive values by scikit-learn's gradient boosting with its defaults, on their logarithms."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - needed to fit alone

    trees = HistGradientBoostingRegressor(min_samples_leaf=min(20, max(2, len(values) // 20)), random_state=0)
    predicted: Array = np.exp(trees.fit(learned, np.log(values)).predict(rows))
    return predicted


SHARES = np.round(np.arange(0.05, 1.51, 0.05), 2)


def peak_roofline(_: KernelSamples, rows: KernelSamples) -> Array:
    """Return the floating-point operations divided by the peak."""
    peak_s: Array = rows.kernels.flops / rows.placed().peak
    return peak_s


def fitted_roofline(learned: KernelSamples, rows: KernelSamples) -> Array:
    """Return the larger of arithmetic and traffic at the shares of peak and bandwidth fitted to the learned kernels."""
    busy_s, moved_s = _bounds(learned)
    best = (np.inf, 1.0, 1.0)
    for share in SHARES.tolist():
        for bandwidth_share in SHARES.tolist():
            error = float(
                np.mean(np.abs(np.log(np.maximum(busy_s / share, moved_s / bandwidth_share) / learned.seconds)))
            )
            best = min(best, (error, share, bandwidth_share))
    busy_s, moved_s = _bounds(rows)
    roofline_s: Array = np.maximum(busy_s / best[1], moved_s / best[2])
    return roofline_s


def nearest_kernel(learned: KernelSamples, rows: KernelSamples) -> Array:
    """Return the time of the learned kernel with the most similar sizes and device, times the ratio of rooflines."""
    from sklearn.neighbors import KDTree  # noqa: PLC0415 - only benches need it

    tree = KDTree(_raw(learned))
    at = tree.query(_raw(rows), k=1)[1][:, 0]
    scaled_s: Array = learned.seconds[at] * np.maximum(*_bounds(rows)) / np.maximum(*_bounds(learned))[at]
    return scaled_s


def boosted_kernels(learned: KernelSamples, rows: KernelSamples) -> Array:
    """Predict by gradient boosting on the logarithms of sizes and of the device's specifications."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - only benches need it

    grown = HistGradientBoostingRegressor(max_iter=150, random_state=0).fit(_raw(learned), np.log(learned.seconds))
    predicted_s: Array = np.exp(grown.predict(_raw(rows)))
    return predicted_s


METHODS: dict[str, Callable[[KernelSamples, KernelSamples], Array]] = {
    "flops over peak": peak_roofline,
    "fitted roofline": fitted_roofline,
    "nearest kernel": nearest_kernel,
    "boosting on raw figures": boosted_kernels,
}


def _bounds(rows: KernelSamples) -> tuple[Array, Array]:
    placed = rows.placed()
    return rows.kernels.flops / placed.peak, rows.kernels.moved / placed.bytes_per_s


def _raw(rows: KernelSamples) -> Array:
    kernels, placed = rows.kernels, rows.placed()
    figures = (
        kernels.b, kernels.m, kernels.n, kernels.k, kernels.rows, kernels.columns, kernels.moved,
        placed.peak, placed.bytes_per_s, placed.l2_bytes, placed.units,
    )  # fmt: skip
    return np.column_stack([kernels.name.astype(float), *(np.log(each) for each in figures)])


Whole = npt.NDArray[np.int64]
FLOPS, ROOFLINE, NEAREST, BOOSTING = "FLOPs ÷ peak", "fitted roofline", "nearest neighbour", "plain boosting"


class VisionBaselines:
    """Simple methods over the rows of ``steps``; ``devices`` maps the data's names to the catalog's devices."""

    def __init__(self, steps: VisionSteps, devices: dict[str, Device]) -> None:
        table, owner = steps.table, steps.table.owner
        flops = np.bincount(owner, table.flops * table.matrix * table.count, table.graphs)[steps.graph]
        moved = np.bincount(owner, table.bytes * table.count, table.graphs)[steps.graph]
        peaks = np.array([devices[name].peak_flops_per_s["float16"] for name in steps.device])
        rates = np.array([devices[name].memory_bytes_per_s or np.nan for name in steps.device])
        self._arithmetic_s, self._traffic_s = flops / peaks, moved / rates
        self._steps, self._rate = steps, rates
        columns = steps.columns
        self._sizes = np.log(
            np.stack([flops, moved, table.launches[steps.graph], columns["param_count"] * 1e6 + 1], axis=1)
        )
        plain = [np.nan_to_num(columns[name], nan=0.0) for name in ("gmacs", "macts", "param_count")]
        _, setting = np.unique(steps.setting, return_inverse=True)
        self._plain = np.stack([*plain, columns["img_size"], columns["batch_size"], peaks, rates, setting], axis=1)

    def answers(self, learn: Whole, ask: Whole) -> dict[str, Array]:
        """Return each method's predictions of the rows ``ask`` from the rows ``learn``."""
        return {
            FLOPS: self._flops(learn, ask),
            ROOFLINE: self._roofline(learn, ask),
            NEAREST: self._nearest(learn, ask),
            BOOSTING: self._boosting(learn, ask),
        }

    def _flops(self, learn: Whole, ask: Whole) -> Array:
        predicted: Array = np.median(self._steps.step_s[learn] / self._arithmetic_s[learn]) * self._arithmetic_s[ask]
        return predicted

    def _roofline(self, learn: Whole, ask: Whole) -> Array:
        """Fit one efficiency of the peak and one of the bandwidth to relative errors."""
        from scipy.optimize import nnls  # noqa: PLC0415 - only benches and fits need it

        terms = np.stack([self._arithmetic_s, self._traffic_s], axis=1)
        efficiencies, _ = nnls(terms[learn] / self._steps.step_s[learn, None], np.ones(len(learn)))
        predicted: Array = terms[ask] @ efficiencies
        return predicted

    def _nearest(self, learn: Whole, ask: Whole) -> Array:
        """Scale the nearest learned row, preferably of the same setting, by the roofline."""
        from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

        scale = self._sizes[learn].std(axis=0) + 1e-9
        _, setting = np.unique(self._steps.setting, return_inverse=True)
        where = np.column_stack([self._sizes / scale, 10.0 * setting])
        positions = (
            NearestNeighbors(n_neighbors=1).fit(where[learn]).kneighbors(where[ask], return_distance=False)[:, 0]
        )
        near = learn[positions]
        work = np.hypot(self._arithmetic_s, self._traffic_s)
        predicted: Array = self._steps.step_s[near] * work[ask] / work[near]
        return predicted

    def _boosting(self, learn: Whole, ask: Whole) -> Array:
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415

        model = HistGradientBoostingRegressor(max_iter=300, random_state=0)
        model.fit(self._plain[learn], np.log(self._steps.step_s[learn]))
        predicted: Array = np.exp(model.predict(self._plain[ask]))
        return predicted
