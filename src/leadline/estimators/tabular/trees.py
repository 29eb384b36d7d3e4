"""Decision trees and boosting: grown by scikit-learn, stored as arrays."""

from typing import Any

import numpy as np

from leadline.estimators.ports import Array, IntArray, Regression, Stored

PLENTY = 2000  # from so many rows on, boosting grows larger trees on a part of the rows each
AT_ONCE = 1 << 14  # leaves that are looked for at once: as many as stay in the processor's cache
# Quantiles of the spread, and their distance in deviations of a normal variable.
LEVELS, BETWEEN = (0.1, 0.9), 2.563


class Trees(Stored):
    """The sum of ``base`` and one leaf of each tree.

    All trees share one array of nodes; ``roots`` are where each begins. A node goes ``left`` if ``column`` is at most
    ``threshold``, else ``right``. A leaf leads to itself.
    """

    base: float
    depth: int
    roots: IntArray
    column: IntArray
    threshold: Array
    left: IntArray
    right: IntArray
    value: Array

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the sum of the leaves of each row; trees have no spread of their own."""
        total = np.full(len(x), self.base)
        if not len(self.roots):
            return total, np.full(len(x), np.nan)
        many = max(AT_ONCE // len(self.roots), 1)
        for begin in range(0, len(x), many):
            node = self._find_leaves(x[begin : begin + many])
            total[begin : begin + many] += self.value.take(node).sum(axis=0)
        return total, np.full(len(x), np.nan)

    def leaves(self, x: Array) -> IntArray:
        """Return the leaf that each row ends in, in each tree, as positions of nodes: shape (n, trees)."""
        return self._find_leaves(x).T

    def _find_leaves(self, x: Array) -> IntArray:
        branches = np.stack([self.right, self.left], axis=1).ravel()
        part = np.ascontiguousarray(x.T, dtype=np.float32)  # as scikit-learn compares
        flat, offset, rows = part.ravel(), self.column * part.shape[1], np.arange(part.shape[1])
        node = np.repeat(self.roots[:, None], part.shape[1], axis=1)
        for _ in range(self.depth):
            goes_left = flat.take(offset.take(node) + rows) <= self.threshold.take(node)
            node = branches.take(2 * node + goes_left)
        return node


class DecisionTree(Regression):
    """One regression tree (Breiman et al. 1984); its leaves hold at least 1 % of the rows, and two."""

    fitted = Trees

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Trees:
        """Grow one tree."""
        from sklearn.tree import DecisionTreeRegressor  # noqa: PLC0415 - needed to fit alone

        leaf = max(2, len(y) // 100)
        grown = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=seed)
        if not x.shape[1]:
            return _stump(float(np.average(y, weights=weight)))
        return convert_trees([grown.fit(x, y, sample_weight=weight).tree_], base=0.0, rate=1.0)


class Boosting(Regression):
    """Gradient boosting (Friedman 2001), slow and shallow for few rows, and stochastic for many."""

    fitted = Trees

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Trees:
        """Grow the trees one after another, each on the residuals of those before."""
        many = len(y) >= PLENTY
        return fit_boosted_trees(
            x,
            y,
            weight,
            float(np.average(y, weights=weight)),
            n_estimators=250,
            learning_rate=0.1 if many else 0.06,
            max_depth=4 if many else 3,
            min_samples_leaf=20 if many else max(1, min(5, len(y) // 20)),
            max_features=None if x.shape[1] < 4 else 0.7,
            random_state=seed,
        )


class QuantileTrees(Stored):
    """Trees for the median and the quantiles ``LEVELS``, whose distance gives a spread."""

    low: Trees
    middle: Trees
    high: Trees

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the median of each row, and the deviation from the distance of the quantiles."""
        low, middle, high = (trees.predict(x)[0] for trees in (self.low, self.middle, self.high))
        return middle, np.maximum(high - low, 0.0) / BETWEEN


class QuantileBoosting(Regression):
    """Gradient boosting of quantiles by pinball loss (Koenker and Bassett 1978; Friedman 2001).

    With conformal intervals it is conformalised quantile regression (Romano, Patterson and Candès 2019): wide where
    runs scatter, narrow where they do not.
    """

    fitted = QuantileTrees

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> QuantileTrees:
        """Grow the trees of each quantile by themselves."""
        low, middle, high = (self._fit_quantile(x, y, weight, seed, level) for level in (LEVELS[0], 0.5, LEVELS[1]))
        return QuantileTrees(low, middle, high)

    def _fit_quantile(self, x: Array, y: Array, weight: Array, seed: int, level: float) -> Trees:
        return fit_boosted_trees(
            x,
            y,
            weight,
            float(np.quantile(y, level)),
            loss="quantile",
            alpha=level,
            n_estimators=150,
            learning_rate=0.06,
            max_depth=3,
            min_samples_leaf=max(1, min(20, len(y) // 20)),
            random_state=seed,
        )


def fit_boosted_trees(x: Array, y: Array, weight: Array, base: float, **settings: Any) -> Trees:  # noqa: ANN401
    """Return scikit-learn's gradient boosting from ``base``, each tree on a subsample of rows."""
    # `settings` are those of `GradientBoostingRegressor`.
    from sklearn import config_context  # noqa: PLC0415 - needed to fit alone
    from sklearn.ensemble import GradientBoostingRegressor  # noqa: PLC0415 - needed to fit alone

    if not x.shape[1]:
        return _stump(base)
    grown = GradientBoostingRegressor(init="zero", subsample=0.3 if len(y) >= PLENTY else 0.7, **settings)
    with config_context(skip_parameter_validation=True):  # done anew for each tree, it takes a quarter of small fits
        grown.fit(x, y - base, sample_weight=weight)
    return convert_trees([stage.tree_ for stage in grown.estimators_[:, 0]], base=base, rate=grown.learning_rate)


def _stump(value: float) -> Trees:
    none = np.zeros(0, np.int64)
    return Trees(value, 0, none, none, np.zeros(0), none, none, np.zeros(0))


def convert_trees(trees: list[Any], *, base: float, rate: float) -> Trees:
    """Return scikit-learn's trees as arrays, their leaves times ``rate``."""
    starts = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]
    parts = []
    for start, tree in zip(starts, trees, strict=True):
        itself = start + np.arange(tree.node_count)
        leaf = tree.children_left < 0
        parts.append(
            (
                np.where(leaf, 0, tree.feature),
                np.where(leaf, np.inf, tree.threshold),
                np.where(leaf, itself, start + tree.children_left),
                np.where(leaf, itself, start + tree.children_right),
                rate * tree.value[:, 0, 0],
            )
        )
    column, threshold, left, right, value = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Trees(base, max(tree.max_depth for tree in trees), starts, column, threshold, left, right, value)
