"""Analytical models of kernel time: tiles in waves, memory traffic, power limit and launch.

A product is cut into tiles. The compute units work through them in waves. The library is assumed to choose the best of
several tile sizes and splits of the inner sum. A tile loses time in proportion to its circumference over its area.

The fit finds a model's parameters and each device's offsets from robust log errors.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array, IntArray
from leadline.estimators.step_time.device_features import PlacedKernels
from leadline.estimators.step_time.gauss_newton import minimize
from leadline.estimators.step_time.kernel_table import BATCHED, COMPUTING, CONVOLUTION, MATRIX, NORM, PRODUCT

TILES = ((256, 128), (128, 128), (64, 128), (32, 128), (16, 128), (64, 64), (32, 64), (16, 64), (32, 32))
# Candidate tiles of the output and splits of the inner sum.
SPLITS = (1, 3, 8)

# Device offsets: logarithms of factors on launch, arithmetic and traffic.
LAUNCH, COMPUTE, TRAFFIC = range(3)

_TILE = np.array([tile for tile in TILES for _ in SPLITS], float).T[:, :, None]
_SPLIT = np.array([split for _ in TILES for split in SPLITS], float)[:, None]
_CHUNK = 1 << 15
# Tiles that a compute unit works on at once, when there are so many.
RESIDENT = 4.0
# How many fewer multiplications F(2×2, 3×3) takes.
WINOGRAD = 2.25
# Power of the smooth maximum of launch and kernel; near the corner in the timings published with NeuSight.
OVERLAP = 6.0
# Rows that the blocks of a compute unit normalise at once: 2,048 threads in blocks of 256.
ROWS_AT_ONCE = 8.0
# Elements below which rows share a block; no shorter ones were measured.
LEAST_ROW = 256
# Share of the host's time for a call before its kernel starts: what the timings published with NeuSight take beyond
# their traffic, over the launch, is near this on hosts of which one takes 1.7 times as long as another.
WAIT = 0.48
# How much faster than device memory the last cache may be.
CACHED = 8.0

# Return kernel and launch seconds of n kernels, given parameters (p,) and the offsets of their devices (n, 3).
_Parts = Callable[[PlacedKernels, Array, Array], tuple[Array, Array]]


class AnalyticalModel(Frozen):
    """Parameter names of a model, with the start of a fit and prior deviations from it.

    ``wait`` is the share of the host's time for a call that is over when its kernel starts.
    """

    names: tuple[str, ...]
    start: tuple[float, ...]
    loose: tuple[float, ...]
    parts: _Parts
    wait: float = WAIT


def combine_with_launch_s(kernel_s: Array, launch_s: Array, wait: float | Array) -> Array:
    """Return the seconds between two events around a call, from its kernel and launch times.

    The kernel starts after the share ``wait`` of the launch. The second event waits for the kernel, and for the host,
    which needs ``launch_s`` for the call.
    """
    return np.asarray(((kernel_s + wait * launch_s) ** OVERLAP + launch_s**OVERLAP) ** (1 / OVERLAP))


def subtract_launch_s(seconds: Array, launch_s: Array, wait: float) -> Array:
    """Return the kernel's seconds, the inverse of ``combine_with_launch_s``; at least a tenth."""
    unlaunched = np.maximum(1 - np.minimum(launch_s / seconds, 1.0) ** OVERLAP, 0.0) ** (1 / OVERLAP)
    return np.asarray(np.maximum(seconds * unlaunched - wait * launch_s, 0.1 * seconds))


def lower_bound_s(placed: PlacedKernels) -> Array:
    """Return the least possible seconds: arithmetic at the peak, or traffic at the cache's rate."""
    kernels = placed.kernels
    computing = np.isin(kernels.law, COMPUTING)
    least = np.where(kernels.fast_m > 0, kernels.flops / WINOGRAD, kernels.flops)
    in_cache = np.where(kernels.moved < 2 * placed.l2_bytes, CACHED, 1.0)
    busy_s = np.where(computing, least / placed.peak, 0.0)
    return np.asarray(np.maximum(busy_s, kernels.moved / (placed.bytes_per_s * in_cache)))


def _computing(placed: PlacedKernels, at: Array, effects: Array) -> tuple[Array, Array]:
    kernels, p = placed.kernels, dict(zip(PRODUCT_MODEL.names, at.tolist(), strict=True))
    busy_s = _best(p, placed, kernels.b, kernels.m, kernels.k)
    again = 4 * kernels.b * kernels.n * kernels.k * np.maximum(kernels.m / 128 - 1, 0)
    missed = 1 / (1 + placed.l2_bytes / (kernels.width * kernels.n * kernels.k))
    moved = kernels.moved + np.exp(p["wide"]) * kernels.work * again * missed
    if (kernels.law == CONVOLUTION).any():
        fast_m, sixteen = np.maximum(kernels.fast_m, 1.0), np.full(len(kernels), 16.0)
        winograd_s = _best(p, placed, sixteen, fast_m, np.maximum(kernels.fast_k, 1.0)) * np.exp(p["fast"])
        winograd_s += np.exp(p["transform"]) * kernels.transform / placed.bytes_per_s
        applies = (kernels.fast_m > 0) & ~placed.matrix
        busy_s = np.where(applies, (busy_s**-4.0 + winograd_s**-4.0) ** -0.25, busy_s)
    busy_s = busy_s * kernels.work * np.exp(effects[:, COMPUTE])
    traffic_s = moved / placed.bytes_per_s * np.exp(p["reach"] + effects[:, TRAFFIC])
    kernel_s = 1e-6 * np.exp(p["ramp"]) + (busy_s**3 + traffic_s**3) ** (1 / 3)
    return kernel_s, 1e-6 * np.exp(p["launch"] + effects[:, LAUNCH])


