"""The law of utilisation is learned from whole steps, and stays within what a device can do."""

import numpy as np
import pytest

from benchmarks.dnn.setting_models import CARRIED, expected_errors, fit_few_expected, fit_settings, prior_op_utilization
from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.step_time.op_fitting import fit_few_steps, fit_op_utilization
from leadline.estimators.step_time.op_table import OpTable
from leadline.estimators.step_time.op_utilization import (
    LEAST_MULTIPLE,
    ObservedSteps,
    OpBasis,
    OpUtilization,
)
from tests.estimators.step_time.conftest import op_s, predict_graphs

DEVICE = Device(
    "Made up", "nobody", DeviceKind.GPU, memory_bytes_per_s=1e12,
    peak_flops_per_s={"float32": 2e13, "float16": 1e14}, l2_bytes=6_000_000,
)  # fmt: skip


def gemm(m, n, k):
    moved = 2.0 * (m * k + k * n + m * n)
    specs = (TensorSpec((m, k), "float16"), TensorSpec((k, n), "float16"))
    return Op("aten.mm", OpKind.GEMM, Stage.FORWARD, "float16", 2.0 * m * n * k, moved, 0.0, specs,
              (TensorSpec((m, n), "float16"),), {"b": 1, "m": m, "n": n, "k": k})  # fmt: skip


def add(rows, columns):
    spec = TensorSpec((rows, columns), "float16")
    size = 2.0 * rows * columns
    return Op("aten.add", OpKind.ELEMENTWISE, Stage.FORWARD, "float16", size / 2, 2 * size, size, (spec, spec), (spec,))


def graphs(count, seed):
    dice = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        widths = 2 ** dice.integers(6, 11, size=3)
        rows = int(2 ** dice.integers(10, 15))
        found.append(
            [gemm(rows, int(widths[0]), int(widths[1])), add(rows, int(widths[2]))] * int(dice.integers(1, 20))
        )
    return found


def truth(basis):
    """Return steps in which a product takes 1.7 and a stream 1.2 times its roofline."""
    table = basis.table
    return table.summed(basis.roofline_s * np.where(table.matrix, 1.7, 1.2) * table.count)


def observed(count, seed):
    basis = OpBasis.from_table(OpTable.from_graphs(graphs(count, seed)), DEVICE)
    return ObservedSteps(basis, np.arange(count), truth(basis))


def test_step_times_determine_the_utilization_of_each_class():
    law = fit_op_utilization([observed(150, 0)], prior_op_utilization(), ridge=1.0)[0]
    unseen = observed(40, 1)
    assert np.abs(predict_graphs(unseen.basis, law).step_s / unseen.step_s - 1).max() < 0.03


def test_unseen_classes_keep_the_prior():
    law = fit_op_utilization([observed(50, 0)], prior_op_utilization(), ridge=10.0)[0]
    spec = TensorSpec((8, 64, 32, 32), "float16")
    norm = Op("aten.native_batch_norm", OpKind.NORM, Stage.FORWARD, "float16", 0.0, 1e6, 1e6, (spec,), (spec,))
    basis = OpBasis.from_table(OpTable.from_graphs([[norm]]), DEVICE)
    multiple = op_s(basis, law)[0] / basis.roofline_s[0]
    assert LEAST_MULTIPLE < multiple < 3.0


def test_no_op_is_faster_than_the_floor_of_its_roofline():
    basis = OpBasis.from_table(OpTable.from_graphs(graphs(20, 3)), DEVICE)
    eager = OpUtilization(prior_op_utilization().f - 50.0)
    assert (op_s(basis, eager) >= LEAST_MULTIPLE * basis.roofline_s).all()


def test_many_small_kernels_wait_for_the_host():
    law = OpUtilization(prior_op_utilization().f, launch_s=1e-5)
    small = OpBasis.from_table(OpTable.from_graphs([[add(8, 8)] * 1000]), DEVICE)
    assert predict_graphs(small, law).step_s[0] == pytest.approx(1e-2, rel=0.05)


def test_settings_share_weights_and_differ_by_their_offset():
    first = observed(80, 0)
    second = ObservedSteps(first.basis, first.graph, first.step_s * 1.3)
    laws = fit_op_utilization([first, second], prior_op_utilization(), ridge=1.0)
    ratio = predict_graphs(first.basis, laws[1]).step_s / predict_graphs(first.basis, laws[0]).step_s
    assert np.abs(ratio / 1.3 - 1).max() < 0.05


def test_a_few_steps_of_a_slower_device_move_the_whole_model():
    law = fit_op_utilization([observed(150, 0)], prior_op_utilization(), ridge=1.0)[0]
    few, unseen = observed(10, 5), observed(40, 6)
    adapted = fit_few_steps(law, ObservedSteps(few.basis, few.graph, few.step_s * 1.5))
    before = np.abs(predict_graphs(unseen.basis, law).step_s / (1.5 * unseen.step_s) - 1).mean()
    after = np.abs(predict_graphs(unseen.basis, adapted).step_s / (1.5 * unseen.step_s) - 1).mean()
    assert after < 0.2 * before


