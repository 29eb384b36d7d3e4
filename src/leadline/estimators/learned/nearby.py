"""What measured kernels of a device say of kernels like them: Gaussian-process regression on what is left.

Two kernels are alike as far as their sizes are close, and as far as the trees that other devices taught end in the same
leaves for both (Davies and Ghahramani 2014). What the second says is a value for each leaf, so that asking is a walk.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from leadline.estimators.learned.kernel_table import COMPUTING, LAWS, Kernels
from leadline.estimators.tabular.ports import Array, State
from leadline.estimators.tabular.states import floats

Whole = npt.NDArray[np.int64]

LENGTHS = (0.7, 1.5, 3.0, 6.0)
"""Lengths of correlation that are tried, in logarithms of sizes."""
SHARES = (0.0, 0.3, 1.0, 3.0)
"""Variances of what leaves have in common, over that of the surface of sizes, that are tried."""
NOISES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Variances of a single kernel over that of the surface that are tried."""


@dataclass(frozen=True, slots=True)
class Nearby:
    """A surface of mean zero: points (s, f), the weights (s,) of their covariances, length of correlation.

    ``values`` has one value for each node of the trees, to be added up over the leaves of a kernel; it is empty where
    there are no trees. ``error`` is the root mean square of what is wrong where each point is left out.
    """

    points: Array
    weights: Array
    length: float
    error: float = float("nan")
    values: Array = field(default_factory=lambda: np.zeros(0))

    def at(self, points: Array, leaves: Whole | None = None) -> Array:
        """Return the value expected at points (n, f) whose leaves (n, trees) are given."""
        found: Array = _covariance(points, self.points, self.length) @ self.weights
        if leaves is not None and len(self.values):
            found += self.values[leaves].sum(axis=1)
        return found

    def dump(self) -> State:
        """Return the surface as arrays."""
        scale = np.array([self.length, self.error])
        values = self.values.astype(np.float32)
        return {"points": self.points, "weights": self.weights, "length": scale, "values": values}

    @classmethod
    def load(cls, state: State) -> "Nearby":
        """Return the surface that ``dump`` gave."""
        length, error = floats(state["length"]).tolist()
        return cls(floats(state["points"]), floats(state["weights"]), length, error, floats(state["values"]))


def nearby_of(points: Array, values: Array, leaves: Whole | None = None, nodes: int = 0) -> Nearby:
    """Return the surface through ``values`` whose leave-one-out errors are least; nothing left out, where none helps.

    ``leaves`` (s, trees) are where the points end in trees of ``nodes`` nodes in all. The errors left out have a closed
    form (Rasmussen and Williams 2006, section 5.4.2).
    """
    least = float(np.mean(values**2))
    best = Nearby(points, np.zeros(len(values)), LENGTHS[0], least**0.5)
    common = None if leaves is None else _in_common(leaves)
    for length in LENGTHS:
        near = _covariance(points, points, length)
        for share in SHARES if common is not None else SHARES[:1]:
            scales, directions = np.linalg.eigh(near if common is None else near + share * common)
            for noise in NOISES:
                weighed = directions / (np.maximum(scales, 0.0) + noise)
                weights = weighed @ (directions.T @ values)
                error = float(np.mean((weights / (weighed * directions).sum(axis=1)) ** 2))
                if error < least:
                    found = np.zeros(0) if leaves is None else _by_leaf(leaves, share * weights, nodes)
                    best, least = Nearby(points, weights, length, error**0.5, found), error
    return best


def coordinates(group: int, kernels: Kernels) -> Array:
    """Return where kernels lie among their group's: logarithms of their sizes, (n, f)."""
    if group in COMPUTING or group == len(LAWS):
        sizes = (kernels.b, kernels.m, kernels.n, kernels.k)
        return np.column_stack([np.log(each) for each in sizes])
    each_moves = np.maximum(kernels.moved / (kernels.rows * kernels.columns), 1e-3)
    return np.column_stack([np.log(each) for each in (kernels.rows, kernels.columns, each_moves)])


def _in_common(leaves: Whole) -> Array:
    """Return the share of the trees in which two points end in the same leaf, (s, s)."""
    found: Array = np.mean([each[:, None] == each[None, :] for each in leaves.T], axis=0)
    return found


def _by_leaf(leaves: Whole, weights: Array, nodes: int) -> Array:
    """Return for each node the part of the surface that a kernel which ends there gets from it."""
    trees = leaves.shape[1]
    found = np.bincount(leaves.ravel(), np.repeat(weights / trees, trees), minlength=nodes)
    return found.astype(np.float32).astype(np.float64)  # as it is kept


def _covariance(one: Array, other: Array, length: float) -> Array:
    """Return the exponential covariance: kernels next to each other may still be run by different code."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T
    found: Array = np.exp(-np.sqrt(np.maximum(squares, 0.0)) / length)
    return found
