"""The methods that anyone would try first, beside which Leadline's answers stand."""

import numpy as np

from benchmarks.dnn.asked import Array


def nearest(learned: Array, values: Array, asked: Array, scale: Array | None = None) -> Array:
    """Return for each row of ``asked`` (n, columns) the value of the nearest of ``learned`` (m, columns).

    Columns are divided by ``scale``, else by their deviation among the learned rows.
    """
    from scipy.spatial import cKDTree  # noqa: PLC0415 - only benches of public data need it

    scale = np.maximum(learned.std(axis=0), 1e-9) if scale is None else scale
    found: Array = values[cKDTree(learned / scale).query(asked / scale)[1]]
    return found


def boosting(learned: Array, values: Array, asked: Array) -> Array:
    """Return what gradient-boosted trees, as scikit-learn sets them up, learn of the logarithm of positive values."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - needed to fit alone

    trees = HistGradientBoostingRegressor(min_samples_leaf=min(20, max(2, len(values) // 20)), random_state=0)
    found: Array = np.exp(trees.fit(learned, np.log(values)).predict(asked))
    return found
