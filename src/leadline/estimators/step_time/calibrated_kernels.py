"""Kernel times on a calibrated CPU, interpolated from its sweep by ordinary kriging.

Kriging (Matheron 1963) is Gaussian-process regression with an unknown mean. It uses the nearest kernels only, so a
prediction costs milliseconds without a numerical library.
"""

# Not on `estimators.gp`: that loads numpy, which takes longer than all predictions for a calibrated CPU.

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import pairwise
from operator import mul

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, KernelTiming
from leadline.estimators.memory.heap import fresh_bytes
from leadline.estimators.memory.onednn import Processor
from leadline.estimators.step_time.kernel_families import (
    PRODUCTS,
    RECURRENT,
    family_coordinates,
    kernel_family,
    kernel_sizes,
)

NEIGHBOURS = 32
# Variance of a single measurement over the variance of the surface.
NUGGET = 0.05


def krige(points: Sequence[tuple[float, ...]], values: Sequence[float], where: tuple[float, ...]) -> float:
    """Return the expected value at ``where``, from ``values`` at ``points`` in units of the correlation length.

    Covariance falls off as ``exp(-r²/2)``. Far from every point a prediction returns to the neighbours' mean.
    """
    near = nsmallest(NEIGHBOURS, ((math.dist(point, where), i) for i, point in enumerate(points)))
    if len(near) == 1:
        return values[near[0][1]]
    places = [points[i] for _, i in near]
    matrix = [[_covariance(math.dist(row, column)) for column in places] for row in places]
    for i, row in enumerate(matrix):
        row[i] += NUGGET
    factor = _cholesky(matrix)
    solved_ones, solved = _solve(factor, [1.0] * len(near)), _solve(factor, [values[i] for _, i in near])
    mean = sum(solved) / (sum(solved_ones) + 1.0)
    weighted = zip(near, solved, solved_ones, strict=True)
    return mean + sum(_covariance(distance) * (s - mean * o) for (distance, _), s, o in weighted)


def _covariance(distance: float) -> float:
    return math.exp(-0.5 * distance * distance)


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """Return the lower factor of a symmetric positive definite matrix."""
    factor: list[list[float]] = []
    for i, row in enumerate(matrix):
        line: list[float] = []
        for j in range(i):
            line.append((row[j] - _dot(line, factor[j][:j])) / factor[j][j])
        line.append(math.sqrt(row[i] - _dot(line, line)))
        factor.append(line)
    return factor


def _solve(factor: list[list[float]], right: list[float]) -> list[float]:
    """Return x of ``L Lᵀ x = right``."""
    forward: list[float] = []
    for line, value in zip(factor, right, strict=True):
        forward.append((value - _dot(line[:-1], forward)) / line[-1])
    x = [0.0] * len(right)
    for i in reversed(range(len(right))):
        x[i] = (forward[i] - sum(factor[k][i] * x[k] for k in range(i + 1, len(right)))) / factor[i][i]
    return x


def _dot(left: list[float], right: list[float]) -> float:
    return sum(map(mul, left, right), 0.0)


# Standard deviation of ln(true ÷ predicted) of a step on a device whose sweep was just made. Nine in ten of 68 steps
# of 17 models on a two-core CPU, none of them the bench's, were within exp(±1.645 × 0.24).
SPREAD = 0.25

# Time of the smallest kernel of a compute-bound family, which rounds off the roofline's corner.
SHORTEST_S = 3e-6


