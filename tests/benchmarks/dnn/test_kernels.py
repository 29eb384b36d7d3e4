"""The tables of single kernels and of transformers, on made-up rows and on the public ones where they are at hand."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dnn import fit_kernels, kernel_data, pricing
from benchmarks.dnn.baselines import METHODS
from benchmarks.dnn.kernel_data import NAMES, STREAMS, half_timings, product_op, streamed_op, timings
from benchmarks.dnn.kernel_sweeps import HALF_PLAN, OTHER_PLAN, SWEEP_PLANS, SweepPlan, swept_kernels
from benchmarks.dnn.kernels import KernelTrust, splits, trusted_model
from benchmarks.dnn.transformer_graphs import layer_ops, traced_transformers
from benchmarks.tables import read_table
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind
from leadline.estimators.step_time.fitted_kernels import FittedKernels, GroupModel
from leadline.estimators.step_time.swept_kernels import KernelSample, tabulate_kernels

DATA = Path(os.environ.get("LEADLINE_DATA", "missing"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="LEADLINE_DATA names no folder of measured data")


def made_up():
    found = []
    for name in ("T4", "P4", "A100 PCIe 40GB"):
        device = TomlCatalog().device(name)
        for m in (64, 256, 1024, 4096):
            for k in (64, 512, 2048):
                op = product_op(m, m, k)
                found.append(KernelSample(op, device, 3e-5 + 2 * op.flops / device.peak_flops_per_s["float32"]))
    return tabulate_kernels(found, NAMES)


def test_a_sweep_takes_as_many_kernels_as_it_says_and_none_twice():
    rows = made_up().at(np.arange(12))
    chosen, _ = swept_kernels(rows, rows.seconds, SweepPlan(6, 10.0))
    assert len(set(chosen.tolist())) == 6


def test_a_sweep_leaves_half_of_few_kernels_to_be_asked_about():
    rows = made_up().at(np.arange(12))
    assert len(swept_kernels(rows, rows.seconds, SweepPlan(100, 10.0))[0]) == 6


def test_a_sweep_leaves_out_an_operator_with_a_single_kernel():
    rows = made_up().at(np.arange(1))
    assert (len(swept_kernels(rows, rows.seconds)[0]), swept_kernels(rows, rows.seconds)[1]) == (0, 0.0)


def test_a_sweep_ends_when_its_time_is_spent():
    rows = made_up()
    all_, all_s = swept_kernels(rows, rows.seconds, SweepPlan(100, 1e3))
    few, few_s = swept_kernels(rows, rows.seconds, SweepPlan(100, all_s / 3))
    assert len(few) < len(all_)
    assert all_s / 3 < few_s < all_s / 2


def test_a_sweep_prefers_kernels_that_are_soon_done():
    rows = made_up()
    slow = np.where(np.arange(len(rows)) % 2 == 0, 1.0, 1e-4)
    chosen, _ = swept_kernels(rows, slow, SweepPlan(12, 1e3))
    assert np.mean(chosen % 2) > 0.75


def test_the_plans_of_all_operators_fit_in_ninety_seconds():
    others = len(STREAMS) * OTHER_PLAN.seconds
    assert others + sum(plan.seconds for plan in (*SWEEP_PLANS.values(), HALF_PLAN)) < 0.85 * 90


@pytest.mark.parametrize("name", METHODS)
def test_every_baseline_answers_every_kernel(name):
    table = made_up()
    found = METHODS[name](table.at(np.flatnonzero(table.device > 0)), table.at(np.flatnonzero(table.device == 0)))
    assert found.shape == (12,)
    assert (found > 0).all()


def test_the_fitted_roofline_finds_the_share_that_made_the_kernels():
    table = made_up()
    large = table.at(np.flatnonzero(table.kernels.flops > 1e10))
    assert np.abs(METHODS["fitted roofline"](large, large) / large.seconds - 1).max() < 0.1


def test_trust_goes_to_every_law():
    both = FittedKernels({0: GroupModel(np.zeros(3)), 3: GroupModel(np.ones(2))})
    assert {0.5} == {law.trusted for law in trusted_model(both, KernelTrust(0.5)).groups.values()}


def test_a_new_device_is_taken_to_be_half_as_far_apart_as_the_median_of_the_known_ones():
    apart = {(name, 3): np.full(3, value) for name, value in (("one", 0.1), ("two", 0.2), ("three", 0.6))}
    known = FittedKernels({3: GroupModel(np.ones(5))}, effects=apart)
    assert trusted_model(known, KernelTrust(1.0, 0.5)).groups[3].typical.tolist() == [0.1] * 3


def test_layers_that_are_not_alike_have_no_kernel_in_common():
    graph = pricing.layers(4, alike=False)
    products = [tuple(op.dims.items()) for op in graph.ops if op.kind is OpKind.GEMM and op.dims["b"] == 1]
    assert len(set(products)) == len(products)


def test_a_streamed_kernel_moves_each_of_its_tensors_once():
    op = streamed_op("aten.add.Tensor", OpKind.ELEMENTWISE, (8, 16), 2)
    assert (op.bytes_read, op.bytes_written) == (2 * 512.0, 512.0)


def test_fitting_without_arguments_says_what_to_give(capsys):
    assert fit_kernels.main([]) == 1
    assert "DATA OUT.npz" in capsys.readouterr().err


def test_fitting_without_the_data_names_the_folder(tmp_path, capsys):
    assert fit_kernels.main([str(tmp_path), str(tmp_path / "out.npz")]) == 1
    assert "give the folder of the measured data" in capsys.readouterr().err


def test_a_folder_without_the_tables_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="give the folder of the measured data"):
        splits(tmp_path)


@needs_data
@pytest.mark.parametrize("table", ["bmm", "linear", "conv", "softmax", "ln", "add", "gelu"])
def test_no_public_kernel_beats_the_bound_of_its_device_by_much(table):
    from leadline.estimators.step_time.analytical_kernels import lower_bound_s

    rows = tabulate_kernels(timings(DATA, table, 200), NAMES)
    assert np.mean(rows.seconds < lower_bound_s(rows.placed())) < 0.01


def test_a_drift_over_the_rows_of_a_table_is_found_to_a_tenth():
    rng = np.random.default_rng(0)
    own = 0.05 + rng.lognormal(0, 1, 5000)
    assert pytest.approx(2e-4 * 4999, rel=0.1) == kernel_data.drift(own + 2e-4 * np.arange(5000))[-1]


def test_rows_without_a_drift_keep_their_times():
    own = 0.05 + np.random.default_rng(1).lognormal(0, 1, 5000)
    assert np.abs(kernel_data.drift(own)).max() < 0.05


@needs_data
def test_every_published_convolution_made_the_next_ones_slower():
    table = read_table(DATA / "neusight_kernels", "conv")
    for device in np.unique(table["Device"]):
        own = table["Latency"][table["Device"] == device]
        assert 0.05e-3 < kernel_data.drift(own)[1] < 0.17e-3


@needs_data
def test_half_precision_layers_run_below_the_peak():
    rows = tabulate_kernels(half_timings(DATA, 400), NAMES)
    share = rows.kernels.flops / rows.placed().peak / rows.seconds
    assert 0.5 < np.quantile(share, 0.95) < 1.0


@needs_data
def test_traced_runs_compute_what_their_models_compute():
    runs = {(run.device, run.name): run for run in traced_transformers(DATA)}
    inference = runs["NVIDIA A100-PCIE-40GB", "gpt2_large-inf-1024-4"]
    tokens, weights = 4 * 1024, 36 * 12 * 1280**2 + 50257 * 1280
    attention = 36 * 4 * 4 * 1024 * 1024 * 1280
    assert pytest.approx(2 * tokens * weights + attention, rel=0.02) == inference.graph.flops


@needs_data
def test_products_of_the_tables_are_those_that_the_traced_models_ran():
    """Only one of both readings of the columns agrees with the products that were timed in whole models."""
    table = {(one.op.dims["m"], one.op.dims["n"], one.op.dims["k"]): one for one in timings(DATA, "linear", 3000)
             if one.device.name == "MI100"}  # fmt: skip
    labels = read_table(DATA, "neusight_op_labels")
    own = np.flatnonzero(labels["device"] == "AMD_Instinct_MI100")
    differ, turned = [], []
    for i in own:
        for op in layer_ops(labels, int(i)):
            m, n, k = (op.dims.get(name, 0) for name in "mnk")
            if n != k and (m, n, k) in table and (m, k, n) in table:
                elapsed_s = labels["fw_latency"][i] / 1e3
                differ.append(abs(math.log(elapsed_s / table[m, n, k].seconds)))
                turned.append(abs(math.log(elapsed_s / table[m, k, n].seconds)))
    assert len(differ) > 10
    assert np.median(differ) < 0.04
    assert np.median(turned) > 0.08
