"""Gaussian-process regression of a device's residuals on its own measured kernels.

Two kernels are similar if their sizes are close, each on a scale of its own, and if they end in the same leaves of the
trees of other devices (Davies and Ghahramani 2014). The second part is one value per leaf, so prediction is a tree
walk. The trust in the trees' own correction is one more unknown, about a half.
"""

from dataclasses import replace
from itertools import product

import numpy as np
from msgspec import field

from leadline.core.frozen import Frozen
from leadline.estimators.gp import exponential, leave_one_out
from leadline.estimators.ports import Array, IntArray, State, Stored

# Logarithm to begin with of the scale of every size, and of two variances over that of the surface of sizes: of what
# leaves share, and of a single kernel's own.
START = -1.0
# How far each of those logarithms is moved in the rounds of the search.
STEPS = (1.1, 1.1, 0.6)
FARTHEST = (-6.0, 3.5)
# Logarithmic error from which on a kernel counts less than its square (pseudo-Huber).
ROBUST = 0.15
# The trust in trees that is expected of a device, and its standard deviation.
TRUSTED = 0.5


class KernelGP(Stored):
    """A zero-mean surface: points (s, f), scales (f,) of their sizes, and weights (s,).

    ``values`` has one entry per tree node, to be added over a kernel's leaves; empty without trees. ``trusted`` is the
    weight of the trees' predictions. ``error`` is the root mean square leave-one-out error.
    """

    figures = ("trusted", "error")

    points: Array
    scales: Array
    weights: Array
    trusted: float = 0.0
    error: float = float("nan")
    values: Array = field(default_factory=lambda: np.zeros(0))

    def at(self, points: Array, predicted: Array | None = None, leaves: IntArray | None = None) -> Array:
        """Return the expected value at points (n, f), with tree predictions (n,) and leaves (n, trees)."""
        expected: Array = exponential(points * self.scales, self.points * self.scales) @ self.weights
        if predicted is not None:
            expected += self.trusted * predicted
        if leaves is not None and len(self.values):
            expected += self.values[leaves].sum(axis=1)
        return expected

    def dump(self) -> State:
        """Return the surface as arrays, with the many ``values`` in half the bytes."""
        return {**super().dump(), "values": self.values.astype(np.float32)}


class TreePredictions(Frozen):
    """Trees on s kernels: values ``predicted`` (s,), leaves (s, trees) and the number of nodes."""

    predicted: Array
    leaves: IntArray
    nodes: int


def fit_kernel_gp(points: Array, values: Array, grown: TreePredictions | None = None) -> KernelGP:
    """Return the surface of least robust leave-one-out error, by coordinate search of its scales."""
    # The share of the trees in which two kernels end in the same leaf, and what an unknown trust in them has in common.
    common: Array | float = 0.0
    trust, mean = common, common
    if grown is not None:
        common = np.mean([leaf[:, None] == leaf[None, :] for leaf in grown.leaves.T], axis=0)
        trust, mean = TRUSTED**2 * np.outer(grown.predicted, grown.predicted), TRUSTED * grown.predicted

    def misfit(at: Array) -> tuple[float, Array, Array]:
        scaled = points * np.exp(at[:-2])
        covariance = exponential(scaled, scaled) + np.exp(at[-2]) * common + trust
        covariance[np.diag_indices(len(covariance))] += np.exp(at[-1])
        weights, errors = leave_one_out(covariance, values - mean)
        return float(np.mean(np.sqrt(1 + (errors / ROBUST) ** 2) - 1)), weights, errors

    at = np.full(points.shape[1] + 2, START)
    best, weights, errors = misfit(at)
    for step, i in product(STEPS, range(len(at))):
        for move in (step, -step):
            tried = at.copy()
            tried[i] = np.clip(tried[i] + move, *FARTHEST)
            cost, tried_weights, tried_errors = misfit(tried)
            if cost < best:
                best, weights, errors, at = cost, tried_weights, tried_errors, tried
                break
    surface = KernelGP(points, np.exp(at[:-2]), weights, 0.0, float(np.sqrt(np.mean(errors**2))))
    if grown is None:
        return surface
    trees = grown.leaves.shape[1]
    by_node = np.bincount(grown.leaves.ravel(), np.repeat(np.exp(at[-2]) * weights / trees, trees), grown.nodes)
    trusted = TRUSTED + TRUSTED**2 * float(grown.predicted @ weights)
    # Rounded as it is kept, so that a stored surface predicts the same.
    return replace(surface, trusted=trusted, values=by_node.astype(np.float32).astype(np.float64))
