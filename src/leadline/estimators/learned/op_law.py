"""A law of every op's utilisation, learned from the times of whole steps alone.

An op takes its roofline, the hypotenuse of arithmetic at the peak and traffic at the bandwidth, times
``FLOOR + exp(f)``: f is linear in the logarithms of its sizes, with weights of its class. A step is the sum of its ops,
or of its launches where the host cannot keep up, so that the times of whole steps tell the weights: Gauss-Newton on the
logarithm of the step, with a ridge towards weights believed before, and weights 1 ÷ |error| so that a few odd models do
not decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device
from leadline.estimators.learned.op_table import CLASSES, DTYPES, OpTable
from leadline.estimators.tabular.ports import State

Array = npt.NDArray[np.float64]

FLOOR = 0.6
"""The least multiple of its roofline that an op takes: caches let some stay below what memory alone would need."""
RAMP_S = 1.5e-6
"""What the smallest kernel takes; it rounds off the roofline's corner."""
LAUNCH_S = 4e-6
"""What is believed of the host's time for one kernel before any step was seen."""
JOIN = 6.0
"""How sharply the slower of device and host decides: the power of the mean of the two."""
USUAL = -0.4
"""What is believed of f before any step was seen."""
FREEDOM = 0.03
"""The ridge on what every op of a class has in common, beside that on what its sizes change."""
ODD = 0.08
"""Errors of the logarithm below this count by their square, others by their size."""
LONGEST_STEP = 1.0
LOWEST, HIGHEST = -3.5, 4.0

_SIZE_KNOTS = (1.0, 3.0, 5.0, 7.0, 9.0)
_INTENSITY_KNOTS = (-4.0, -2.0, 0.0, 2.0)
SHARED = len(_SIZE_KNOTS) + len(_INTENSITY_KNOTS) + 3
OWN = 27
FLAGS = (10, 11, *range(20, OWN))
"""Columns that say yes or no to what picks another kernel: odd channels, long indices, odd widths of groups."""
WEIGHTS = SHARED + OWN * len(CLASSES)


@dataclass(frozen=True, slots=True)
class Basis:
    """What f is linear in, for n ops on a device: ``roofline_s`` (n,), ``shared`` (n, SHARED) and ``own`` (n, OWN)."""

    table: OpTable
    roofline_s: Array
    shared: Array
    own: Array

    @classmethod
    def of(cls, table: OpTable, device: Device) -> "Basis":
        """Return the basis of ``table`` on ``device``.

        Raises:
            InvalidInput: the device has no bandwidth, or no peak for a dtype of a product.
        """
        busy_s, traffic_s = roofline_terms_s(table, device)
        roofline_s = np.hypot(busy_s, traffic_s) + RAMP_S * table.kernels
        intensity = np.clip(np.log2((busy_s + 1e-12) / (traffic_s + 1e-12)), -8, 8)
        size = np.log2(roofline_s * 1e6)
        cached = np.clip(np.log2(table.bytes / (device.l2_bytes or 6e6)), -4, 4)
        shared = _shared(table, intensity, size, cached)
        return cls(table, roofline_s, shared, _own(table, intensity, size))

    def taken(self, graphs: Sequence[int] | npt.NDArray[np.int64]) -> "Basis":
        """Return the basis of those graphs alone, in that order."""
        first = self.table.first
        rows = np.concatenate([np.arange(first[one], first[one + 1]) for one in graphs] or [np.zeros(0, np.int64)])
        shared, own = np.asfortranarray(self.shared[rows]), np.asfortranarray(self.own[rows])
        return Basis(self.table.taken(graphs), self.roofline_s[rows], shared, own)


@dataclass(frozen=True, slots=True)
class Weights:
    """A fitted law: ``f`` (WEIGHTS,), an offset of the setting, the host's launch, and how sure each weight is.

    ``variance`` (WEIGHTS,) is the posterior's diagonal, in units of the errors' own variance.
    """

    f: Array
    offset: float = 0.0
    launch_s: float = LAUNCH_S
    variance: Array | None = None

    @classmethod
    def believed(cls) -> "Weights":
        """Return the law that holds before any step was seen."""
        f = np.zeros(WEIGHTS)
        f[SHARED::OWN] = USUAL
        return cls(f)

    def dump(self) -> State:
        """Return the law as arrays."""
        variance = np.zeros(0) if self.variance is None else self.variance
        return {"f": self.f.astype(np.float32), "figures": np.array([self.offset, self.launch_s]),
                "variance": variance.astype(np.float32)}  # fmt: skip

    @classmethod
    def load(cls, state: State) -> "Weights":
        """Return what was dumped."""
        figures, variance = state["figures"].astype(float), state["variance"].astype(float)
        f = state["f"].astype(float)
        return cls(f, float(figures[0]), float(figures[1]), variance if len(variance) else None)


