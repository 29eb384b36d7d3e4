"""Utilization of every op, fitted to the times of whole steps alone.

An op takes its roofline, the hypotenuse of arithmetic at the peak and traffic at the bandwidth, times ``LEAST_MULTIPLE
+ exp(f)``. Here f is linear in the logarithms of its sizes, with weights of its class. A step is the sum of its ops, or
of its launches where the host is slower, so whole steps determine the weights (``op_fitting``). Kernel selection is not
linear in sizes, so residuals are kriged over similar ops.

The residual of an op's log time is a Gaussian process over its sizes, independent for each class. A step's residual is
the sum of its ops', weighted by their shares of the step. Whole steps therefore determine the residuals of ops, and an
unseen model inherits those of similar kernels.
"""

import numpy as np
from msgspec import field, structs

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.estimators.gp import squared_exponential
from leadline.estimators.ports import Array, IntArray, Single, State, Stored
from leadline.estimators.step_time.kernel_table import distinct_rows
from leadline.estimators.step_time.op_table import DTYPES, KERNEL_CLASSES, Cells, OpTable
from leadline.estimators.step_time.power_limit import LIMIT_EXPONENT, clock_share, matrix_share
from leadline.estimators.step_time.roofline import l2_bytes, power_limited_flops_per_s, require_bandwidth

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


# Least multiple of an op's roofline: caches serve some ops faster than memory could.
LEAST_MULTIPLE = 0.6
# Time of the smallest kernel, which rounds off the roofline's corner.
RAMP_S = 1.5e-6
# Prior of the host's time for one kernel.
PRIOR_LAUNCH_S = 4e-6
# How sharply the slower of device and host decides: the power of the mean of the two.
OVERLAP_POWER = 6.0
LOWEST, HIGHEST = -3.5, 4.0

_SIZE_KNOTS = (1.0, 3.0, 5.0, 7.0, 9.0)
_INTENSITY_KNOTS = (-4.0, -2.0, 0.0, 2.0)
# The logarithm to 2 of a little more than 7 × 7.
_LARGE_FILTER = 5.7
SHARED_COLUMNS = len(_SIZE_KNOTS) + len(_INTENSITY_KNOTS) + 3
CLASS_COLUMNS = 31
# Columns that select another kernel: odd channels, long indices, odd widths and numbers of groups, large filters.
FLAG_COLUMNS = (10, 11, *range(20, CLASS_COLUMNS))
WEIGHT_COUNT = SHARED_COLUMNS + CLASS_COLUMNS * len(KERNEL_CLASSES)


class OpBasis(Frozen):
    """Regressors of f for n ops on a device: ``shared`` (n, SHARED_COLUMNS), ``by_class`` (n, CLASS_COLUMNS).

    ``roofline_s`` (n,) is each op's roofline, and ``beyond_s`` (n,) the cost of each further multiple of it.
    """

    table: OpTable
    roofline_s: Array
    beyond_s: Array
    shared: Array
    by_class: Array

    @classmethod
    def from_table(cls, table: OpTable, device: Device, *, learned_on: Device | None = None) -> "OpBasis":
        """Return the basis of ``table`` on ``device``, for models fitted there or on another device.

        Time above the roofline is latency that too few warps hide (Little's law). On another device it shrinks with the
        number of compute units and the clock under a power limit, not with bandwidth or peak.

        Raises:
            InvalidInput: the device has no bandwidth, or no peak for a dtype of a product.
        """
        busy_s, traffic_s = roofline_terms_s(table, device)
        if learned_on is not None:
            # The learned efficiency includes what its own device's factory limit sustains. Measured float32 steps of
            # V100, A100 and P100 show no gain on boards that sustain more.
            busy_s = busy_s / np.minimum(_sustained(table, device) / _sustained(table, learned_on), 1)
        roofline_s = _roofline_s(table, busy_s, traffic_s)
        intensity = np.clip(np.log2((busy_s + 1e-12) / (traffic_s + 1e-12)), -8, 8)
        size = np.log2(roofline_s * 1e6)
        cached = np.clip(np.log2(table.bytes / l2_bytes(device)), -4, 4)
        shared = _shared_columns(table, intensity, size, cached)
        beyond_s = roofline_s
        if learned_on and device.compute_units and learned_on.compute_units:
            there_s = _roofline_s(table, *roofline_terms_s(table, learned_on))
            beyond_s = there_s * (learned_on.compute_units / device.compute_units / clock_share(device))
        return cls(table, roofline_s, beyond_s, shared, _class_columns(table, intensity, size))


