"""Gradient boosting for ample data: thousands of leaf-wise trees, grown by LightGBM and walked by numpy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.core.errors import MissingExtra
from leadline.estimators.tabular.ports import Array, State
from leadline.estimators.tabular.trees import Trees, load

ROUNDS = 1000
DEEPEST = 12
SETTINGS: dict[str, object] = {
    "objective": "l1", "learning_rate": 0.06, "num_leaves": 63, "max_depth": DEEPEST, "min_data_in_leaf": 5,
    "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "verbosity": -1, "deterministic": True,
    "force_row_wise": True, "num_threads": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeafwiseBoosting:
    """LightGBM (Ke et al. 2017) on absolute errors, which a few odd rows do not decide."""

    least: int = 50

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Trees:
        """Grow the trees one after another, each on a part of the rows and of the columns.

        Raises:
            MissingExtra: LightGBM is not installed.
        """
        try:
            import lightgbm  # noqa: PLC0415 - needed to fit alone
        except ModuleNotFoundError as error:
            raise MissingExtra("boosting of ample data", "train") from error
        single = x.astype(np.float32).astype(np.float64)  # as the trees are walked
        base = float(np.median(y))
        data = lightgbm.Dataset(single, y - base, weight=weight, free_raw_data=False)
        grown = lightgbm.train({**SETTINGS, "seed": seed}, data, num_boost_round=ROUNDS)
        return _kept(grown.dump_model()["tree_info"], base)

    def load(self, state: State) -> Trees:
        """Return the trees that ``dump`` gave."""
        return load(state)


def _kept(trees: list[dict[str, Any]], base: float) -> Trees:
    """Return LightGBM's trees as arrays."""
    nodes: list[list[float]] = []
    roots = [_add(tree["tree_structure"], nodes) for tree in trees]
    table = np.array(nodes, float).reshape(len(nodes), 5)
    column, left, right = (table[:, one].astype(np.int64) for one in (0, 2, 3))
    return Trees(base, DEEPEST, np.array(roots, np.int64), column, table[:, 1], left, right, table[:, 4])


def _add(node: dict[str, Any], nodes: list[list[float]]) -> int:
    """Append a node and what is below it (column, threshold, left, right, value), and return its place."""
    place = len(nodes)
    if "split_feature" not in node:
        nodes.append([0.0, np.inf, place, place, node["leaf_value"]])
        return place
    nodes.append([node["split_feature"], node["threshold"], 0.0, 0.0, 0.0])
    nodes[place][2] = _add(node["left_child"], nodes)
    nodes[place][3] = _add(node["right_child"], nodes)
    return place
