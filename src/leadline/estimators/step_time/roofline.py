"""Op times from vendor specifications alone: a roofline with bounded efficiency, plus launches.

Rules replace figures of a GPU that the catalog lacks. No rule takes the figures of another device.
"""

import math
from collections.abc import Sequence

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.power_limit import clock_share, describe_power_limit, matrix_share, power_spread

ASSUMED_L2_BYTES = 6 * 2.0**20
"""L2 size of most GPUs until 2022: little of a step fits in it."""
CLOCK_HZ = 1.7e9
"""Median boost clock of the catalog's GPUs."""
# Lanes of a compute unit by compute capability (CUDA C++ Programming Guide, arithmetic throughput); AMD's have 64 until
# CDNA2.
_LANES = {"6.1": 128, "8.6": 128, "8.7": 128, "8.9": 128, "9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128}
USUAL_LANES = 64
# Vector float32 operations for each byte of bandwidth: about the catalog's median GPU.
BALANCE = 15.0
# Process node by architecture, for the power cap.
PROCESS_NM = {
    "Kepler": 28, "Maxwell": 28, "Pascal": 16, "Volta": 12, "Turing": 12, "Ampere": 7.5, "Ada": 4.5, "Hopper": 4.5,
    "Blackwell": 4.5, "Blackwell Ultra": 4.5,
}  # fmt: skip
ASSUMED_SPREAD = 0.2
"""Log spread that assumed figures add, an assumption: a device's units or cache may be half or twice the rule's."""


def vector_flops_per_s(device: Device) -> float:
    """Return the float32 peak; NaN without a bandwidth to infer it from."""
    return device.peak_flops_per_s.get("float32") or BALANCE * float(device.memory_bytes_per_s or "nan")


def compute_units(device: Device) -> float:
    """Return the compute units, else those that reach the float32 peak at the clock."""
    if device.compute_units:
        return float(device.compute_units)
    lanes = device.lanes_per_unit or _LANES.get(device.compute_capability or "", USUAL_LANES)
    return max(vector_flops_per_s(device) / (2 * lanes * (device.boost_hz or CLOCK_HZ)), 1.0)


def l2_bytes(device: Device) -> float:
    """Return the size of the last-level cache."""
    return float(device.l2_bytes or ASSUMED_L2_BYTES)


def clock_hz(device: Device) -> float:
    """Return the boost clock, else the clock at which all lanes reach the float32 peak."""
    if device.boost_hz:
        return device.boost_hz
    if not (device.compute_units and device.lanes_per_unit):
        return CLOCK_HZ
    return vector_flops_per_s(device) / (2 * device.compute_units * device.lanes_per_unit)


def describe_doubts(device: Device) -> tuple[str, ...]:
    """Return sentences about a power limit, and about the figures that a rule replaces on a GPU."""
    return (*describe_power_limit(device), *describe_missing(device))


def describe_missing(device: Device) -> tuple[str, ...]:
    """Return a sentence about the figures that a rule replaces on a GPU; empty if the catalog has all of them."""
    if device.kind is not DeviceKind.GPU:
        return ()
    peak, has_lanes = device.peak_flops_per_s.get("float32"), device.compute_units and device.lanes_per_unit
    rules = (
        (peak, f"float32 peak ({BALANCE:.0f} operations for each byte of bandwidth assumed)"),
        (device.compute_units, f"compute units ({compute_units(device):.0f} assumed, from its float32 peak)"),
        (device.boost_hz or has_lanes, f"clock ({CLOCK_HZ / 1e9:.1f} GHz assumed)"),
        (device.l2_bytes, f"L2 size ({ASSUMED_L2_BYTES / 2**20:.0f} MiB assumed)"),
        (device.tdp_w or device.architecture not in PROCESS_NM, "power limit (none assumed)"),
    )
    assumed = ", ".join(rule for figure, rule in rules if not figure)
    return (f"wider interval: the catalog lacks figures of {device.name}: {assumed}",) if assumed else ()


def widen_spread(spread: float, device: Device) -> float:
    """Return a log spread, wider if a rule replaces figures of the device, or a power limit slows it."""
    return math.hypot(spread, ASSUMED_SPREAD if describe_missing(device) else 0.0, power_spread(device))


# Kinds whose arithmetic runs on the matrix units, at the peak of their dtype, where there are any.
MATRIX_KINDS = frozenset({OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION, OpKind.RNN})
# Share of the peak that a large kernel of a kind reaches: round figures near several fits, not a fit themselves. GEMM:
# near the least absolute log error on the float32 kernels published with NeuSight (P4, P100, V100, T4, A100), and near
# the half-precision layers published with Vidur (A40 0.79, A100 0.74, H100 0.71 of the peak above 2,048 tokens). Free
# fits of this form missed the GEMMs of a left-out device by 23 to 39 % (mean absolute), batched GEMMs by 19 to 28 %,
# convolutions by 21 to 42 %; the error of the rounded law itself has not been measured. Convolutions: set by hand.
# Attention: the best of three values tried on llm-foundry's training rows, so those rows are no test of it.
EFFICIENCY = {OpKind.GEMM: 0.75, OpKind.CONV: 0.60, OpKind.ATTENTION: 0.30, OpKind.RNN: 0.30}
# Share of the matrix units' peak that holds through a whole step, by architecture: llm-foundry's H100 steps are slower
# than their kernels alone. The better of two values tried on those rows, which are therefore no test of it.
SUSTAINED = {"Hopper": 0.75}
# Share of the memory bandwidth that a kind of streaming kernel reaches; chosen like `EFFICIENCY` (free fits missed a
# left-out device by 13 to 24 % on additions, 13 to 33 % on softmax, 11 to 18 % on layer norm).
BANDWIDTH_EFFICIENCY = {OpKind.NORM: 0.52, OpKind.SOFTMAX: 0.67}
DEFAULT_BANDWIDTH_EFFICIENCY = 0.85
# Tiles a compute unit needs in flight before it runs at full speed, by dtype, in tiles of 64 × 64.
FILL = {"float32": 0.1, "float64": 0.1}
# The same on matrix units, whose tiles are larger: from the fall below 512 tokens in Vidur's half-precision layers.
MATRIX_UNIT_FILL = 2.5
# Inner sums on matrix units are split into slices of this length, each a tile of its own, where compute units would be
# idle. From Vidur's half-precision layers of up to 256 rows: any two of A40, A100 and H100 choose it, and the third is
# then 7.0, 7.0 and 9.7 % off on the mean (without slices 26, 42 and 48 %).
SPLIT = 768
# Length of the inner sum at which a GEMM kernel reaches half of its efficiency.
DEPTH = 32
# Time a GPU kernel needs to start and drain, whatever its size.
RAMP_S = 2e-6
# Host time of one eager op: interpreter, dispatcher, autograd and driver; 5 to 15 µs on hosts of the last years.
LAUNCH_S = {DeviceKind.GPU: 9e-6, DeviceKind.CPU: 6e-6, DeviceKind.TPU: 1e-6, DeviceKind.ACCELERATOR: 9e-6}
# Log spread of the launch time on a measured host: models of transformers on one host took 29 to 55 µs an op.
MEASURED_HOST_SPREAD = 0.2
# Standard deviation of ln(true ÷ predicted) where no steps like the one at hand were measured, an assumption.
UNMEASURED_SPREAD = 0.40
# Log spread of the launch time on unmeasured hosts: nine in ten from 5 to 17 µs.
HOST_SPREAD = 0.40
# Power of float32 arithmetic outside the matrix units, per TFLOP/s and nanometre of the process.
WATT_PER_TFLOP_NM = 1.45
# Edge of the output tile in which work is counted.
TILE = 64
# Sizes of the output are rounded up to this.
PADDING = 32


def host_spread(device: Device) -> float:
    """Return the log spread of the launch time of the device's host."""
    return MEASURED_HOST_SPREAD if device.launch_s else HOST_SPREAD


def require_bandwidth(device: Device) -> float:
    """Return the memory bandwidth of a device.

    Raises:
        InvalidInput: the catalog does not have it.
    """
    if not device.memory_bytes_per_s:
        raise InvalidInput(f"{device.name} has no memory bandwidth in the catalog, so its speed is not known")
    return device.memory_bytes_per_s


def power_limited_flops_per_s(device: Device) -> float:
    """Return the float32 rate within the power limit outside matrix units; infinite if unknown."""
    process = PROCESS_NM.get(device.architecture or "")
    if not (process and device.tdp_w):
        return math.inf
    return device.tdp_w / (WATT_PER_TFLOP_NM * process) * 1e12 * clock_share(device)


def vector_share(device: Device) -> float:
    """Return the share of the float32 peak that the factory limit sustains outside matrix units, in (0, 1].

    It is the mean of the peak and the peak within the limit, over the peak.
    """
    peak = device.peak_flops_per_s.get("float32")
    return (1 + min(1.0, power_limited_flops_per_s(device) / peak)) / 2 if peak else 1.0


class RooflineKernels:
    """A ``KernelModel`` from a device's specifications.

    Raises:
        InvalidInput: the device has no memory bandwidth figure, or no peak for a dtype (when an op needs it).
    """

    name = "maker's figures"
    tier = Tier.SPECS

    def __init__(self, device: Device, *, spread: float = UNMEASURED_SPREAD, reasons: tuple[str, ...] = ()) -> None:
        self.device, self.spread, self.reasons = device, spread, reasons
        self._bytes_per_s, self.host_spread = require_bandwidth(device), host_spread(device)
        self._launch_s = device.launch_s or LAUNCH_S[device.kind]
        self._price = RecentCache[Sequence[Op], list[float]](lambda ops: [self.op_s(op) for op in ops])

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return the same spread for every graph."""
        return self.spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        return self._price(ops)

    def op_s(self, op: Op) -> float:
        """Return the seconds of one call: the smooth maximum of arithmetic and traffic, plus the ramp."""
        share = BANDWIDTH_EFFICIENCY.get(op.kind, DEFAULT_BANDWIDTH_EFFICIENCY)
        traffic_s = (op.bytes_read + op.bytes_written) / (self._bytes_per_s * share)
        if op.kind in MATRIX_KINDS and op.flops:
            vector = op.dtype in ("float32", "float64")
            sustained = 1.0 if vector else SUSTAINED.get(self.device.architecture or "", 1.0)
            busy_s = op.flops / (self.peak(op) * EFFICIENCY[op.kind] * self._fill(op) * sustained)
        else:
            peak = self.device.peak_flops_per_s.get("float32")
            busy_s = op.flops / (peak * vector_share(self.device) if peak else math.inf)
        ramp_s = RAMP_S * op.kernels if self.device.kind is DeviceKind.GPU else 0.0
        return ramp_s + math.hypot(busy_s, traffic_s)

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call; an op of several kernels pays a fraction for each further one."""
        return self._launch_s * (1 + 0.4 * (op.kernels - 1))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the graph: on a GPU the host runs ahead, so the slower of the two decides."""
        kernels_s = sum(seconds * op.count for op, seconds in zip(graph.ops, self.ops_s(graph.ops), strict=True))
        launches_s = sum(self.launch_s(op) * op.count for op in graph.ops)
        if self.device.kind is DeviceKind.CPU:
            return kernels_s + launches_s
        return max(kernels_s, launches_s) + 0.1 * min(kernels_s, launches_s)

    def peak(self, op: Op) -> float:
        """Return the peak FLOP/s at which ``op`` could run on the matrix units.

        float32 convolutions take TF32 where the device has it and GEMMs do not, as PyTorch does by default. A TPU has
        bfloat16 alone, in which XLA runs what may be run in TF32.
        """
        dtype = "tf32" if op.dtype == "float32" and op.kind in (OpKind.CONV, OpKind.RNN) else op.dtype
        peaks = self.device.peak_flops_per_s
        if dtype == "tf32":
            dtype = next((name for name in ("tf32", "float32", "bfloat16") if name in peaks), "float32")
        if dtype not in peaks and self.device.kind is DeviceKind.CPU and "float32" in peaks:
            dtype = "float32"
        if dtype not in peaks:
            raise InvalidInput(f"{self.device.name} has no {dtype} peak in the catalog, so its speed is not known")
        return peaks[dtype] * (vector_share if dtype == "float32" else matrix_share)(self.device)

    def _fill(self, op: Op) -> float:
        """Return the share of its full speed that a GEMM or convolution of this size reaches, in (0, 1]."""
        sizes, kind = _as_product(op), self.device.kind
        if sizes is None or kind is DeviceKind.CPU or (kind is not DeviceKind.GPU and not self.device.compute_units):
            return 1.0
        units = compute_units(self.device)
        batch, m, n, k = sizes
        tiles = batch * max(1.0, m / TILE) * max(1.0, n / TILE)
        if op.kind is OpKind.GEMM and op.dtype not in FILL:
            tiles *= max(1.0, k / SPLIT)
        padded = math.ceil(m / PADDING) * math.ceil(n / PADDING) * PADDING**2
        fill = tiles / (tiles + FILL.get(op.dtype, MATRIX_UNIT_FILL) * units)
        return fill * k / (k + DEPTH) * (m * n / padded)


def _as_product(op: Op) -> tuple[int, int, int, int] | None:
    """Return batch, rows, columns and depth of a GEMM, or of the product a convolution amounts to."""
    dims = op.dims
    if op.kind is OpKind.GEMM and "m" in dims and op.stage is not Stage.OPTIMIZER:
        return dims.get("b", 1), dims["m"], dims["n"], dims["k"]
    if op.kind is OpKind.CONV and "c" in dims:
        groups = max(1, dims.get("groups", 1))
        rows = dims["n"] * dims["h"] * dims["w"]
        return groups, rows, max(1, dims["k"] // groups), max(1, dims["c"] // groups * dims["r"] * dims["s"])
    return None