@dataclass(frozen=True, slots=True)
class Observed:
    """m measured steps of one setting: ``graph`` (m,) is their graph in ``basis``, ``step_s`` (m,) what they took."""

    basis: Basis
    graph: npt.NDArray[np.int64]
    step_s: Array


@dataclass(frozen=True, slots=True)
class Priced:
    """What g graphs take: seconds of the step and of the device alone, and how unsure each is (all of shape (g,))."""

    step_s: Array
    device_s: Array
    spread: Array


def price(basis: Basis, weights: Weights) -> Priced:
    """Return what the graphs of ``basis`` take under the law."""
    table = basis.table
    device_s = table.summed(op_s(basis, weights) * table.count)
    host_s = weights.launch_s * table.launches
    step_s: Array = (device_s**JOIN + host_s**JOIN) ** (1 / JOIN)
    return Priced(step_s, device_s, _spread(basis, weights, device_s))


def op_s(basis: Basis, weights: Weights) -> Array:
    """Return the seconds of one call of each op on the device, of shape (n,)."""
    found: Array = basis.roofline_s * (FLOOR + np.exp(_f(basis, weights)))
    return found


def fit(
    observed: Sequence[Observed], prior: Weights, *, ridge: float, rounds: int = 10, start: Weights | None = None
) -> list[Weights]:
    """Return the law of each setting: weights in common, an offset and a launch of its own.

    ``ridge`` is how many odd steps' worth the belief in ``prior`` weighs, for each weight on a size. ``start`` is where
    the search begins, by default at ``prior``; it changes how soon the law is found, and not which.
    """
    settings, penalty = len(observed), ridge * _stiffness()
    begin = start or prior
    f = begin.f.copy()
    offset, launch = np.full(settings, begin.offset), np.full(settings, np.log(begin.launch_s))
    cells = [_Cells.of(one.basis.table) for one in observed]
    used = np.unique(np.concatenate([_columns(one.basis) for one in observed]))
    place = np.full(WEIGHTS, -1)
    place[used] = np.arange(len(used))
    size = len(used) + 2 * settings
    inverse: Array = np.eye(size)
    for _ in range(rounds):
        normal, right = np.zeros((size, size)), np.zeros(size)
        for number, one in enumerate(observed):
            law = Weights(f, offset[number], float(np.exp(launch[number])))
            slopes, error = _linearised(one, cells[number], law, place, len(used))
            weighted = slopes / np.maximum(np.abs(error), ODD)[:, None]
            columns = np.r_[np.arange(len(used)), len(used) + number, len(used) + settings + number]
            normal[np.ix_(columns, columns)] += weighted.T @ slopes
            right[columns] += weighted.T @ error
        pull = np.concatenate([penalty[used], np.full(2 * settings, ridge * FREEDOM / 10)])
        away = np.concatenate([(f - prior.f)[used], offset - prior.offset, np.zeros(settings)])
        normal[np.diag_indices(size)] += pull
        inverse = np.asarray(np.linalg.inv(normal), float)
        change = np.clip(inverse @ (right - pull * away), -LONGEST_STEP, LONGEST_STEP)
        f[used] += change[: len(used)]
        offset += change[len(used) : len(used) + settings]
        launch = np.clip(launch + change[len(used) + settings :], np.log(1e-6), np.log(3e-5))
        if np.abs(change).max() < 0.03:
            break
    variance = np.full(WEIGHTS, 1 / (ridge * FREEDOM))
    variance[used] = np.diag(inverse)[: len(used)]
    return [Weights(f, float(o), float(np.exp(s)), variance) for o, s in zip(offset, launch, strict=True)]


