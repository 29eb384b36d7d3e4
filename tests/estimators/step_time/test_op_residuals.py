"""Departures from the law are found among ops alike, from whole steps, and nowhere else."""

import numpy as np
import pytest

from benchmarks.dnn.setting_models import prior_op_utilization
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.step_time.op_fitting import add_op_residuals, fit_op_utilization
from leadline.estimators.step_time.op_table import OpTable
from leadline.estimators.step_time.op_utilization import (
    FARTHEST,
    ObservedSteps,
    OpBasis,
    OpResiduals,
    OpUtilization,
    fit_op_residuals,
)
from tests.estimators.step_time.conftest import op_s, predict_graphs

DEVICE = Device(
    "Made up", "nobody", DeviceKind.GPU, memory_bytes_per_s=1e12,
    peak_flops_per_s={"float32": 2e13, "float16": 1e14}, l2_bytes=6_000_000,
)  # fmt: skip


def grouped(width, groups, pixels=28):
    channels = width * groups
    spec = TensorSpec((256, channels, pixels, pixels), "float16")
    moved = 2.0 * 2 * 256 * channels * pixels**2
    dims = {"n": 256, "c": channels, "k": channels, "h": pixels, "w": pixels, "r": 3, "s": 3, "groups": groups}
    flops = 2.0 * 256 * pixels**2 * 9 * width * channels
    return Op("aten.convolution", OpKind.CONV, Stage.FORWARD, "float16", flops, moved / 2, moved / 2, (spec,), (spec,),
              dims)  # fmt: skip


def add(rows, columns):
    spec = TensorSpec((rows, columns), "float16")
    size = 2.0 * rows * columns
    return Op("aten.add", OpKind.ELEMENTWISE, Stage.FORWARD, "float16", size / 2, 2 * size, size, (spec, spec), (spec,))


def models(groups, seed):
    """Return graphs of a convolution of so many groups beside additions of any size."""
    dice = np.random.default_rng(seed)
    return [[grouped(16, groups), add(int(2 ** dice.integers(10, 16)), 1024)] for _ in range(12)]


@pytest.fixture
def slow_where_groups_are_few():
    """Steps in which a kernel that no weight of the law names takes twice as long."""
    table = OpTable.from_graphs([*models(4, 0), *models(64, 1)])
    basis = OpBasis.from_table(table, DEVICE)
    slow = table.matrix & (table.sizes[:, 2] == 2)
    return ObservedSteps(basis, np.arange(24), table.summed(basis.roofline_s * np.where(slow, 3.0, 1.2) * table.count))


def test_a_step_of_ops_like_slow_ones_is_slow(slow_where_groups_are_few):
    law = add_op_residuals(slow_where_groups_are_few, prior_op_utilization())
    basis = OpBasis.from_table(OpTable.from_graphs([[grouped(16, 4)], [grouped(16, 64)]]), DEVICE)
    few, many = op_s(basis, law) / op_s(basis, prior_op_utilization())
    assert few > 1.5 * many


def test_an_op_unlike_all_measured_ones_has_no_residual(slow_where_groups_are_few):
    law = add_op_residuals(slow_where_groups_are_few, prior_op_utilization())
    basis = OpBasis.from_table(OpTable.from_graphs([[grouped(512, 4, pixels=7)]]), DEVICE)
    assert op_s(basis, law)[0] == pytest.approx(op_s(basis, prior_op_utilization())[0], rel=0.02)


def test_residuals_explain_the_remaining_errors(slow_where_groups_are_few):
    law = fit_op_utilization([slow_where_groups_are_few], prior_op_utilization(), ridge=100.0)[0]

    def error(weights):
        steps = predict_graphs(slow_where_groups_are_few.basis, weights).step_s
        return np.abs(np.log(slow_where_groups_are_few.step_s / steps)).mean()

    assert error(add_op_residuals(slow_where_groups_are_few, law)) < 0.5 * error(law)


def test_further_departures_are_added_to_those_known(slow_where_groups_are_few):
    once = add_op_residuals(slow_where_groups_are_few, prior_op_utilization())
    table = slow_where_groups_are_few.basis.table
    twice = once.departures.merge(once.departures).predict(table)
    assert np.allclose(np.clip(2 * once.departures.predict(table), -FARTHEST, FARTHEST), twice, atol=1e-5)


def test_they_are_kept_as_arrays(slow_where_groups_are_few):
    law = add_op_residuals(slow_where_groups_are_few, prior_op_utilization())
    again = OpUtilization.load(law.dump())
    assert np.allclose(op_s(slow_where_groups_are_few.basis, law), op_s(slow_where_groups_are_few.basis, again))


def test_steps_of_small_ops_alone_determine_no_residuals():
    table = OpTable.from_graphs([[add(8, 8)]])
    entries = np.zeros(1, np.int64)
    found = fit_op_residuals(table, entries, entries, np.array([0.001]), np.array([0.5]))
    assert len(found.weight) == 0
    assert isinstance(found, OpResiduals)
    assert found.predict(table).tolist() == [0.0]