class OpUtilization(Stored):
    """A fitted model: weights ``f``, a setting's offset, the host's launch, and their variance.

    ``f`` is (WEIGHT_COUNT,). ``variance`` (WEIGHT_COUNT,) is the posterior's diagonal in units of the error variance,
    empty if unknown. ``departures`` are the kriged residuals of ops.
    """

    figures = ("offset", "launch_s")

    f: Array
    offset: float = 0.0
    launch_s: float = PRIOR_LAUNCH_S
    variance: Array = field(default_factory=lambda: np.zeros(0))
    departures: OpResiduals | None = None

    def dump(self) -> State:
        """Return the law as arrays, the long ones in half the bytes."""
        return super().dump() | {"f": self.f.astype(np.float32), "variance": self.variance.astype(np.float32)}


class ObservedSteps(Frozen):
    """m measured steps of one setting: positions ``graph`` (m,) in ``basis``, and ``step_s`` (m,)."""

    basis: OpBasis
    graph: IntArray
    step_s: Array


def predict_graphs_and_ops(basis: OpBasis, weights: OpUtilization) -> tuple[Array, Array, Array]:
    """Return the seconds of a step and their spread for each graph (g,), and the seconds per call of each op (n,)."""
    power = op_powers(basis, weights, op_residuals(basis, weights))
    step_s, device_s = step_and_device_s(basis, power, weights.launch_s)
    return step_s, _spread(basis, weights, slopes_s(basis, power), device_s), multiples_s(basis, power)


def op_residuals(basis: OpBasis, weights: OpUtilization) -> Array:
    """Return the residual of each op's f from its linear part, shape (n,)."""
    return np.zeros(len(basis.roofline_s)) if weights.departures is None else weights.departures.predict(basis.table)


def op_powers(basis: OpBasis, weights: OpUtilization, departed: Array) -> Array:
    """Return exp(f) of each op, of shape (n,)."""
    class_weights = weights.f[SHARED_COLUMNS:].reshape(len(KERNEL_CLASSES), CLASS_COLUMNS)[basis.table.classes]
    f = (
        basis.shared @ weights.f[:SHARED_COLUMNS]
        + np.einsum("ij,ij->i", basis.by_class, class_weights)
        + weights.offset
        + departed
    )
    return np.asarray(np.exp(np.clip(f, LOWEST, HIGHEST)))


def multiples_s(basis: OpBasis, power: Array) -> Array:
    """Return the seconds of ``LEAST_MULTIPLE + power`` rooflines.

    Multiples above the first cost ``beyond_s`` each.
    """
    multiple = LEAST_MULTIPLE + power
    return np.asarray(basis.roofline_s * np.minimum(multiple, 1) + basis.beyond_s * np.maximum(multiple - 1, 0))


def slopes_s(basis: OpBasis, power: Array) -> Array:
    """Return the derivative of each op's seconds by f."""
    return np.asarray(np.where(power > 1 - LEAST_MULTIPLE, basis.beyond_s, basis.roofline_s) * power)


def step_and_device_s(basis: OpBasis, power: Array, launch_s: float) -> tuple[Array, Array]:
    """Return the seconds of the step and of the device alone, each of shape (g,)."""
    table = basis.table
    device_s = table.summed(multiples_s(basis, power) * table.count)
    host_s = launch_s * table.launches
    step_s: Array = (device_s**OVERLAP_POWER + host_s**OVERLAP_POWER) ** (1 / OVERLAP_POWER)
    return step_s, device_s


def _spread(basis: OpBasis, weights: OpUtilization, slope_s: Array, device_s: Array) -> Array:
    """Return the spread of each graph from the posterior's diagonal; NaN without one."""
    table = basis.table
    if not len(weights.variance):
        return np.full(table.graphs, np.nan)
    cells = Cells.of(table)
    share = slope_s * table.count / device_s[cells.owner]
    total = np.zeros(table.graphs)
    variance = weights.variance[SHARED_COLUMNS:].reshape(len(KERNEL_CLASSES), CLASS_COLUMNS)[cells.classes]
    for column in range(CLASS_COLUMNS):
        slope = np.bincount(cells.cell, share * basis.by_class[:, column], len(cells.graph))
        total += np.bincount(cells.graph, slope**2 * variance[:, column], table.graphs)
    return np.asarray(np.sqrt(total))


def roofline_terms_s(table: OpTable, device: Device) -> tuple[Array, Array]:
    """Return the seconds of arithmetic at the peaks and of traffic at the bandwidth, each (n,)."""
    bytes_per_s = require_bandwidth(device)
    peaks = device.peak_flops_per_s
    vector = peaks.get("float32")
    if not vector:
        raise InvalidInput(f"{device.name} has no float32 peak in the catalog, so its speed is not known")
    dtype_peaks = [peaks.get(peak_dtype, vector if peak_dtype == "tf32" else 0.0) for peak_dtype in DTYPES]
    named = np.append(dtype_peaks, vector)[table.dtypes]
    if (absent := table.matrix & (named == 0)).any():
        dtype = DTYPES[table.dtypes[absent][0]]
        raise InvalidInput(f"{device.name} has no {dtype} peak in the catalog, so its speed is not known")
    return table.flops / np.where(table.matrix, named, vector), table.bytes / bytes_per_s


