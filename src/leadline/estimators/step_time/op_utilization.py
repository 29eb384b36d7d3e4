"""A law of every op's utilisation, learned from the times of whole steps alone.

An op takes its roofline, the hypotenuse of arithmetic at the peak and traffic at the bandwidth, times
``FLOOR + exp(f)``: f is linear in the logarithms of its sizes, with weights of its class. A step is the sum of its ops,
or of its launches where the host cannot keep up, so that the times of whole steps tell the weights (``op_fit``).
Libraries choose among kernels, which no line through the sizes tells: that is kriged beside it (``op_kriging``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device
from leadline.estimators.ports import State, nest, unnest
from leadline.estimators.step_time.op_residuals import OpResiduals
from leadline.estimators.step_time.op_table import DTYPES, KERNEL_CLASSES, Cells, OpTable

Array = npt.NDArray[np.float64]

# The least multiple of its roofline that an op takes: caches let some stay below what memory alone would need.
LEAST_MULTIPLE = 0.6
# What the smallest kernel takes; it rounds off the roofline's corner.
RAMP_S = 1.5e-6
# What is believed of the host's time for one kernel before any step was seen.
PRIOR_LAUNCH_S = 4e-6
# How sharply the slower of device and host decides: the power of the mean of the two.
OVERLAP_POWER = 6.0
# What is believed of f before any step was seen.
PRIOR_F = -0.4
LOWEST, HIGHEST = -3.5, 4.0

_SIZE_KNOTS = (1.0, 3.0, 5.0, 7.0, 9.0)
_INTENSITY_KNOTS = (-4.0, -2.0, 0.0, 2.0)
# The logarithm to 2 of a little more than 7 × 7.
_LARGE_FILTER = 5.7
SHARED_COLUMNS = len(_SIZE_KNOTS) + len(_INTENSITY_KNOTS) + 3
CLASS_COLUMNS = 31
# Columns of what picks another kernel: odd channels, long indices, odd widths and numbers of groups, large filters.
FLAG_COLUMNS = (10, 11, *range(20, CLASS_COLUMNS))
WEIGHT_COUNT = SHARED_COLUMNS + CLASS_COLUMNS * len(KERNEL_CLASSES)


@dataclass(frozen=True, slots=True)
class OpBasis:
    """What f is linear in, for n ops on a device: ``shared`` (n, SHARED) and ``by_class`` (n, OWN).

    ``roofline_s`` (n,) is each op's roofline, and ``beyond_s`` (n,) what each multiple beyond the first takes.
    """

    table: OpTable
    roofline_s: Array
    beyond_s: Array
    shared: Array
    by_class: Array

    @classmethod
    def from_table(cls, table: OpTable, device: Device, *, learned_on: Device | None = None) -> "OpBasis":
        """Return the basis of ``table`` on ``device``, for laws that were learned there or on another device.

        What an op takes beyond its roofline is latency that too few warps hide (Little's law): on another device it
        shrinks with the number of compute units, and not with the bandwidth or the peak.

        Raises:
            InvalidInput: the device has no bandwidth, or no peak for a dtype of a product.
        """
        busy_s, traffic_s = roofline_terms_s(table, device)
        roofline_s = _roofline_s(table, busy_s, traffic_s)
        intensity = np.clip(np.log2((busy_s + 1e-12) / (traffic_s + 1e-12)), -8, 8)
        size = np.log2(roofline_s * 1e6)
        cached = np.clip(np.log2(table.bytes / (device.l2_bytes or 6e6)), -4, 4)
        shared = _shared_columns(table, intensity, size, cached)
        beyond_s = roofline_s if learned_on is None else _beyond_s(table, device, learned_on, roofline_s)
        return cls(table, roofline_s, beyond_s, shared, _class_columns(table, intensity, size))

    def select(self, graphs: Sequence[int] | npt.NDArray[np.int64]) -> "OpBasis":
        """Return the basis of those graphs alone, in that order."""
        first = self.table.first
        rows = np.concatenate(
            [np.arange(first[graph], first[graph + 1]) for graph in graphs] or [np.zeros(0, np.int64)]
        )
        shared, by_class = np.asfortranarray(self.shared[rows]), np.asfortranarray(self.by_class[rows])
        return OpBasis(self.table.select(graphs), self.roofline_s[rows], self.beyond_s[rows], shared, by_class)


@dataclass(frozen=True, slots=True)
class OpUtilization:
    """A fitted law: ``f`` (WEIGHTS,), an offset of the setting, the host's launch, and how sure each weight is.

    ``variance`` (WEIGHTS,) is the posterior's diagonal, in units of the errors' own variance; ``departures`` are what
    ops of some sizes take beside it.
    """

    f: Array
    offset: float = 0.0
    launch_s: float = PRIOR_LAUNCH_S
    variance: Array | None = None
    departures: OpResiduals | None = None

    @classmethod
    def prior(cls) -> "OpUtilization":
        """Return the law that holds before any step was seen."""
        f = np.zeros(WEIGHT_COUNT)
        f[SHARED_COLUMNS::CLASS_COLUMNS] = PRIOR_F
        return cls(f)

    def dump(self) -> State:
        """Return the law as arrays."""
        variance = np.zeros(0) if self.variance is None else self.variance
        state = {"f": self.f.astype(np.float32), "figures": np.array([self.offset, self.launch_s]),
                 "variance": variance.astype(np.float32)}  # fmt: skip
        return state | (nest("departures", self.departures.dump()) if self.departures else {})

    @classmethod
    def load(cls, state: State) -> "OpUtilization":
        """Return what was dumped."""
        figures, variance = state["figures"].astype(float), state["variance"].astype(float)
        f = state["f"].astype(float)
        departures = OpResiduals.load(unnest("departures", state)) if "departures.at" in state else None
        return cls(f, float(figures[0]), float(figures[1]), variance if len(variance) else None, departures)


@dataclass(frozen=True, slots=True)
class ObservedSteps:
    """m measured steps of one setting: ``graph`` (m,) is their graph in ``basis``, ``step_s`` (m,) what they took."""

    basis: OpBasis
    graph: npt.NDArray[np.int64]
    step_s: Array


@dataclass(frozen=True, slots=True)
class GraphPredictions:
    """What g graphs take: seconds of the step and of the device alone, and how unsure each is (all of shape (g,))."""

    step_s: Array
    device_s: Array
    spread: Array


def predict_graphs(basis: OpBasis, weights: OpUtilization) -> GraphPredictions:
    """Return what the graphs of ``basis`` take under the law."""
    return predict_graphs_and_ops(basis, weights)[0]


def predict_graphs_and_ops(basis: OpBasis, weights: OpUtilization) -> tuple[GraphPredictions, Array]:
    """Return what the graphs of ``basis`` take under the law, and the seconds of one call of each op, of shape (n,)."""
    power = op_powers(basis, weights, op_residuals(basis, weights))
    step_s, device_s = step_and_device_s(basis, power, weights.launch_s)
    spread = _spread(basis, weights, slopes_s(basis, power), device_s)
    return GraphPredictions(step_s, device_s, spread), multiples_s(basis, power)


def op_s(basis: OpBasis, weights: OpUtilization) -> Array:
    """Return the seconds of one call of each op on the device, of shape (n,)."""
    return multiples_s(basis, op_powers(basis, weights, op_residuals(basis, weights)))


def op_residuals(basis: OpBasis, weights: OpUtilization) -> Array:
    """Return what f of each op departs by from what is linear in its sizes, of shape (n,)."""
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
    powers: Array = np.exp(np.clip(f, LOWEST, HIGHEST))
    return powers


def multiples_s(basis: OpBasis, power: Array) -> Array:
    """Return the seconds of ``FLOOR + power`` rooflines, of which those beyond the first cost ``beyond_s``."""
    multiple = LEAST_MULTIPLE + power
    seconds: Array = basis.roofline_s * np.minimum(multiple, 1) + basis.beyond_s * np.maximum(multiple - 1, 0)
    return seconds


def slopes_s(basis: OpBasis, power: Array) -> Array:
    """Return by how much the seconds of each op grow with f."""
    slopes: Array = np.where(power > 1 - LEAST_MULTIPLE, basis.beyond_s, basis.roofline_s) * power
    return slopes


def step_and_device_s(basis: OpBasis, power: Array, launch_s: float) -> tuple[Array, Array]:
    """Return the seconds of the step and of the device alone, each of shape (g,)."""
    table = basis.table
    device_s = table.summed(multiples_s(basis, power) * table.count)
    host_s = launch_s * table.launches
    step_s: Array = (device_s**OVERLAP_POWER + host_s**OVERLAP_POWER) ** (1 / OVERLAP_POWER)
    return step_s, device_s


def _spread(basis: OpBasis, weights: OpUtilization, slope_s: Array, device_s: Array) -> Array:
    """Return how unsure each graph's price is, by the posterior's diagonal; NaN where the law has none."""
    table = basis.table
    if weights.variance is None:
        return np.full(table.graphs, np.nan)
    cells = Cells.of(table)
    share = slope_s * table.count / device_s[cells.owner]
    total = np.zeros(table.graphs)
    variance = weights.variance[SHARED_COLUMNS:].reshape(len(KERNEL_CLASSES), CLASS_COLUMNS)[cells.classes]
    for column in range(CLASS_COLUMNS):
        slope = np.bincount(cells.cell, share * basis.by_class[:, column], len(cells.graph))
        total += np.bincount(cells.graph, slope**2 * variance[:, column], table.graphs)
    spread: Array = np.sqrt(total)
    return spread


def roofline_terms_s(table: OpTable, device: Device) -> tuple[Array, Array]:
    """Return the seconds of arithmetic at the device's peaks and of traffic at its bandwidth, each of shape (n,)."""
    if not device.memory_bytes_per_s:
        raise InvalidInput(f"{device.name} has no memory bandwidth in the catalog, so its speed is not known")
    peaks = device.peak_flops_per_s
    vector = peaks.get("float32")
    if not vector:
        raise InvalidInput(f"{device.name} has no float32 peak in the catalog, so its speed is not known")
    dtype_peaks = [peaks.get(peak_dtype, vector if peak_dtype == "tf32" else 0.0) for peak_dtype in DTYPES]
    named = np.append(dtype_peaks, vector)[table.dtypes]
    if (absent := table.matrix & (named == 0)).any():
        dtype = DTYPES[table.dtypes[absent][0]]
        raise InvalidInput(f"{device.name} has no {dtype} peak in the catalog, so its speed is not known")
    peak = np.where(table.matrix, named, vector)
    return table.flops / peak, table.bytes / device.memory_bytes_per_s


def _roofline_s(table: OpTable, busy_s: Array, traffic_s: Array) -> Array:
    seconds: Array = np.hypot(busy_s, traffic_s) + RAMP_S * table.kernels
    return seconds


def _beyond_s(table: OpTable, device: Device, learned_on: Device, roofline_s: Array) -> Array:
    """Return what a multiple beyond the roofline takes, by the units of both; the roofline where one is not known."""
    if not (device.compute_units and learned_on.compute_units):
        return roofline_s
    there_s = _roofline_s(table, *roofline_terms_s(table, learned_on))
    return there_s * (learned_on.compute_units / device.compute_units)


def _shared_columns(table: OpTable, intensity: Array, size: Array, cached: Array) -> Array:
    """Return what ops of all classes have in common: sizes of streams, intensities of products, and the cache."""
    stream, product = ~table.matrix, table.matrix
    columns = [np.where(stream, np.clip(size - knot, 0, 12), 0.0) for knot in _SIZE_KNOTS]
    columns += [np.where(product, np.maximum(intensity - knot, 0), 0.0) for knot in _INTENSITY_KNOTS]
    columns += [np.where(product, intensity, 0.0), np.where(product, np.maximum(3 - size, 0), 0.0)]
    columns.append(np.where(stream, np.minimum(cached, 0.0), 0.0))
    return np.stack(columns).T


def _group_widths(sizes: Array) -> list[Array]:
    """Return marks (0 or 1) of the widths of groups for which libraries have kernels of their own."""
    grouped, even = (sizes[:, 2] > 0) & (sizes[:, 4] > 0) & (sizes[:, 0] > 0), sizes[:, 15] == 0
    width = sizes[:, 0]
    marks = [grouped & (width < 3.5)]
    marks += [grouped & (width == mark) for mark in (4.0, 5.0, 6.0)]
    return [mark.astype(float) for mark in (*marks, grouped & even & (width > 6.5))]


def _group_numbers(sizes: Array) -> list[Array]:
    """Return what few groups, narrow groups that widen, few channels and filters beyond 7 × 7 disturb.

    A gradient of weights has little to do at once where groups are few; narrow kernels keep the width of a group; and
    libraries write depthwise kernels for filters of up to 7 × 7.
    """
    grouped = (sizes[:, 2] > 0) & (sizes[:, 4] > 0) & (sizes[:, 0] > 0)
    few = np.where(grouped, np.maximum(5 - sizes[:, 2], 0), 0.0)
    uneven = np.where(grouped & (sizes[:, 0] < 4.5), np.abs(sizes[:, 0] - sizes[:, 1]) > 0.1, 0.0)
    channels = np.where(grouped, np.maximum(7 - sizes[:, 0] - sizes[:, 2], 0), 0.0)
    large = np.maximum(sizes[:, 4] - _LARGE_FILTER, 0)
    return [few, uneven.astype(float), channels, large]


def _class_columns(table: OpTable, intensity: Array, size: Array) -> Array:
    """Return what the classes have each by itself, by the columns of ``OpTable.sizes``."""
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
        (s[:, 5], nothing),
        (s[:, 4] - 1, nothing),
        (s[:, 6], nothing),
        (s[:, 7], nothing),
        (s[:, 11], s[:, 11]),
        (np.clip(s[:, 3], 0, 16) - 9, nothing),
        (s[:, 2], s[:, 2]),
        (size - 8, size - 8),
        (s[:, 8], nothing),
        (s[:, 10], nothing),
        (s[:, 12], nothing),
        (s[:, 13], nothing),
        (s[:, 14], s[:, 14]),
        (s[:, 15], nothing),
        *((column, nothing) for column in _group_widths(s)),
        *((column, nothing) for column in _group_numbers(s)),
    ]
    columns = [np.ones_like(size), *(np.where(product, of_product, of_stream) for of_product, of_stream in pairs)]
    return np.stack(columns).T
