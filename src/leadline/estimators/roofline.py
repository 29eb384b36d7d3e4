"""Price ops from the maker's figures alone: a roofline with bounded efficiency, and the cost of launching."""

import math

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind

MATRIX_KINDS = frozenset({OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION, OpKind.RNN})
"""Kinds whose arithmetic runs on the matrix units, at the peak of their dtype."""

EFFICIENCY = {OpKind.GEMM: 0.75, OpKind.CONV: 0.55, OpKind.ATTENTION: 0.50, OpKind.RNN: 0.30}
"""Share of the peak that a large kernel of a kind reaches; round figures from published kernel tables, ± 0.15."""

BANDWIDTH_EFFICIENCY = 0.80
"""Share of the memory bandwidth that streaming kernels reach (0.75 to 0.90 on HBM parts)."""

RAMP_S = 2e-6
"""Time a GPU kernel needs to start and drain, whatever its size."""

LAUNCH_S = {DeviceKind.GPU: 9e-6, DeviceKind.CPU: 6e-6, DeviceKind.TPU: 1e-6, DeviceKind.ACCELERATOR: 9e-6}
"""Host time of one eager op: interpreter, dispatcher, autograd and driver; 5 to 15 µs on hosts of the last years."""

PROCESS_NM = {
    "Kepler": 28, "Maxwell": 28, "Pascal": 16, "Volta": 12, "Turing": 12, "Ampere": 7.5, "Ada": 4.5, "Hopper": 4.5,
    "Blackwell": 4.5, "Blackwell Ultra": 4.5,
}  # fmt: skip
"""Process node by architecture, for the power cap."""

WATT_PER_TFLOP_NM = 1.45
"""Power of float32 arithmetic outside the matrix units, per TFLOP/s and nanometre of the process."""

TILE = 128
"""Edge of the output tile of a GEMM kernel, for wave quantisation."""


class SpecsKernels:
    """A ``KernelModel`` from a device's specifications.

    Raises:
        InvalidInput: the device has no memory bandwidth figure, or no peak for a dtype (when an op needs it).
    """

    tier = Tier.SPECS
    spread = 0.40

    def __init__(self, device: Device) -> None:
        if not device.memory_bytes_per_s:
            raise InvalidInput(f"{device.name} has no memory bandwidth in the catalog, so its speed is not known")
        self.device = device
        self._bytes_per_s = device.memory_bytes_per_s * BANDWIDTH_EFFICIENCY

    def op_s(self, op: Op) -> float:
        """Return the seconds of one call: the smooth maximum of arithmetic and traffic, plus the ramp."""
        traffic_s = (op.bytes_read + op.bytes_written) / self._bytes_per_s
        if op.kind in MATRIX_KINDS and op.flops:
            busy_s = op.flops / (self.peak(op) * EFFICIENCY[op.kind]) * self._wave_loss(op)
        else:
            busy_s = op.flops / (self._vector_peak() or math.inf)
        ramp_s = RAMP_S * op.kernels if self.device.kind is DeviceKind.GPU else 0.0
        return ramp_s + math.hypot(busy_s, traffic_s)

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call; an op of several kernels pays a fraction for each further one."""
        return LAUNCH_S[self.device.kind] * (1 + 0.4 * (op.kernels - 1))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the graph: on a GPU the host runs ahead, so the slower of the two decides."""
        kernels_s = sum(self.op_s(op) * op.count for op in graph.ops)
        launches_s = sum(self.launch_s(op) * op.count for op in graph.ops)
        if self.device.kind is DeviceKind.CPU:
            return kernels_s + launches_s
        return max(kernels_s, launches_s) + 0.1 * min(kernels_s, launches_s)

    def peak(self, op: Op) -> float:
        """Return the peak FLOP/s at which ``op`` could run on the matrix units.

        float32 convolutions take TF32 where the device has it and GEMMs do not, as PyTorch does by default.
        """
        dtype = "tf32" if op.dtype == "float32" and op.kind in (OpKind.CONV, OpKind.RNN) else op.dtype
        peaks = self.device.peak_flops_per_s
        if dtype == "tf32":
            dtype = "tf32" if "tf32" in peaks else "float32"
        if dtype not in peaks and self.device.kind is DeviceKind.CPU and "float32" in peaks:
            dtype = "float32"
        if dtype not in peaks:
            raise InvalidInput(f"{self.device.name} has no {dtype} peak in the catalog, so its speed is not known")
        return self._power_capped(peaks[dtype]) if dtype == "float32" else peaks[dtype]

    def _vector_peak(self) -> float | None:
        peak = self.device.peak_flops_per_s.get("float32")
        return self._power_capped(peak) if peak else None

    def _power_capped(self, peak: float) -> float:
        """Return the mean of the peak and the peak that the power limit allows (float32 outside the matrix units)."""
        process = PROCESS_NM.get(self.device.architecture or "")
        if not process or not self.device.tdp_w:
            return peak
        allowed = self.device.tdp_w / (WATT_PER_TFLOP_NM * process) * 1e12
        return (peak + min(peak, allowed)) / 2

    def _wave_loss(self, op: Op) -> float:
        """Return by how much whole waves of output tiles exceed the work, for a forward GEMM on a GPU (at most 4)."""
        units = self.device.compute_units
        if op.kind is not OpKind.GEMM or op.stage is Stage.OPTIMIZER or not units or "m" not in op.dims:
            return 1.0
        dims = op.dims
        tiles = dims.get("b", 1) * math.ceil(dims["m"] / TILE) * math.ceil(dims["n"] / TILE)
        return min(4.0, math.ceil(tiles / units) * units / tiles)
