"""Distribution of queue waits: a forest whose leaves hold the share of jobs started by each time."""

import numpy as np

from leadline.core.queues import IMMEDIATE_START_S
from leadline.estimators.ports import Array, State, Stored
from leadline.estimators.tabular.trees import Trees


def wait_grid(longest_s: float) -> Array:
    """Return the waits (K,) of the distributions: doubling from a minute past the longest one."""
    doublings = max(1, int(np.ceil(np.log2(max(longest_s, IMMEDIATE_START_S) / IMMEDIATE_START_S))))
    return np.array([5.0, 15.0, *(IMMEDIATE_START_S * 2.0**k for k in range(doublings + 1))])


class WaitForest(Stored):
    """Trees over queue metrics; a leaf's value is its row in ``shares``."""

    trees: Trees
    grid_s: Array  # waits (K,)
    shares: Array  # share (leaves, K) of a leaf's jobs that waited no longer

    def distribution(self, x: Array) -> Array:
        """Return P(wait ≤ grid) of each row, shape (n, K): the mean over the trees."""
        leaf = self.trees.value.astype(np.int64)[self.trees.leaves(x)]
        return np.array([self.shares[row].mean(axis=0) for row in leaf]).reshape(len(x), len(self.grid_s))

    def dump(self) -> State:
        """Return the forest as arrays, with the large ``shares`` in half the bytes."""
        return {**Stored.dump(self), "shares": self.shares.astype(np.float32)}


def wait_quantile(grid_s: Array, distribution: Array, level: Array) -> Array:
    """Return the wait (n,) at probability ``level`` (n,) in each row's distribution."""
    # Between two waits of the grid the logarithm is interpolated, below the first the wait itself.
    place = np.minimum((distribution < level[:, None] - 1e-12).sum(axis=1), len(grid_s) - 1)
    rows = np.arange(len(distribution))
    high, below = distribution[rows, place], np.where(place > 0, distribution[rows, place - 1], 0.0)
    part = np.clip((level - below) / np.maximum(high - below, 1e-12), 0.0, 1.0)
    longer, shorter = grid_s[place], grid_s[np.maximum(place - 1, 0)]
    waits: Array = np.where(place > 0, shorter * (longer / shorter) ** part, longer * part)
    return waits


def wait_probability(grid_s: Array, distribution: Array, wait_s: Array) -> Array:
    """Return P(wait ≤ ``wait_s``) (n,), each in its row's distribution; the inverse of ``wait_quantile``."""
    place = np.searchsorted(grid_s, wait_s)
    rows, inside = np.arange(len(distribution)), np.minimum(place, len(grid_s) - 1)
    high, below = distribution[rows, inside], np.where(inside > 0, distribution[rows, inside - 1], 0.0)
    longer, shorter = grid_s[inside], grid_s[np.maximum(inside - 1, 0)]
    along = np.log(np.maximum(wait_s, 1e-9) / shorter) / np.log(np.where(inside > 0, longer / shorter, 2.0))
    part = np.clip(np.where(inside > 0, along, wait_s / longer), 0.0, 1.0)
    probabilities: Array = np.where(place >= len(grid_s), 1.0, np.clip(below + part * (high - below), 0.0, 1.0))
    return probabilities
