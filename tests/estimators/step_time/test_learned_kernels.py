"""The learned kernel model as a port: bounds, growth with size, and many at once like one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.dnn.kernel_fitting import interpolate_kernels, predict_steps_s
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Calibration, DeviceKind
from leadline.estimators.step_time.fitted_kernels import LearnedKernels
from leadline.estimators.step_time.kernel_table import tabulate_ops
from tests.estimators.step_time.conftest import DEVICES, add, device, gemm

UNSEEN = DEVICES[3]
VIEW = Op("aten.view", OpKind.COPY, Stage.FORWARD, "float32", 0.0, 0.0, 0.0)
sizes = st.integers(1, 8192)


def test_it_says_that_it_learned(fitted):
    model = LearnedKernels(fitted, UNSEEN)
    assert Tier.LEARNED is model.tier
    assert 0 < model.spread_of(OpGraph(())) < 1


@settings(max_examples=60)
@given(sizes, sizes, sizes, st.integers(1, 64))
def test_no_product_runs_above_the_peak_or_the_cache(fitted, m, n, k, b):
    op = gemm(m, n, k, b=b)
    took = LearnedKernels(fitted, UNSEEN).ops_s([op])[0]
    assert took >= op.flops / UNSEEN.peak_flops_per_s["float32"] * (1 - 1e-9)
    assert took >= (op.bytes_read + op.bytes_written) / (8 * UNSEEN.memory_bytes_per_s) * (1 - 1e-9)


@settings(max_examples=30)
@given(st.integers(32, 1024), st.integers(32, 1024), st.integers(32, 1024))
def test_a_product_of_eight_times_the_work_takes_longer(fitted, m, n, k):
    model = LearnedKernels(fitted, UNSEEN)
    assert model.ops_s([gemm(2 * m, 2 * n, 2 * k)])[0] > model.ops_s([gemm(m, n, k)])[0]


def test_streaming_more_bytes_takes_longer(fitted):
    times = LearnedKernels(fitted, UNSEEN).ops_s([add(2**i, 1024) for i in range(4, 16)])
    assert (np.diff(times) > 0).all()


def test_half_precision_runs_at_the_peak_of_its_own(fitted):
    model = LearnedKernels(fitted, UNSEEN)
    single, half = (model.ops_s([gemm(8192, 8192, 8192, dtype=dtype)])[0] for dtype in ("float32", "float16"))
    assert 3 < single / half <= 8.5


def test_many_ops_are_priced_like_each_by_itself(fitted):
    ops = [gemm(512, 512, 512), add(4096, 512), gemm(512, 512, 512), VIEW, gemm(64, 64, 64, b=16)]
    model = LearnedKernels(fitted, UNSEEN)
    assert model.ops_s(ops) == pytest.approx([model.ops_s([op])[0] for op in ops], rel=1e-12)
    assert model.ops_s([VIEW])[0] == 0.0


def test_many_configurations_are_priced_like_each_by_itself(fitted):
    graphs = [OpGraph((gemm(rows, 512, 512), add(rows, 512))) for rows in (64, 1024, 8192)]
    expected = [LearnedKernels(fitted, on).step_s(graph) for graph in graphs for on in DEVICES]
    tables = [tabulate_ops(graph.ops, {"aten.add.Tensor": 0}) for graph in graphs for _ in DEVICES]
    assert predict_steps_s(fitted, tables, list(DEVICES) * 3).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_batch_between_two_is_made_of_their_sizes():
    two, eight, four = (tabulate_ops((gemm(b * 128, 512, 256), add(b * 128, 256))) for b in (2, 8, 4))
    made = interpolate_kernels(two, eight, 1 / 3)
    for name in ("m", "n", "k", "moved", "flops", "rows", "columns"):
        assert getattr(made, name) == pytest.approx(getattr(four, name))


def test_a_step_of_views_takes_its_launches(fitted):
    model = LearnedKernels(fitted, UNSEEN)
    assert model.step_s(OpGraph((replace(VIEW, count=300),))) == pytest.approx(300 * model.launch_s(VIEW))


def test_a_measured_launch_is_taken(fitted):
    measured = replace(UNSEEN, calibration=Calibration("2026-01-01", "torch", 1, figures={"launch_s": 3e-6}))
    assert LearnedKernels(fitted, measured).launch_s(VIEW) == 3e-6


def test_a_graph_takes_the_sum_of_its_kernels_where_they_outlast_the_launches(fitted):
    model = LearnedKernels(fitted, UNSEEN)
    graph = OpGraph((replace(gemm(4096, 4096, 4096), count=3), add(8192, 8192)))
    expected = 3 * model.ops_s([gemm(4096, 4096, 4096)])[0] + model.ops_s([add(8192, 8192)])[0]
    assert model.step_s(graph) == pytest.approx(expected)


def test_steps_on_a_new_device_use_the_vendors_factor(fitted):
    longer = replace(fitted, steps={"nvidia": math.log(1.1), "amd": math.log(3.0)})
    graph = OpGraph((replace(gemm(4096, 4096, 4096), count=3),))
    for on, expected in ((UNSEEN, 1.1), (DEVICES[0], 1.0)):
        ratio = LearnedKernels(longer, on).step_s(graph) / LearnedKernels(fitted, on).step_s(graph)
        assert ratio == pytest.approx(expected)
        both = [predict_steps_s(case, [tabulate_ops(graph.ops)], [on])[0] for case in (longer, fitted)]
        assert both[0] / both[1] == pytest.approx(expected)


def test_a_processor_is_sent_to_its_specifications(fitted):
    with pytest.raises(InvalidInput, match="kernels were learned on GPUs"):
        LearnedKernels(fitted, replace(UNSEEN, kind=DeviceKind.CPU))


def test_a_device_without_a_bandwidth_is_refused(fitted):
    with pytest.raises(InvalidInput, match="has no memory bandwidth"):
        LearnedKernels(fitted, replace(UNSEEN, memory_bytes_per_s=None))


def test_half_precision_at_twice_the_rate_uses_the_matrix_unit_model(fitted):
    consumer = device("consumer", 80, 1000, 128, peaks={"float16": 160e12}, compute_capability="8.9")
    model = LearnedKernels(fitted, consumer)
    assert (
        1.2
        < model.ops_s([gemm(8192, 8192, 8192)])[0] / model.ops_s([gemm(8192, 8192, 8192, dtype="float16")])[0]
        <= 2.5
    )


def test_bytes_are_priced_on_a_device_without_a_single_precision_peak(fitted):
    bare = replace(UNSEEN, name="bare", peak_flops_per_s={"float16": 160e12})
    model = LearnedKernels(fitted, bare)
    assert 0 < model.ops_s([add(4096, 4096)])[0] < 1e-2
    with pytest.raises(InvalidInput, match="bare has no float32 peak"):
        model.ops_s([gemm(64, 64, 64)])[0]


def test_a_dtype_that_the_device_lacks_is_refused(fitted):
    plain = device("plain", 5, 200, 20)
    with pytest.raises(InvalidInput, match="plain has no float64 peak"):
        LearnedKernels(fitted, plain).ops_s([gemm(64, 64, 64, dtype="float64")])[0]


@pytest.mark.parametrize("kind", list(OpKind))
def test_every_kind_of_op_has_a_price(fitted, kind):
    op = Op(f"aten.{kind.value}", kind, Stage.FORWARD, "float32", 1e9, 1e6, 1e6)
    assert 0 < LearnedKernels(fitted, UNSEEN).ops_s([op])[0] < 0.1