def _best(p: Mapping[str, float], placed: PlacedKernels, b: Array, m: Array, k: Array) -> Array:
    """Return the seconds with the best tile and split, in chunks that fit the processor's cache."""
    best_s = np.empty(len(b))
    for begin in range(0, len(b), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        best_s[part] = _best_part(p, placed.at(part), b[part], m[part], k[part])
    return best_s


def _best_part(p: Mapping[str, float], placed: PlacedKernels, b: Array, m: Array, k: Array) -> Array:
    n, units = placed.kernels.n, placed.units
    tile_m, tile_n = _TILE
    tiles = b * np.ceil(m / tile_m) * np.ceil(n / tile_n) * _SPLIT
    around = np.exp(p["edge"]) * (1 / tile_m + np.exp(p["side"]) / tile_n)
    share = 1 / (1 + around + np.exp(p["small"]) * (tile_m < 64) + np.exp(p["narrow"]) * (tile_n < 64))
    waves = tiles / units
    whole = 1 / (1 + np.exp(-p["wave"]))
    latency_s = 1e3 * np.exp(p["hide"]) * units / placed.vector
    steps_s = (k / _SPLIT + np.exp(p["depth"])) * np.maximum(waves / RESIDENT, 1.0) * latency_s
    waves = np.maximum(np.ceil(waves) * whole + waves * (1 - whole), 1.0)
    area = 2 * tile_m * tile_n
    part_k = k / _SPLIT
    rate = placed.peak * np.exp(p["modern"] * placed.modern) / (units * (1 + np.exp(p["lost"]))) * share
    busy_s = np.hypot(waves * (area * (part_k + np.exp(p["depth"]))) / rate, steps_s)
    allowed_s = tiles * (area * part_k) * (np.exp(p["cap"]) / placed.allowed)
    hotter = np.maximum(busy_s, allowed_s)
    cooler = np.minimum(busy_s, allowed_s) / hotter
    cooler *= cooler
    cooler *= cooler
    busy_s = hotter * (1 + cooler * cooler) ** 0.125  # the eighth power's smooth maximum
    written = placed.kernels.width * b * m * n * _SPLIT
    sums_s = (_SPLIT > 1) * (written / placed.bytes_per_s + 1e-6 * np.exp(p["split"]))
    return np.asarray(np.min(busy_s + sums_s, axis=0))


def _streaming(placed: PlacedKernels, at: Array, effects: Array) -> tuple[Array, Array]:
    reach, cached, cost, ramp, launch = at
    kernels = placed.kernels
    traffic_s = _streamed(placed, cached) / placed.bytes_per_s * np.exp(reach + effects[:, TRAFFIC])
    elements = kernels.rows * kernels.columns
    busy_s = elements * np.exp(cost + effects[:, COMPUTE]) / np.minimum(placed.vector, placed.allowed)
    kernel_s = 1e-6 * np.exp(ramp) + (busy_s**3 + traffic_s**3) ** (1 / 3)
    return kernel_s, 1e-6 * np.exp(launch + effects[:, LAUNCH])


def _normalising(placed: PlacedKernels, at: Array, effects: Array) -> tuple[Array, Array]:
    """Return kernel and launch seconds of row-wise kernels that wait in their reductions.

    A block reads its row twice: from memory again if the last-level cache has lost it among the rows of other blocks.
    """
    reach, cached, cost, again, row, ramp, launch = at
    kernels = placed.kernels
    elements = kernels.rows * kernels.columns
    in_flight = placed.units * ROWS_AT_ONCE * kernels.columns * kernels.width * np.exp(again)
    lost = 1 / (1 + (placed.l2_bytes / in_flight) ** 2)
    moved = _streamed(placed, cached) + lost * elements * kernels.width
    traffic_s = moved / placed.bytes_per_s * np.exp(reach + effects[:, TRAFFIC])
    blocks = np.minimum(kernels.rows, elements / LEAST_ROW)
    busy_s = elements * np.exp(cost) / np.minimum(placed.vector, placed.allowed)
    busy_s += blocks * 1e3 * np.exp(row) / (placed.units * placed.clock_hz)
    kernel_s = 1e-6 * np.exp(ramp) + ((busy_s * np.exp(effects[:, COMPUTE])) ** 3 + traffic_s**3) ** (1 / 3)
    return kernel_s, 1e-6 * np.exp(launch + effects[:, LAUNCH])


def _streamed(placed: PlacedKernels, cached: float) -> Array:
    """Return the bytes that kernels move, cached ones divided by the cache's speed-up."""
    moved = placed.kernels.moved
    inside = 1 / (1 + (moved / placed.l2_bytes) ** 2)
    return np.asarray(moved / (1 + inside * np.expm1(np.logaddexp(0.0, cached))))


_PRIORS = tomllib.loads((Path(__file__).parent / "analytical_kernels.toml").read_text(encoding="utf-8"))


def _model(group: str, parts: _Parts, *, base: str = "", wait: float = WAIT) -> AnalyticalModel:
    """Return the model with the priors of a group, which changes some of those of its ``base``."""
    priors = _PRIORS.get(base, {}) | _PRIORS[group]
    start, loose = zip(*priors.values(), strict=True)
    return AnalyticalModel(tuple(priors), start, loose, parts, wait)


PRODUCT_MODEL = _model("product", _computing)
BATCHED_MODEL = _model("batched", _computing, base="product")
CONVOLUTION_MODEL = _model("convolution", _computing, base="product", wait=0.0)
STREAMING_MODEL = _model("streaming", _streaming)
NORMALIZATION_MODEL = _model("normalizing", _normalising)
_MODELS = {PRODUCT: PRODUCT_MODEL, BATCHED: BATCHED_MODEL, CONVOLUTION: CONVOLUTION_MODEL, NORM: NORMALIZATION_MODEL,
           MATRIX: PRODUCT_MODEL}  # fmt: skip


def analytical_model(group: int) -> AnalyticalModel:
    """Return the analytical model of a group."""
    return _MODELS.get(group, STREAMING_MODEL)


# Log error from which on a kernel counts less than its square (pseudo-Huber).
SCALE = 0.15
# Prior deviations, over devices, of ln launch, ln arithmetic and ln traffic.
APART = np.array([0.35, 0.2, 0.2])
STEP = 1e-4


class KernelMeasurements(Frozen):
    """n measured kernels: seconds, whether they include the launch (0 or 1), and effect groups (n, 3).

    ``weight`` is the number of kernels that a row stands for.
    """

    placed: PlacedKernels
    seconds: Array
    launched: Array
    groups: IntArray
    weight: Array


def fit_analytical_model(
    law: AnalyticalModel, measured: KernelMeasurements, *, apart: Array = APART
) -> tuple[Array, Array]:
    """Return the likeliest parameters (p,) and effects (g, 3) of the measured groups.

    Their priors are normal, with the deviations ``law.loose`` and ``apart``.
    """
    p, groups = len(law.start), int(measured.groups.max()) + 1
    start = np.concatenate([law.start, np.zeros(3 * groups)])
    misfit = _Misfit(law, measured, start, np.concatenate([law.loose, np.tile(apart, groups)]))
    x, _ = minimize(misfit.cost, misfit.normal, start, damping=1e-2, easier=4, harder=5, enough=1e-4, rounds=30)
    return x[:p], x[p:].reshape(-1, 3)


class _Misfit(Frozen):
    """The misfit of parameters (p,), then of effects (3 g,), with the prior's ``start`` and ``scale`` (p + 3 g,)."""

    law: AnalyticalModel
    measured: KernelMeasurements
    start: Array
    scale: Array

    def errors(self, x: Array) -> Array:
        """Return ln(measured ÷ law) of each kernel."""
        p = len(self.law.start)
        effects = x[p:].reshape(-1, 3)[self.measured.groups, np.arange(3)]
        kernel_s, launch_s = self.law.parts(self.measured.placed, x[:p], effects)
        predicted_s = combine_with_launch_s(kernel_s, self.measured.launched * launch_s, self.law.wait)
        return np.asarray(np.log(self.measured.seconds / predicted_s))

    def cost(self, x: Array) -> tuple[float, Array]:
        errors = self.errors(x)
        robust = 2 * (np.sqrt(1 + (errors / SCALE) ** 2) - 1)
        return float(self.measured.weight @ robust + np.sum(((x - self.start) / self.scale) ** 2)), errors

    def normal(self, x: Array, state: Array) -> tuple[Array, Array]:
        jacobian = self._slopes(x, state)
        weighted = jacobian.T * (self.measured.weight / (SCALE**2 * np.sqrt(1 + (state / SCALE) ** 2)))
        slope = weighted @ state + (x - self.start) / self.scale / self.scale
        return weighted @ jacobian + np.diag(self.scale**-2), -slope

    def _slopes(self, x: Array, errors: Array) -> Array:
        """Return the Jacobian (n, p + 3 g)."""
        p, n = len(self.law.start), len(errors)
        jacobian = np.zeros((n, len(x)))

        def slope(columns: int | slice) -> Array:
            moved = x.copy()
            moved[columns] += STEP
            return (self.errors(moved) - errors) / STEP

        for i in range(p):
            jacobian[:, i] = slope(i)
        # A kernel depends on one group for each of the three effects: one evaluation serves all groups.
        for i in range(3):
            jacobian[np.arange(n), p + 3 * self.measured.groups[:, i] + i] = slope(slice(p + i, None, 3))
        return jacobian
