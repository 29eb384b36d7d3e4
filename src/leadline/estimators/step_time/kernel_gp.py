"""Gaussian-process regression of a device's residuals on its own measured kernels.

Two kernels are similar if their sizes are close, each on a scale of its own, and if they end in the same leaves of the
trees of other devices (Davies and Ghahramani 2014). The second part is one value per leaf, so prediction is a tree
walk. The trust in the trees' own correction is one more unknown, about a half.
"""

from dataclasses import dataclass, field

import numpy as np

from leadline.estimators.gp import squared_distances
from leadline.estimators.ports import Array, IntArray, State, floats
from leadline.estimators.step_time.kernel_table import COMPUTING, CONVOLUTION, KERNEL_KINDS, KernelTable

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
# Half of the edge of the usual large tile: a library takes a smaller one where an odd number of halves is filled.
HALF_TILE = 64.0


@dataclass(frozen=True, slots=True)
class KernelGP:
    """A zero-mean surface: points (s, f), scales (f,) of their sizes, and weights (s,).

    ``values`` has one entry per tree node, to be added over a kernel's leaves; empty without trees. ``trusted`` is the
    weight of the trees' predictions. ``error`` is the root mean square leave-one-out error.
    """

    points: Array
    scales: Array
    weights: Array
    trusted: float = 0.0
    error: float = float("nan")
    values: Array = field(default_factory=lambda: np.zeros(0))

    def at(self, points: Array, predicted: Array | None = None, leaves: IntArray | None = None) -> Array:
        """Return the expected value at points (n, f), with tree predictions (n,) and leaves (n, trees)."""
        expected: Array = _covariance(points * self.scales, self.points * self.scales) @ self.weights
        if predicted is not None:
            expected += self.trusted * predicted
        if leaves is not None and len(self.values):
            expected += self.values[leaves].sum(axis=1)
        return expected

    def dump(self) -> State:
        """Return the surface as arrays."""
        figures = np.array([self.trusted, self.error])
        values = self.values.astype(np.float32)
        return {
            "points": self.points, "scales": self.scales, "weights": self.weights, "values": values,
            "figures": figures,
        }  # fmt: skip

    @classmethod
    def load(cls, state: State) -> "KernelGP":
        """Return the surface that ``dump`` gave."""
        trusted, error = floats(state["figures"]).tolist()
        points, scales, weights = (floats(state[name]) for name in ("points", "scales", "weights"))
        return cls(points, scales, weights, trusted, error, floats(state["values"]))


@dataclass(frozen=True, slots=True)
class TreePredictions:
    """Trees on s kernels: values ``predicted`` (s,), leaves (s, trees) and the number of nodes."""

    predicted: Array
    leaves: IntArray
    nodes: int


def fit_kernel_gp(points: Array, values: Array, grown: TreePredictions | None = None) -> KernelGP:
    """Return the surface of least robust leave-one-out error, by coordinate search of its scales.

    These errors have a closed form (Rasmussen and Williams 2006, section 5.4.2).
    """
    search = _Search(points, values, grown)
    at = np.full(points.shape[1] + 2, START)
    best, weights, errors = search.misfit(at)
    for step in STEPS:
        for i in range(len(at)):
            for move in (step, -step):
                tried = at.copy()
                tried[i] = np.clip(tried[i] + move, *FARTHEST)
                cost, tried_weights, tried_errors = search.misfit(tried)
                if cost < best:
                    best, weights, errors, at = cost, tried_weights, tried_errors, tried
                    break
    error, scales = float(np.sqrt(np.mean(errors**2))), np.exp(at[:-2])
    if grown is None:
        return KernelGP(points, scales, weights, 0.0, error)
    by_leaf = _by_leaf(grown.leaves, np.exp(at[-2]) * weights, grown.nodes)
    trusted = TRUSTED + TRUSTED**2 * float(grown.predicted @ weights)
    return KernelGP(points, scales, weights, trusted, error, by_leaf)


@dataclass(slots=True)
class _Search:
    points: Array
    values: Array
    grown: TreePredictions | None
    common: Array = field(init=False)
    trust: Array = field(init=False)
    mean: Array = field(init=False)

    def __post_init__(self) -> None:
        predicted = np.zeros(len(self.values)) if self.grown is None else self.grown.predicted
        self.common = (
            np.zeros((len(predicted), len(predicted))) if self.grown is None else _in_common(self.grown.leaves)
        )
        self.trust = TRUSTED**2 * np.outer(predicted, predicted)
        self.mean = TRUSTED * predicted

    def misfit(self, at: Array) -> tuple[float, Array, Array]:
        """Return the robust mean of the errors left out, the weights (s,) and those errors (s,)."""
        scaled = self.points * np.exp(at[:-2])
        near = _covariance(scaled, scaled) + np.exp(at[-2]) * self.common + self.trust
        near[np.diag_indices(len(near))] += np.exp(at[-1])
        inverse = np.linalg.inv(near)
        weights = inverse @ (self.values - self.mean)
        errors = weights / np.diag(inverse)
        return float(np.mean(np.sqrt(1 + (errors / ROBUST) ** 2) - 1)), weights, errors


def kernel_coordinates(group: int, kernels: KernelTable) -> Array:
    """Return log sizes (n, f), the coordinates of kernels in their group."""
    if group == CONVOLUTION:
        images = np.maximum(kernels.m / kernels.side**2, 1.0)
        return np.column_stack([np.log(each) for each in (kernels.b, images, kernels.side, kernels.n, kernels.k)])
    if group in COMPUTING or group == len(KERNEL_KINDS):
        sizes = (kernels.b, kernels.m, kernels.n, kernels.k)
        return np.column_stack([np.log(each) for each in sizes])
    each_moves = np.maximum(kernels.moved / (kernels.rows * kernels.columns), 1e-3)
    return np.column_stack([np.log(each) for each in (kernels.rows, kernels.columns, each_moves)])


def gp_coordinates(group: int, kernels: KernelTable) -> Array:
    """Return ``kernel_coordinates`` with half-filled tiles and alignment, which also select kernels."""
    where = kernel_coordinates(group, kernels)
    if group not in COMPUTING and group != len(KERNEL_KINDS):
        return where
    halves = (np.ceil(kernels.m / HALF_TILE) % 2, np.ceil(kernels.n / HALF_TILE) % 2)
    return np.column_stack([where, *halves, kernels.k % 4 == 0])


def _in_common(leaves: IntArray) -> Array:
    """Return the share of the trees in which two points end in the same leaf, (s, s)."""
    share: Array = np.mean([each[:, None] == each[None, :] for each in leaves.T], axis=0)
    return share


def _by_leaf(leaves: IntArray, weights: Array, nodes: int) -> Array:
    """Return each node's contribution to the kernels that end in it."""
    trees = leaves.shape[1]
    by_node = np.bincount(leaves.ravel(), np.repeat(weights / trees, trees), minlength=nodes)
    return by_node.astype(np.float32).astype(np.float64)  # as it is kept


def _covariance(rows: Array, columns: Array) -> Array:
    """Return the exponential covariance: even close kernels may run different code."""
    covariance: Array = np.exp(-np.sqrt(np.maximum(squared_distances(rows, columns), 0.0)))
    return covariance
