"""Residuals of op utilization, kriged over similar ops: kernel selection is not linear in sizes.

The residual of an op's log time is a Gaussian process over its sizes, independent for each class. A step's residual is
the sum of its ops', weighted by their shares of the step. Whole steps therefore determine the residuals of ops, and an
unseen model inherits those of similar kernels.
"""

import numpy as np
from msgspec import structs

from leadline.estimators.gp import squared_exponential
from leadline.estimators.ports import Array, IntArray, Single, State, Stored
from leadline.estimators.step_time.kernel_table import distinct_rows
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, OpTable

# Classes of which a library has many kernels, or none: their speed jumps with the sizes.
FICKLE = ("conv_grouped", "conv_depthwise", "conv_grouped_backward", "conv_depthwise_backward")
# Prior log deviations of an op's residual, and of fickle classes.
DEPARTURE, FICKLE_DEPARTURE = 0.5, 1.0
# Log deviation of a step from other causes; larger errors weigh less.
NOISE = 0.05
# Ops that take less of a step tell nothing of themselves.
LEAST_SHARE = 0.01
# Largest log residual of an op.
FARTHEST = 1.0
# Lengths over which ops are alike, of the columns of `op_coordinates`.
_OCTAVES = np.array([0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 1.0, 1.0, 0.5, 1.0, 0.5, 0.5, 0.5])
# Widths differ by at most so many factors of two for a kernel: 32 channels at once.
_MOST_FACTORS = 5


class OpResiduals(Stored):
    """Known ops of u sizes: ``classes`` (u,), coordinates ``at`` (u, c), and ``weight`` (u,)."""

    classes: IntArray
    at: Single
    weight: Single

    def predict(self, table: OpTable) -> Array:
        """Return the residual of each op's log time, shape (n,)."""
        residuals = np.zeros(len(table.classes))
        at = op_coordinates(table)
        for number in np.unique(self.classes):
            learned, rows = self.classes == number, np.flatnonzero(table.classes == number)
            if not len(rows):
                continue
            first, place = distinct_rows(at[rows])
            expected = squared_exponential(at[rows][first], self.at[learned]) @ self.weight[learned]
            residuals[rows] = expected[place]
        return np.clip(residuals, -FARTHEST, FARTHEST)

    def merge(self, newer: "OpResiduals") -> "OpResiduals":
        """Return the sum of both."""
        return OpResiduals(*map(np.concatenate, zip(structs.astuple(self), structs.astuple(newer), strict=True)))

    def dump(self) -> State:
        """Return the known ops as arrays, with the ``classes`` in the narrowest type."""
        return {**super().dump(), "classes": self.classes.astype(np.int16)}


def fit_op_residuals(table: OpTable, row: IntArray, op: IntArray, share: Array, error: Array) -> OpResiduals:
    """Return the likeliest residuals of ops, given the log errors of m steps (m,).

    Op ``op`` of ``table`` takes ``share`` of step ``row``, each (e,).
    """
    kept = share > LEAST_SHARE
    row, op, share = row[kept], op[kept], share[kept]
    at, classes = op_coordinates(table)[op], table.classes[op]
    covariance = np.diag(NOISE**2 * np.maximum(1.0, np.abs(error) / NOISE))
    parts = []
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        members = members[np.argsort(row[members], kind="stable")]
        kinds, place = distinct_rows(at[members])
        sizes = at[members][kinds]
        rows, first = np.unique(row[members], return_index=True)
        ops_and_steps = np.add.reduceat(squared_exponential(sizes, sizes)[:, place] * share[members], first, axis=1)
        steps = np.add.reduceat(ops_and_steps[place] * share[members, None], first, axis=0)
        departure = FICKLE_DEPARTURE if KERNEL_CLASSES[number] in FICKLE else DEPARTURE
        covariance[np.ix_(rows, rows)] += departure**2 * steps
        parts.append((number, sizes, place, row[members], departure**2 * share[members]))
    believed = np.linalg.solve(covariance, error)
    by_class = [
        (np.full(len(sizes), number), sizes, np.bincount(place, weight * believed[rows], len(sizes)))
        for number, sizes, place, rows, weight in parts
    ]
    if not by_class:
        return OpResiduals(np.zeros(0, np.int64), np.zeros((0, len(_OCTAVES)), np.float32), np.zeros(0, np.float32))
    class_numbers, sizes, weights = (np.concatenate(column) for column in zip(*by_class, strict=True))
    return OpResiduals(class_numbers.astype(np.int64), sizes, weights.astype(np.float32))


def op_coordinates(table: OpTable) -> Single:
    """Return the coordinates (n, c) of ops in their class, in units of correlation length."""
    s = table.sizes
    widths = np.maximum(np.rint(2.0 ** s[:, :2]), 1).astype(np.int64)
    factors = np.minimum(np.log2(widths & -widths), _MOST_FACTORS)
    columns = [*s[:, :6].T, *factors.T, s[:, 8], s[:, 9], s[:, 10], s[:, 6], s[:, 11]]
    return np.asarray((np.stack(columns, 1) / _OCTAVES).astype(np.float32))