class CalibratedKernels:
    """A ``KernelModel`` that interpolates the sweep of ``leadline calibrate``.

    Measured kernels of a family are points in the logarithms of their sizes. Their ratios to a roofline are kriged and
    correct a kernel's own roofline. Families whose time follows one size only are interpolated along it.
    ``mapped_block_bytes`` is that of ``LoopFacts``.

    Raises:
        InvalidInput: the device has no calibration.
    """

    name = "calibrated kernels"
    tier = Tier.CALIBRATED
    host_spread = 0.0

    def __init__(self, device: Device, mapped_block_bytes: int | None = None) -> None:
        if device.calibration is None or not device.calibration.timings:
            raise InvalidInput(f"{device.name} is not calibrated: run leadline calibrate on it")
        self._mapped_block_bytes = mapped_block_bytes
        self._calibration, self._figures = device.calibration, device.calibration.figures
        self._call_s = self._figures.get("call_s", 0.0)
        self._peaks = device.peak_flops_per_s
        self._bytes_per_s = self._figures.get("copy_bytes_per_s") or device.memory_bytes_per_s or 1e10
        self._families = self._by_family(device.calibration.timings)
        self._price = lru_cache(maxsize=4096)(self._priced)

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return the spread on a freshly calibrated device, widened if it was busy (an assumption)."""
        doubt = self._calibration.busy_share if self._calibration.is_doubtful else 0.0
        return math.hypot(SPREAD, doubt)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons to distrust the sweep."""
        busy = f"the machine was {self._calibration.busy_share:.0%} busy with other work when it was calibrated"
        reason = f"{busy}: times may be several times too long; run leadline calibrate again when it is idle"
        return (reason,) if self._calibration.is_doubtful else ()

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        return [self.op_s(op) for op in ops]

    def op_s(self, op: Op) -> float:
        """Return the seconds one call of ``op`` takes once it runs, launch excluded."""
        if op.bytes_read + op.bytes_written == 0 and not op.flops:
            return 0.0
        family = kernel_family(op, self._families)
        sizes = tuple(sorted(kernel_sizes(op, family).items()))
        # The sweep times one recurrent layer in one direction.
        layers = max(op.kernels, 1) if op.kind is OpKind.RNN else 1
        moved = op.bytes_read + op.bytes_written
        return layers * self._price(family, op.dtype, sizes, op.flops / layers, moved / layers)

    def launch_s(self, op: Op) -> float:
        """Return the seconds the host needs for one call of ``op``: dispatch, module, autograd node."""
        if op.bytes_read + op.bytes_written == 0 and not op.flops:
            return self._figures.get("view_s", self._call_s)
        return self._figures.get(f"launch_{op.stage.value}_s", self._figures.get("launch_s", self._call_s))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph: one op after the other, and memory fresh from the kernel."""
        training = any(op.stage is not Stage.FORWARD for op in graph.ops)
        kernels_s = sum(self.op_s(op) * op.count for op in graph.ops)
        launches_s = sum(self._launch_in(op, training=training) * op.count * max(op.kernels, 1) for op in graph.ops)
        launches_s += self._figures.get("launch_step_s", 0.0) if training else 0.0
        fresh = fresh_bytes(graph, Processor.of(self._figures), self._mapped_block_bytes)
        return kernels_s + launches_s + fresh * self._figures.get("fresh_s_per_byte", 0.0)

    def _launch_in(self, op: Op, *, training: bool) -> float:
        """Return the launch cost, which is less for a forward pass that builds no autograd graph.

        The layers and steps of a recurrent op were measured with its kernel.
        """
        if op.kind is OpKind.RNN:
            return self._call_s
        if not training and (op.flops or op.bytes_written):
            return self._figures.get("launch_inference_s", self.launch_s(op))
        return self.launch_s(op)

    def _by_family(self, timings: Iterable[KernelTiming]) -> dict[tuple[str, str], "_Family"]:
        measured: dict[tuple[str, str], list[tuple[tuple[float, ...], float, float]]] = {}
        for timing in timings:
            seconds = max(timing.elapsed_s - self._call_s, timing.elapsed_s * 0.1, 1e-8)
            base_s = self._base_s(timing.kind, timing.dtype, timing.dims, timing.flops, timing.bytes_moved)
            where = family_coordinates(timing.kind, timing.dims)
            measured.setdefault((timing.kind, timing.dtype), []).append((where, seconds, math.log(seconds / base_s)))
        return {name: _Family(*zip(*sorted(points), strict=True)) for name, points in measured.items()}

    def _base_s(self, family: str, dtype: str, dims: dict[str, int], flops: float, moved: float) -> float:
        """Return the roofline of a family's ratios: of its arithmetic, or of its largest operand."""
        if _computes(family):
            peak = self._peaks.get(dtype) or self._peaks.get("float32") or 1e11
            return flops / peak + moved / self._bytes_per_s + SHORTEST_S
        return 8.0 * dims.get("elements", 1) / self._bytes_per_s + SHORTEST_S / 3

    def _priced(self, family: str, dtype: str, sizes: tuple[tuple[str, int], ...], flops: float, moved: float) -> float:
        measured = self._families.get((family, dtype))
        dims = dict(sizes)
        if measured is None:
            measured = self._families.get((family, "float32"))
            if measured is not None and not _computes(family):
                width = BYTES_PER_ELEMENT.get(dtype, 4)
                dims |= {name: max(dims.get(name, 1) * width // 4, 1) for name in ("elements", "columns")}
        if measured is None:
            return self._base_s(family, dtype, dims, flops, moved)
        if len(measured.places[0]) == 1:  # the sweep measured this family along its size only
            return measured.along(math.log(max(dims.get("elements", 1), 1)))
        share = 1.0
        if family.endswith("_backward") and dims.get("gradients") == 1:
            # The neighbours made both gradients; halve their time rather than their sizes.
            share, flops = 0.5, 2 * flops
        ratio = math.exp(krige(measured.places, measured.ratios, family_coordinates(family, dims)))
        return share * self._base_s(family, dtype, dims, flops, moved) * ratio


def _computes(family: str) -> bool:
    """Return whether a family's time follows its arithmetic rather than its bytes."""
    stem = family.removesuffix("_backward")
    return family in PRODUCTS or stem in RECURRENT or stem in ("convolution", "attention")


class _Family(Frozen):
    """n measured kernels of one family: places, seconds, and ln(seconds ÷ roofline), by ascending size."""

    places: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]
    ratios: tuple[float, ...]

    def along(self, x: float) -> float:
        """Return the seconds at size ``x``, proportional to the size above the largest."""
        line = [(where[0], math.log(seconds)) for where, seconds in zip(self.places, self.seconds, strict=True)]
        (first, first_log_s), (last, last_log_s) = line[0], line[-1]
        if x <= first:
            return math.exp(first_log_s)
        if x >= last:
            return math.exp(last_log_s + x - last)
        lower, upper = next(pair for pair in pairwise(line) if x <= pair[1][0])
        width = upper[0] - lower[0]
        share = (x - lower[0]) / width if width else 0.0
        return math.exp(lower[1] + share * (upper[1] - lower[1]))
