""""""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageEvent, TensorSpec
from leadline.core.hardware import Calibration, Device, DeviceKind, KernelTiming
from leadline.estimators.step_time.calibrated_kernels import CalibratedKernels, krige

GRID = tuple((x / 2, y / 2) for x in range(7) for y in range(7))
HILL = tuple(math.sin(x) + 0.5 * y for x, y in GRID)


@given(st.floats(0.3, 2.7), st.floats(0.3, 2.7))
def test_a_smooth_surface_is_found_again_between_its_measurements(x, y):
    assert math.sin(x) + 0.5 * y == pytest.approx(krige(GRID, HILL, (x, y)), abs=0.08)


def test_one_measurement_is_all_there_is_to_say():
    assert krige(((1.0, 2.0),), (0.7,), (9.0, 9.0)) == 0.7


@given(st.floats(-3, 3))
def test_a_constant_surface_stays_constant_near_its_measurements(value):
    assert value == pytest.approx(krige(GRID, (value,) * len(GRID), (1.3, 1.7)), abs=0.02 * abs(value) + 1e-9)


def test_two_measurements_at_one_place_are_averaged():
    twice = krige(((0.0,), (0.0,), (50.0,)), (1.0, 3.0, 2.0), (0.0,))
    assert pytest.approx(twice, abs=0.1) == 2.0


def test_far_from_all_measurements_the_prediction_is_near_their_mean():
    far = krige(GRID, HILL, (40.0, 40.0))
    assert min(HILL) < far < max(HILL)


FIGURES = {"call_s": 1e-6, "launch_forward_s": 5e-6, "launch_inference_s": 3e-6, "copy_bytes_per_s": 1e10,
           "fresh_s_per_byte": 1e-9}  # fmt: skip


def gemm(m, n, k, rate):
    return KernelTiming("addmm", "float32", {"b": 1, "m": m, "n": n, "k": k}, 1e-6 + 2 * m * n * k / rate,
                        2.0 * m * n * k, 4.0 * (m * k + n * k + m * n))  # fmt: skip


TIMINGS = (
    *(KernelTiming("add", "float32", {"elements": 2**p}, 1e-6 + 2**p * 1e-9) for p in (8, 12, 16, 20)),
    gemm(64, 64, 64, 2e10),
    gemm(1024, 1024, 1024, 1e11),
)
DEVICE = Device("test", "AMD", DeviceKind.CPU, peak_flops_per_s={"float32": 1e11}, memory_bytes_per_s=1e10,
                calibration=Calibration("2026-01-01", "torch", 2, TIMINGS, FIGURES))  # fmt: skip


def add(elements, stage=Stage.FORWARD):
    spec = TensorSpec((elements,), "float32")
    return Op("aten.add.Tensor", OpKind.ELEMENTWISE, stage, "float32", elements, 8.0 * elements, 4.0 * elements,
              (spec, spec), (spec,))  # fmt: skip


def test_a_measured_size_costs_its_measurement_less_the_call():
    assert pytest.approx(CalibratedKernels(DEVICE).op_s(add(2**16)), rel=1e-6) == 2**16 * 1e-9


@given(st.integers(2**8, 2**26), st.integers(2**8, 2**26))
def test_a_larger_pointwise_kernel_never_costs_less(one, other):
    kernels = CalibratedKernels(DEVICE)
    small, large = sorted((one, other))
    assert kernels.op_s(add(small)) <= kernels.op_s(add(large)) * (1 + 1e-9)


def test_a_product_close_to_a_measured_one_runs_at_nearly_its_rate():
    op = Op("aten.addmm", OpKind.GEMM, Stage.FORWARD, "float32", 2.0 * 1100 * 1024 * 1024, 1e7, 4e6,
            dims={"b": 1, "m": 1100, "n": 1024, "k": 1024})  # fmt: skip
    assert pytest.approx(CalibratedKernels(DEVICE).op_s(op), rel=0.1) == 2 * 1100 * 1024 * 1024 / 1e11


def test_a_forward_pass_alone_pays_the_launches_of_inference():
    kernels = CalibratedKernels(DEVICE)
    assert kernels.op_s(add(256)) + 3e-6 == pytest.approx(kernels.step_s(OpGraph((add(256),))), rel=1e-3)


def test_memory_fresh_from_the_kernel_is_paid_for():
    kernels, size = CalibratedKernels(DEVICE), 64 * 2**20
    events = (StorageEvent(0, 1, size), StorageEvent(1, 1, -size))
    graph = OpGraph((add(256),), events)
    assert size * 1e-9 == pytest.approx(kernels.step_s(graph) - kernels.step_s(OpGraph((add(256),))), rel=1e-3)


def test_a_device_that_was_never_measured_is_refused_by_name():
    with pytest.raises(InvalidInput, match="bare is not calibrated: run leadline calibrate"):
        CalibratedKernels(Device("bare", "AMD", DeviceKind.CPU))


def test_an_unmeasured_operator_gets_its_roofline():
    op = Op("aten.fft_c2c", OpKind.CONV, Stage.FORWARD, "float32", 1e9, 1e6, 1e6)
    seconds = CalibratedKernels(DEVICE).op_s(op)
    assert math.isclose(seconds, 1e9 / 1e11 + 2e6 / 1e10, rel_tol=0.01)


@pytest.mark.parametrize(("busy", "doubted"), [(0.0, False), (0.1, False), (0.5, True), (1.0, True)])
def test_a_sweep_on_a_busy_machine_has_a_wider_spread(busy, doubted):
    calibration = replace(DEVICE.calibration, figures={**FIGURES, "busy_share": busy})
    kernels, calm = CalibratedKernels(replace(DEVICE, calibration=calibration)), CalibratedKernels(DEVICE)
    graph = OpGraph((add(256),))
    assert doubted is bool(kernels.reasons)
    assert doubted is (kernels.spread_of(graph) > calm.spread_of(graph))
    if doubted:
        assert f"the machine was {busy:.0%} busy with other work when it was calibrated" in kernels.reasons[0]


def test_a_kind_of_kernel_that_the_sweep_missed_is_priced_by_its_bytes():
    spec = TensorSpec((2**20,), "bfloat16")
    op = Op("aten.gelu", OpKind.ELEMENTWISE, Stage.FORWARD, "bfloat16", 1e9, 2.0 * 2**20, 2.0 * 2**20, (spec,), (spec,))
    none = tuple(timing for timing in TIMINGS if timing.kind == "addmm")
    kernels = CalibratedKernels(replace(DEVICE, calibration=replace(DEVICE.calibration, timings=none)))
    assert pytest.approx(kernels.op_s(op), rel=0.01) == 8.0 * 2**20 / 1e10


def test_layers_and_directions_of_a_recurrent_op_each_cost_what_the_sweep_measured_for_one():
    sizes = {"b": 4, "q": 8, "c": 16, "k": 16}
    timing = KernelTiming("lstm", "float32", sizes, 1e-4, 1e6, 1e5)
    device = replace(DEVICE, calibration=replace(DEVICE.calibration, timings=(*TIMINGS, timing)))
    dims = {"batch": 4, "seq": 8, "input": 16, "hidden": 16, "layers": 1, "directions": 2}
    op = Op("aten.lstm", OpKind.RNN, Stage.FORWARD, "float32", 2e6, 1e5, 1e5, dims=dims, kernels=2)
    assert CalibratedKernels(device).op_s(op) == pytest.approx(2 * (1e-4 - FIGURES["call_s"]))
