"""A calibration's kernels are read as the ops that traced graphs hold, and tell how fast the device really is."""

from dataclasses import fields, replace

import numpy as np
import pytest

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Calibration, KernelTiming
from leadline.estimators.step_time.fitted_kernels import LearnedKernels
from leadline.estimators.step_time.kernel_table import CONVOLUTION, NORM, SOFTMAX, STREAM, tabulate_ops
from leadline.estimators.step_time.swept_kernels import (
    SweptKernels,
    calibration_samples,
    fit_calibration,
    tabulate_kernels,
    timing_to_op,
)
from tests.estimators.step_time.conftest import DEVICES, NAMES, add, gemm, timings_on, true_s

UNSEEN = DEVICES[3]
SLOWER = 1.6


def timed(one, slower=1.0):
    """Return a measured op as ``leadline calibrate`` keeps it."""
    op, dims = one.op, dict(one.op.dims)
    if not dims:
        rows, columns = op.inputs[0].shape
        dims = {"rows": rows, "columns": columns, "elements": rows * columns}
    kind = op.name.split(".")[1]
    return KernelTiming(kind, op.dtype, dims, slower * one.seconds, op.flops, op.bytes_read + op.bytes_written)


def calibrated(slower=1.0, **more):
    kept = [timed(case, slower) for case in timings_on(UNSEEN)[::3]]
    return replace(UNSEEN, calibration=Calibration("2026-01-01", "torch 2.13", 8, tuple(kept)), **more)


def test_a_calibration_reads_as_the_ops_that_were_timed():
    read, meant = calibration_samples(calibrated(), NAMES), tabulate_kernels(timings_on(UNSEEN)[::3], NAMES)
    assert meant.seconds.tolist() == read.seconds.tolist()
    for field in fields(meant.kernels):
        assert getattr(meant.kernels, field.name).tolist() == getattr(read.kernels, field.name).tolist(), field.name


@pytest.mark.parametrize(
    ("kind", "dims", "law"),
    [
        ("convolution", {"n": 8, "c": 16, "k": 32, "h": 14, "w": 14, "r": 3, "s": 3, "groups": 1}, CONVOLUTION),
        ("_softmax", {"rows": 64, "columns": 100, "elements": 6400}, SOFTMAX),
        ("native_layer_norm_backward", {"rows": 64, "columns": 100, "elements": 6400}, NORM),
        ("native_batch_norm", {"rows": 64, "columns": 196, "elements": 12544}, STREAM),
        ("native_group_norm", {"rows": 64, "columns": 196, "elements": 12544}, NORM),
        ("gelu", {"elements": 6400}, STREAM),
        ("cat", {"rows": 64, "columns": 100, "elements": 6400}, STREAM),
    ],
)
def test_each_kind_of_kernel_follows_its_model(kind, dims, law):
    op = timing_to_op(KernelTiming(kind, "float32", {**dims, "elements": dims.get("elements", 1000)}, 1e-3, 1e9, 80e3))
    table = tabulate_ops([op])
    assert [law] == table.law.tolist()
    assert op.bytes_read + op.bytes_written == 80e3
    assert (Stage.BACKWARD if "backward" in kind else Stage.FORWARD) is op.stage
    if "rows" in dims:
        assert (64, dims["columns"]) == (table.rows[0], table.columns[0])


def test_a_recurrent_layer_and_attention_amount_to_the_products_of_a_traced_graph():
    lstm = timing_to_op(
        KernelTiming("lstm", "float32", {"b": 8, "q": 20, "c": 32, "k": 64, "elements": 9}, 1e-3, 1e9, 1e6)
    )
    assert lstm.dims == {"batch": 8, "seq": 20, "input": 32, "hidden": 64}
    sizes = {"b": 2, "h": 4, "q": 128, "kv": 128, "d": 64}
    attention = timing_to_op(KernelTiming("attention", "float32", {**sizes, "elements": 9}, 1e-3, 1e9, 1e6))
    traced = Op("aten._scaled_dot_product_efficient_attention", OpKind.ATTENTION, Stage.FORWARD, "float32", 1e9, 5e5,
                5e5, dims=sizes)  # fmt: skip
    case, other = tabulate_ops([attention]), tabulate_ops([traced])
    assert (case.b[0], case.m[0], case.n[0], case.k[0]) == (other.b[0], other.m[0], other.n[0], other.k[0])


def test_a_sweep_reveals_a_device_slower_than_its_specifications(fitted):
    device = calibrated(SLOWER)
    model = SweptKernels(fit_calibration(fitted, device), device)
    ops = [gemm(m, n, k) for m in (700, 1500) for n in (900, 2500) for k in (300, 2000)] + [add(2**14, 512)]
    truth = SLOWER * np.array([true_s(op, UNSEEN) for op in ops])
    assert np.mean(np.abs(model.ops_s(ops) / truth - 1)) < 0.15
    assert np.mean(np.abs(LearnedKernels(fitted, UNSEEN).ops_s(ops) / truth - 1)) > 0.25
    assert (model.tier, model.host_spread) == (Tier.CALIBRATED, 0.0)


def test_a_sweep_of_one_device_does_not_change_others(fitted):
    known = fitted.merge(fit_calibration(fitted, calibrated(SLOWER)).for_device(UNSEEN.name))
    ops = [gemm(700, 900, 300), add(2**14, 512)]
    assert LearnedKernels(fitted, DEVICES[0]).ops_s(ops) == LearnedKernels(known, DEVICES[0]).ops_s(ops)
    assert LearnedKernels(fitted, UNSEEN).ops_s(ops) != LearnedKernels(known, UNSEEN).ops_s(ops)


def test_kernels_in_a_dtype_that_the_device_has_no_peak_for_are_left_out():
    emulated = KernelTiming("addmm", "bfloat16", {"b": 1, "m": 64, "n": 64, "k": 64}, 1.0, 5e5, 2e4)
    device = calibrated()
    more = replace(device.calibration, timings=(*device.calibration.timings, emulated))
    assert len(calibration_samples(device, NAMES)) == len(calibration_samples(replace(device, calibration=more), NAMES))


def test_a_device_that_was_not_calibrated_is_refused():
    with pytest.raises(InvalidInput, match="huge is not calibrated: run leadline calibrate on it"):
        calibration_samples(UNSEEN, NAMES)


def test_the_op_of_a_streaming_kernel_reads_and_writes_the_moved_bytes():
    op = timing_to_op(KernelTiming("add", "float32", {"elements": 4096}, 1e-5, 4096.0, 3 * 4.0 * 4096), NAMES)
    assert (op.name, op.bytes_read, op.bytes_written) == ("aten.add.Tensor", 8.0 * 4096, 4.0 * 4096)
    assert (TensorSpec((4, 1024), "float32"),) == op.inputs