def _sustained(table: OpTable, device: Device) -> Array:
    """Return the share of the peak that the device's factory limit sustains in each op, shape (n,)."""
    on_vector = ~table.matrix | (table.dtypes < 0) | (table.dtypes == DTYPES.index("float32"))
    within_limit = min(power_limited_flops_per_s(device) / device.peak_flops_per_s["float32"], 1.0)
    return np.where(on_vector, within_limit**LIMIT_EXPONENT, matrix_share(device))


def _roofline_s(table: OpTable, busy_s: Array, traffic_s: Array) -> Array:
    return np.asarray(np.hypot(busy_s, traffic_s) + RAMP_S * table.kernels)


def _shared_columns(table: OpTable, intensity: Array, size: Array, cached: Array) -> Array:
    """Return the regressors of all classes: stream sizes, product intensities, and the cache."""
    stream, product = ~table.matrix, table.matrix
    columns = [np.where(stream, np.clip(size - knot, 0, 12), 0.0) for knot in _SIZE_KNOTS]
    columns += [np.where(product, np.maximum(intensity - knot, 0), 0.0) for knot in _INTENSITY_KNOTS]
    columns += [np.where(product, intensity, 0.0), np.where(product, np.maximum(3 - size, 0), 0.0)]
    columns.append(np.where(stream, np.minimum(cached, 0.0), 0.0))
    return np.stack(columns).T


def _group_columns(sizes: Array) -> list[Array]:
    """Return marks of group widths, few groups, narrow widening groups, few channels, and filters over 7 × 7.

    Some group widths have their own kernels. Weight gradients have little parallelism where groups are few. Narrow
    kernels keep the width of a group. Libraries have depthwise kernels for filters of up to 7 × 7.
    """
    width, number = sizes[:, 0], sizes[:, 2]
    grouped = (number > 0) & (sizes[:, 4] > 0) & (width > 0)
    marks = [grouped & (width < 3.5), *(grouped & (width == mark) for mark in (4.0, 5.0, 6.0))]
    marks.append(grouped & (sizes[:, 15] == 0) & (width > 6.5))
    few = np.where(grouped, np.maximum(5 - number, 0), 0.0)
    uneven = np.where(grouped & (width < 4.5), np.abs(width - sizes[:, 1]) > 0.1, 0.0)
    channels = np.where(grouped, np.maximum(7 - width - number, 0), 0.0)
    large = np.maximum(sizes[:, 4] - _LARGE_FILTER, 0)
    return [*(mark.astype(float) for mark in marks), few, uneven.astype(float), channels, large]


def _class_columns(table: OpTable, intensity: Array, size: Array) -> Array:
    """Return the regressors with separate weights per class, from the columns of ``OpTable.sizes``."""
    product, s = table.matrix, table.sizes
    nothing = np.zeros_like(size)
    pairs = [
        (np.clip(s[:, 0], 2, 11) - 7, np.clip(s[:, 0], 0, 12) - 6),
        (np.clip(s[:, 1], 0, 11) - 7, s[:, 4] - 1),
        (np.maximum(5 - s[:, 0], 0), s[:, 5]),
        (np.maximum(5 - s[:, 1], 0), s[:, 6]),
        (intensity, s[:, 7]),
        (np.maximum(intensity, 0), np.where(s[:, 9] > 0, np.clip(s[:, 9], 4, 20) - 10, nothing)),
        (np.maximum(-intensity - 2, 0), np.where(s[:, 1] > 0, np.maximum(8 - s[:, 1], 0), nothing)),
        *((column, nothing) for column in (s[:, 5], s[:, 4] - 1, s[:, 6], s[:, 7])),
        (s[:, 11], s[:, 11]),
        (np.clip(s[:, 3], 0, 16) - 9, nothing),
        (s[:, 2], s[:, 2]),
        (size - 8, size - 8),
        *((column, nothing) for column in (s[:, 8], s[:, 10], s[:, 12], s[:, 13])),
        (s[:, 14], s[:, 14]),
        *((column, nothing) for column in (s[:, 15], *_group_columns(s))),
    ]
    columns = [np.ones_like(size), *(np.where(product, of_product, of_stream) for of_product, of_stream in pairs)]
    return np.stack(columns).T