@dataclass(frozen=True, slots=True)
class _Cells:
    """Which ops of a table are of one graph and one class: ``cell`` (n,) into ``graph`` and ``classes``, and owners."""

    owner: npt.NDArray[np.int64]
    cell: npt.NDArray[np.int64]
    graph: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]
    launches: Array

    @classmethod
    def of(cls, table: OpTable) -> "_Cells":
        owner = table.owner
        present, cell = np.unique(owner * len(CLASSES) + table.classes, return_inverse=True)
        return cls(owner, cell, present // len(CLASSES), present % len(CLASSES), table.launches)


def _linearised(
    one: Observed, cells: _Cells, weights: Weights, place: npt.NDArray[np.int64], size: int
) -> tuple[Array, Array]:
    """Return the slopes of ln(step) by each weight used, the offset and ln(launch), and ln(measured ÷ priced)."""
    basis, table, owner = one.basis, one.basis.table, cells.owner
    graphs = table.graphs
    variable = basis.roofline_s * np.exp(_f(basis, weights)) * table.count
    total = np.bincount(owner, variable, graphs)
    device_s = total + FLOOR * np.bincount(owner, basis.roofline_s * table.count, graphs)
    host_s = weights.launch_s * cells.launches
    share = 1 / (1 + (host_s / device_s) ** JOIN)
    step_s = (device_s**JOIN + host_s**JOIN) ** (1 / JOIN)
    slopes = np.zeros((graphs, size + 2))
    for number in np.flatnonzero(place[:SHARED] >= 0):
        slopes[:, place[number]] = np.bincount(owner, variable * basis.shared[:, number], graphs)
    for column in range(OWN):
        where = place[SHARED + cells.classes * OWN + column]
        known = where >= 0
        if known.any():
            found = np.bincount(cells.cell, variable * basis.own[:, column], len(where))
            slopes[cells.graph[known], where[known]] = found[known]
    slopes[:, size] = total
    slopes *= (share / device_s)[:, None]
    slopes[:, size + 1] = 1 - share
    return slopes[one.graph], np.log(one.step_s) - np.log(step_s[one.graph])


def _f(basis: Basis, weights: Weights) -> Array:
    own = weights.f[SHARED:].reshape(len(CLASSES), OWN)[basis.table.classes]
    f = basis.shared @ weights.f[:SHARED] + np.einsum("ij,ij->i", basis.own, own) + weights.offset
    clipped: Array = np.clip(f, LOWEST, HIGHEST)
    return clipped


def _spread(basis: Basis, weights: Weights, device_s: Array) -> Array:
    """Return how unsure each graph's price is, by the posterior's diagonal; NaN where the law has none."""
    table = basis.table
    if weights.variance is None:
        return np.full(table.graphs, np.nan)
    cells = _Cells.of(table)
    share = basis.roofline_s * np.exp(_f(basis, weights)) * table.count / device_s[cells.owner]
    total = np.zeros(table.graphs)
    variance = weights.variance[SHARED:].reshape(len(CLASSES), OWN)[cells.classes]
    for column in range(OWN):
        slope = np.bincount(cells.cell, share * basis.own[:, column], len(cells.graph))
        total += np.bincount(cells.graph, slope**2 * variance[:, column], table.graphs)
    found: Array = np.sqrt(total)
    return found


def _columns(basis: Basis) -> npt.NDArray[np.int64]:
    """Return the weights that some op of ``basis`` speaks of."""
    shared = np.flatnonzero((basis.shared != 0).any(axis=0))
    spoken = np.zeros((len(CLASSES), OWN), bool)
    for column in range(OWN):
        spoken[np.unique(basis.table.classes[basis.own[:, column] != 0]), column] = True
    return np.concatenate([shared, SHARED + np.flatnonzero(spoken.ravel())])


def _stiffness() -> Array:
    stiffness = np.ones(WEIGHTS)
    for column in (0, *FLAGS):
        stiffness[SHARED + column :: OWN] = FREEDOM
    return stiffness


def roofline_terms_s(table: OpTable, device: Device) -> tuple[Array, Array]:
    """Return the seconds of arithmetic at the device's peaks and of traffic at its bandwidth, each of shape (n,)."""
    if not device.memory_bytes_per_s:
        raise InvalidInput(f"{device.name} has no memory bandwidth in the catalog, so its speed is not known")
    peaks = device.peak_flops_per_s
    vector = peaks.get("float32")
    if not vector:
        raise InvalidInput(f"{device.name} has no float32 peak in the catalog, so its speed is not known")
    known = [peaks.get(one, vector if one == "tf32" else 0.0) for one in DTYPES]
    named = np.append(known, vector)[table.dtypes]
    if (absent := table.matrix & (named == 0)).any():
        dtype = DTYPES[table.dtypes[absent][0]]
        raise InvalidInput(f"{device.name} has no {dtype} peak in the catalog, so its speed is not known")
    peak = np.where(table.matrix, named, vector)
    return table.flops / peak, table.bytes / device.memory_bytes_per_s


def _shared(table: OpTable, intensity: Array, size: Array, cached: Array) -> Array:
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
    found = [grouped & (width < 3.5)]
    found += [grouped & (width == one) for one in (4.0, 5.0, 6.0)]
    return [one.astype(float) for one in (*found, grouped & even & (width > 6.5))]


def _own(table: OpTable, intensity: Array, size: Array) -> Array:
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
        *((one, nothing) for one in _group_widths(s)),
    ]
    columns = [np.ones_like(size), *(np.where(product, of_product, of_stream) for of_product, of_stream in pairs)]
    return np.stack(columns).T
