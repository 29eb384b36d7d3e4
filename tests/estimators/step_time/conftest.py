"""Made-up devices whose kernels follow a law that the tests know."""

import math

import pytest

from benchmarks.dnn.kernel_fitting import fit_kernels
from benchmarks.dnn.vision_lab import GraphPredictions
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.step_time.analytical_kernels import WAIT
from leadline.estimators.step_time.op_utilization import predict_graphs_and_ops
from leadline.estimators.step_time.swept_kernels import KernelSample

NAMES = ("aten.add.Tensor",)
LAUNCH_S = {"small": 20e-6, "middle": 30e-6, "large": 25e-6, "huge": 40e-6}


def device(name, tflops, gb_per_s, units, **more):
    peaks = {"float32": tflops * 1e12, "float16": 8 * tflops * 1e12, **more.pop("peaks", {})}
    settings = {"architecture": "Volta", "compute_capability": "7.0", "l2_bytes": 6 * 2**20, **more}
    return Device(name, "nvidia", DeviceKind.GPU, memory_bytes_per_s=gb_per_s * 1e9, peak_flops_per_s=peaks,
                  compute_units=units, **settings)  # fmt: skip


DEVICES = (
    device("small", 5, 200, 20), device("middle", 10, 600, 60), device("large", 15, 900, 80),
    device("huge", 20, 1600, 110),
)  # fmt: skip


def gemm(m, n, k, b=1, dtype="float32"):
    width = 4 if dtype == "float32" else 2
    name, dims = "aten.bmm" if b > 1 else "aten.addmm", {"b": b, "m": m, "n": n, "k": k}
    read, written = float(width * b * (m * k + n * k)), float(width * b * m * n)
    return Op(name, OpKind.GEMM, Stage.FORWARD, dtype, 2.0 * b * m * n * k, read, written, dims=dims)


def add(rows, columns):
    spec, size = TensorSpec((rows, columns), "float32"), rows * columns
    return Op("aten.add.Tensor", OpKind.ELEMENTWISE, Stage.FORWARD, "float32", float(size), 8.0 * size, 4.0 * size,
              (spec, spec), (spec,))  # fmt: skip


def true_s(op, on):
    """Return what a kernel takes: at 70 % of the peak for products in tiles of 64, at 80 % of the bandwidth."""
    moved_s = (op.bytes_read + op.bytes_written) / (0.8 * on.memory_bytes_per_s)
    if op.kind is not OpKind.GEMM:
        return moved_s + 5e-6
    sizes = op.dims
    tiles = sizes["b"] * math.ceil(sizes["m"] / 64) * math.ceil(sizes["n"] / 64)
    tile_s = 2 * 64 * 64 * sizes["k"] / (0.7 * on.peak_flops_per_s[op.dtype] / on.compute_units)
    return max(math.ceil(tiles / on.compute_units) * tile_s, moved_s) + 5e-6


def timings_on(on):
    sizes = [2**i for i in range(5, 13)]
    ops = [gemm(m, n, k) for m in sizes for n in sizes[::2] for k in sizes[1::2]]
    ops += [gemm(m, m, k, b=b) for m in sizes[:6] for k in (64, 128) for b in (2, 16, 64)]
    ops += [add(2**i, columns) for i in range(4, 15) for columns in (64, 256, 1024)]
    return [KernelSample(op, on, marked_s(LAUNCH_S[on.name], true_s(op, on))) for op in ops]


def marked_s(launch_s, kernel_s):
    """Return what lies between two marks: the kernel starts within the call, and the second mark waits for both."""
    return max(launch_s, WAIT * launch_s + kernel_s)


@pytest.fixture(scope="session")
def fitted():
    return fit_kernels([case for on in DEVICES[:3] for case in timings_on(on)], NAMES)


def predict_graphs(basis, law):
    return GraphPredictions(*predict_graphs_and_ops(basis, law)[:2])


def op_s(basis, law):
    return predict_graphs_and_ops(basis, law)[2]
