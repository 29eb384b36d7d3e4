"""Boosting of ample data by LightGBM: the shipped black box, stored as the trees of the other estimators."""

from typing import Any

import numpy as np

from leadline.core.errors import MissingExtra
from leadline.estimators.ports import Array, Regression
from leadline.estimators.tabular.black_box import BlackBox
from leadline.estimators.tabular.registry import SHIPPED_BLACK_BOX
from leadline.estimators.tabular.trees import Trees

LEAFWISE_ROUNDS = 1000
DEEPEST = 12
LIGHTGBM_SETTINGS: dict[str, object] = {
    "objective": "l1", "learning_rate": 0.06, "num_leaves": 63, "max_depth": DEEPEST, "min_data_in_leaf": 5,
    "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "verbosity": -1, "deterministic": True,
    "force_row_wise": True, "num_threads": 1,
}  # fmt: skip


class LeafwiseBoosting(Regression):
    """LightGBM (Ke et al. 2017) on absolute errors, which a few odd rows do not decide."""

    fitted = Trees

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
        grown = lightgbm.train({**LIGHTGBM_SETTINGS, "seed": seed}, data, num_boost_round=LEAFWISE_ROUNDS)
        return _convert_lightgbm(grown.dump_model()["tree_info"], base)


def _convert_lightgbm(trees: list[dict[str, Any]], base: float) -> Trees:
    nodes: list[list[float]] = []
    roots = [_add(tree["tree_structure"], nodes) for tree in trees]
    table = np.array(nodes, float).reshape(len(nodes), 5)
    column, left, right = (table[:, number].astype(np.int64) for number in (0, 2, 3))
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


# For thousands of rows; with fewer the estimators of the registry say more.
AMPLE_DATA_ESTIMATOR = BlackBox(SHIPPED_BLACK_BOX, LeafwiseBoosting(), growth=1.0)