def test_models_survive_storage_as_arrays():
    given = {"a": observed(30, 0), "b": observed(30, 1)}
    laws = fit_settings(given, {"a": "group", "b": "group"})
    assert set(laws) == {"a", "b", "group in common"}
    basis, state = observed(5, 9).basis, laws["a"].dump()
    before, after = (predict_graphs(basis, law).step_s for law in (laws["a"], OpUtilization.load(state)))
    assert np.allclose(before, after, rtol=1e-4)
    assert all(array.dtype != object for array in state.values())


def test_peculiarities_of_models_do_not_count_as_the_devices():
    law = fit_op_utilization([observed(150, 0)], prior_op_utilization(), ridge=1.0)[0]
    few, unseen = observed(12, 5), observed(40, 6)
    odd = expected_errors(np.random.default_rng(0).normal(0.0, 0.5, 12))
    measured = ObservedSteps(few.basis, few.graph, few.step_s * 1.5 * np.exp(odd))
    plain, knowing = fit_few_steps(law, measured), fit_few_expected(law, measured, odd)
    errors = [
        np.abs(predict_graphs(unseen.basis, case).step_s / (1.5 * unseen.step_s) - 1).mean()
        for case in (plain, knowing)
    ]
    assert errors[1] < 0.05 < errors[0]


def test_an_unknown_error_elsewhere_shifts_nothing():
    assert [0.0, pytest.approx(0.1 * CARRIED)] == expected_errors(np.array([np.nan, 0.1])).tolist()


def test_a_device_without_a_peak_is_refused_by_name():
    bare = Device("Bare", "nobody", DeviceKind.GPU, memory_bytes_per_s=1e12, peak_flops_per_s={"float32": 1e13})
    with pytest.raises(InvalidInput, match="Bare has no float16 peak"):
        OpBasis.from_table(OpTable.from_graphs([[gemm(64, 64, 64)]]), bare)
    with pytest.raises(InvalidInput, match="no memory bandwidth"):
        OpBasis.from_table(OpTable.from_graphs([[gemm(64, 64, 64)]]), Device("Empty", "nobody", DeviceKind.GPU))


def test_the_spread_grows_with_unseen_ops():
    law = fit_op_utilization([observed(60, 0)], prior_op_utilization(), ridge=10.0)[0]
    spec = TensorSpec((8, 64, 32, 32), "float16")
    odd = Op("aten.native_batch_norm", OpKind.NORM, Stage.FORWARD, "float16", 0.0, 1e9, 1e9, (spec,), (spec,))
    basis = OpBasis.from_table(OpTable.from_graphs([*graphs(1, 7), [odd]]), DEVICE)
    known, unknown = predict_graphs(basis, law).spread
    assert unknown > 2 * known


def units(count):
    peaks = {"float32": 2e13, "float16": 1e14}
    return Device("Made up", "nobody", DeviceKind.GPU, memory_bytes_per_s=1e12, peak_flops_per_s=peaks,
                  l2_bytes=6_000_000, compute_units=count)  # fmt: skip


def test_time_above_the_roofline_shrinks_with_another_devices_units():
    table = OpTable.from_graphs([[add(4096, 4096)]])
    slow = OpUtilization(prior_op_utilization().f + np.log(10.0))
    here, there = (OpBasis.from_table(table, units(count), learned_on=units(80)) for count in (80, 160))
    multiple = op_s(here, slow)[0] / here.roofline_s[0]
    assert multiple > 3
    assert op_s(there, slow)[0] / there.roofline_s[0] == pytest.approx(1 + (multiple - 1) / 2)


def test_time_within_the_roofline_follows_the_roofline_alone():
    table = OpTable.from_graphs([[add(4096, 4096)]])
    cached = OpUtilization(prior_op_utilization().f - 5.0)
    here, there = (OpBasis.from_table(table, units(count), learned_on=units(80)) for count in (80, 160))
    assert op_s(here, cached)[0] == op_s(there, cached)[0]


def test_a_device_whose_units_are_not_known_keeps_its_multiples():
    table = OpTable.from_graphs([[add(4096, 4096)]])
    law = prior_op_utilization()
    assert op_s(OpBasis.from_table(table, DEVICE), law) == op_s(
        OpBasis.from_table(table, DEVICE, learned_on=units(80)), law
    )


def test_a_model_far_off_does_not_bend_a_class_that_it_alone_calls():
    spec = TensorSpec((8, 64, 32, 32), "float16")
    norm = Op("aten.native_batch_norm", OpKind.NORM, Stage.FORWARD, "float16", 0.0, 4e6, 4e6, (spec,), (spec,))
    known = graphs(60, 0)
    odd = [[*graph, norm] for graph in graphs(4, 5)]
    basis = OpBasis.from_table(OpTable.from_graphs([*known, *odd]), DEVICE)
    steps_s = truth(basis) * np.where(np.arange(64) < 60, 1.0, 6.0)
    law = fit_op_utilization([ObservedSteps(basis, np.arange(64), steps_s)], prior_op_utilization(), ridge=10.0)[0]
    alone = OpBasis.from_table(OpTable.from_graphs([[norm]]), DEVICE)
    assert op_s(alone, law)[0] < 4 * op_s(alone, prior_op_utilization())[0]
