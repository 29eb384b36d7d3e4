"""Kernels are priced within their roofline, and what a device's catalog row lacks is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.step_time.roofline import RooflineKernels

A100 = Device("A100", "nvidia", DeviceKind.GPU, 80 * 10**9, 2.039e12,
              {"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12}, "Ampere", 108, tdp_w=400)  # fmt: skip
V100 = Device("V100", "nvidia", DeviceKind.GPU, 16 * 10**9, 0.9e12, {"float32": 15.7e12, "float16": 125e12}, "Volta",
              80, tdp_w=300)  # fmt: skip
SIZES = st.integers(1, 1 << 15)


def gemm(m, n, k, *, dtype="bfloat16", b=1):
    width = 4 if dtype == "float32" else 2
    return Op("aten.mm", OpKind.GEMM, Stage.FORWARD, dtype, 2.0 * b * m * n * k, float(width * b * (m * k + k * n)),
              float(width * b * m * n), dims={"b": b, "m": m, "n": n, "k": k})  # fmt: skip


def streaming(size, kind=OpKind.ELEMENTWISE):
    return Op("aten.add", kind, Stage.FORWARD, "float32", size / 12, size * 2 / 3, size / 3)


@given(SIZES, SIZES, SIZES)
def test_no_kernel_beats_its_roofline(m, n, k):
    op = gemm(m, n, k)
    bound_s = max(op.flops / 312e12, (op.bytes_read + op.bytes_written) / 2.039e12)
    assert bound_s < RooflineKernels(A100).op_s(op)


@given(SIZES, SIZES, SIZES)
def test_a_longer_inner_sum_never_costs_noticeably_less(m, n, k):
    # A product that is split along its inner sum fills the device a little better with each further element.
    model = RooflineKernels(A100)
    assert model.op_s(gemm(m, n, k)) <= model.op_s(gemm(m, n, k + 1)) * 1.0001


def test_a_large_product_reaches_the_published_share_of_the_peak():
    """Vidur's A100 layers above 2,048 tokens: 0.74 of the peak."""
    op = gemm(4096, 22016, 4096)
    assert op.flops / RooflineKernels(A100).op_s(op) / 312e12 == pytest.approx(0.74, abs=0.04)


def test_a_small_product_reaches_far_less():
    op = gemm(64, 64, 64)
    assert op.flops / RooflineKernels(A100).op_s(op) / 312e12 < 0.01


def test_half_precision_is_refused_where_its_peak_is_not_known():
    with pytest.raises(InvalidInput, match="V100 has no bfloat16 peak"):
        RooflineKernels(V100).op_s(gemm(128, 128, 128))


def test_a_device_without_bandwidth_is_refused():
    with pytest.raises(InvalidInput, match="bandwidth"):
        RooflineKernels(Device("X", "nvidia", DeviceKind.GPU))


def test_a_norm_streams_slower_than_an_addition():
    model = RooflineKernels(A100)
    assert model.op_s(streaming(1e9)) < model.op_s(streaming(1e9, OpKind.NORM))


def test_a_step_of_many_small_kernels_is_bound_by_the_host():
    model = RooflineKernels(A100)
    graph = OpGraph(tuple(streaming(1e4) for _ in range(100)))
    launches = sum(model.launch_s(op) for op in graph.ops)
    assert launches <= model.step_s(graph) <= 1.2 * launches


def test_repeated_layers_cost_as_often_as_they_are_repeated():
    model = RooflineKernels(A100)
    op = gemm(4096, 4096, 4096)
    many = Op(op.name, op.kind, op.stage, op.dtype, op.flops, op.bytes_read, op.bytes_written, dims=op.dims, count=7)
    assert model.step_s(OpGraph((many,))) == pytest.approx(model.step_s(OpGraph((op,) * 7)))


def test_tf32_capable_ops_use_the_best_format_of_the_device():
    tpu = Device("v5e", "google", DeviceKind.TPU, 16 * 10**9, 0.8e12, {"bfloat16": 197e12})
    peaks = [RooflineKernels(device).peak(gemm(512, 512, 512, dtype="tf32")) for device in (A100, tpu)]
    assert peaks == [156e12, 197e12]
    with pytest.raises(InvalidInput, match="no float32 peak"):
        RooflineKernels(tpu).peak(gemm(512, 512, 512, dtype="float32"))
