"""What simpler methods say of vision models' steps, from the same learning rows."""

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.vision_data import VisionSteps
from leadline.core.hardware import Device

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
FLOPS, ROOFLINE, NEAREST, BOOSTING = "FLOPs ÷ peak", "fitted roofline", "nearest neighbour", "plain boosting"


class Baselines:
    """Simple methods over the rows of ``steps``; ``devices`` maps the data's names onto the catalog's records."""

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
        """Return what each method says of the rows ``ask`` after seeing the rows ``learn``."""
        return {
            FLOPS: self._flops(learn, ask),
            ROOFLINE: self._roofline(learn, ask),
            NEAREST: self._nearest(learn, ask),
            BOOSTING: self._boosting(learn, ask),
        }

    def _flops(self, learn: Whole, ask: Whole) -> Array:
        said: Array = np.median(self._steps.step_s[learn] / self._arithmetic_s[learn]) * self._arithmetic_s[ask]
        return said

    def _roofline(self, learn: Whole, ask: Whole) -> Array:
        """Fit one efficiency of the peak and one of the bandwidth to relative errors."""
        from scipy.optimize import nnls  # noqa: PLC0415 - only benches and fits need it

        terms = np.stack([self._arithmetic_s, self._traffic_s], axis=1)
        found, _ = nnls(terms[learn] / self._steps.step_s[learn, None], np.ones(len(learn)))
        said: Array = terms[ask] @ found
        return said

    def _nearest(self, learn: Whole, ask: Whole) -> Array:
        """Scale the nearest learned row of the same setting, if there is one, by the roofline."""
        from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

        scale = self._sizes[learn].std(axis=0) + 1e-9
        _, setting = np.unique(self._steps.setting, return_inverse=True)
        where = np.column_stack([self._sizes / scale, 10.0 * setting])
        found = NearestNeighbors(n_neighbors=1).fit(where[learn]).kneighbors(where[ask], return_distance=False)[:, 0]
        near = learn[found]
        work = np.hypot(self._arithmetic_s, self._traffic_s)
        said: Array = self._steps.step_s[near] * work[ask] / work[near]
        return said

    def _boosting(self, learn: Whole, ask: Whole) -> Array:
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415

        model = HistGradientBoostingRegressor(max_iter=300, random_state=0)
        model.fit(self._plain[learn], np.log(self._steps.step_s[learn]))
        said: Array = np.exp(model.predict(self._plain[ask]))
        return said
