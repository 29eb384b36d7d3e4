"""What a fit learns of kernels whose law is known, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.dnn.kernel_fitting import fit_kernels, typical_effects
from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.estimators.step_time.analytical_kernels import (
    NORMALIZATION_MODEL,
    PRODUCT_MODEL,
    WAIT,
    combine_with_launch_s,
    subtract_launch_s,
)
from leadline.estimators.step_time.device_features import DeviceFeatures
from leadline.estimators.step_time.fitted_kernels import FittedKernels, LearnedKernels
from leadline.estimators.step_time.kernel_table import NORM
from leadline.estimators.step_time.swept_kernels import KernelSample, fit_sweep, tabulate_kernels
from tests.estimators.step_time.conftest import DEVICES, LAUNCH_S, NAMES, add, gemm, marked_s, timings_on, true_s

UNSEEN = DEVICES[3]
LARGE = [gemm(m, n, k) for m in (700, 1500, 3000) for n in (900, 2500) for k in (300, 2000)]


def error(model, ops, on):
    found = np.array([model.ops_s([op])[0] for op in ops])
    truth = np.array([true_s(op, on) for op in ops])
    return float(np.mean(np.abs(found / truth - 1)))


def test_products_of_unseen_sizes_are_recovered_on_a_device_that_was_learned(fitted):
    assert error(LearnedKernels(fitted, DEVICES[1]), LARGE, DEVICES[1]) < 0.15


def test_products_are_recovered_on_a_device_that_was_never_seen(fitted):
    assert error(LearnedKernels(fitted, UNSEEN), LARGE, UNSEEN) < 0.20


def test_streamed_bytes_are_recovered_on_a_device_that_was_never_seen(fitted):
    assert error(LearnedKernels(fitted, UNSEEN), [add(2**14, 2048), add(2**13, 1000)], UNSEEN) < 0.15


def test_the_launch_of_a_known_device_is_separated_from_its_kernels(fitted):
    factor = fitted.launches["small", 0] - fitted.launches["middle", 0]
    assert factor == pytest.approx(math.log(LAUNCH_S["small"] / LAUNCH_S["middle"]), abs=0.1)


def test_a_sweep_corrects_a_device_slower_than_its_specifications(fitted):
    slow = [KernelSample(case.op, case.device, 1.5 * case.seconds) for case in timings_on(UNSEEN)]
    known = fit_sweep(fitted, tabulate_kernels(slow[::3], NAMES))  # every inner sum among them
    found = np.array([LearnedKernels(known, UNSEEN).ops_s([op])[0] for op in LARGE])
    truth = np.array([1.5 * true_s(op, UNSEEN) for op in LARGE])
    without = np.array([LearnedKernels(fitted, UNSEEN).ops_s([op])[0] for op in LARGE])
    assert np.mean(np.abs(found / truth - 1)) < 0.15
    assert np.mean(np.abs(without / truth - 1)) > 0.25


def test_a_sweep_captures_more_than_a_factor_and_the_shared_model(fitted):
    def deeper_s(op):  # as if every inner sum were longer by 500
        return true_s(gemm(op.dims["m"], op.dims["n"], op.dims["k"] + 500), UNSEEN)

    products = [case.op for case in timings_on(UNSEEN) if case.op.name == "aten.addmm"]
    launch_s = LAUNCH_S[UNSEEN.name]
    slow = [KernelSample(op, UNSEEN, marked_s(launch_s, deeper_s(op))) for op in products]
    known = fit_sweep(fitted, tabulate_kernels(slow[::3], NAMES))
    truth = np.array([deeper_s(op) for op in LARGE])
    found, without = (LearnedKernels(case, UNSEEN).ops_s(LARGE) for case in (known, fitted))
    assert np.mean(np.abs(found / truth - 1)) < 0.15
    assert np.mean(np.abs(without / truth - 1)) > 0.3
    depth = PRODUCT_MODEL.names.index("depth")
    assert known.sweeps[UNSEEN.name, 0].at[depth] > fitted.groups[0].at[depth] + 0.5


def test_a_sweep_of_two_devices_is_refused(fitted):
    with pytest.raises(InvalidInput, match="a sweep is of one device"):
        fit_sweep(fitted, tabulate_kernels([case for on in DEVICES for case in timings_on(on)[:10]], NAMES))


def test_a_state_makes_the_same_model_again(fitted, tmp_path):
    known = replace(fit_sweep(fitted, tabulate_kernels(timings_on(UNSEEN)[::5], NAMES)), steps={"nvidia": 0.1})
    np.savez(tmp_path / "state.npz", **known.dump())
    with np.load(tmp_path / "state.npz", allow_pickle=False) as state:
        again = FittedKernels.load(dict(state))
    for on in (DEVICES[0], UNSEEN):
        case, other = LearnedKernels(known, on), LearnedKernels(again, on)
        assert case.ops_s(LARGE) == other.ops_s(LARGE)
    assert known.launches == again.launches
    assert known.steps == again.steps


def test_too_few_kernels_are_refused():
    with pytest.raises(InvalidInput, match="3 measured kernels are too few"):
        fit_kernels(timings_on(DEVICES[0])[:3])


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_no_time_is_refused_by_its_kernel_and_device(seconds):
    with pytest.raises(InvalidInput, match=r"aten\.addmm on small took"):
        tabulate_kernels([KernelSample(gemm(8, 8, 8), DEVICES[0], seconds)])


def test_kernels_of_an_unknown_kind_use_the_nearest_kinds_model(fitted):
    softmax = Op("aten._softmax", OpKind.SOFTMAX, Stage.FORWARD, "float32", 1e6, 4e6, 4e6)
    assert 0 < LearnedKernels(fitted, UNSEEN).ops_s([softmax])[0] < 1e-3


def test_a_model_of_streams_alone_refuses_a_product():
    streams = fit_kernels([case for case in timings_on(DEVICES[0]) if case.op.kind is OpKind.ELEMENTWISE])
    with pytest.raises(InvalidInput, match="no kernels like product were measured"):
        LearnedKernels(streams, DEVICES[0]).ops_s([gemm(64, 64, 64)])[0]


def test_typical_offsets_slow_new_devices_but_not_known_ones(fitted):
    laws = {
        number: replace(law, trusted=0.0, typical=np.array([0.0, 0.1, 0.1])) for number, law in fitted.groups.items()
    }
    plain = replace(fitted, groups={number: replace(law, trusted=0.0) for number, law in fitted.groups.items()})
    moved = replace(fitted, groups=laws)
    before, after = (LearnedKernels(case, UNSEEN).ops_s([LARGE[-1]])[0] for case in (plain, moved))
    assert after / before == pytest.approx(math.exp(0.1), rel=0.01)
    before, after = (LearnedKernels(case, DEVICES[0]).ops_s([LARGE[-1]])[0] for case in (fitted, moved))
    assert before == after


def test_a_kernel_behind_others_does_not_wait_for_the_device(fitted):
    table = tabulate_kernels(timings_on(DEVICES[1]), NAMES)
    alone_s, launch_s = fitted.predict(table.kernels, table.boards, table.device)
    queued_s, same_s = fitted.predict(table.kernels, table.boards, table.device, queued=True)
    assert (queued_s <= alone_s).all()
    assert (queued_s < alone_s).any()
    assert launch_s.tolist() == same_s.tolist()


def test_kernel_time_is_recovered_where_it_outlasts_its_call():
    kernel_s, launch_s = np.array([30e-6, 100e-6, 1e-3]), np.full(3, 25e-6)
    seen_s = combine_with_launch_s(kernel_s, launch_s, WAIT)
    assert (seen_s > kernel_s + WAIT * launch_s).all()
    assert subtract_launch_s(seen_s, launch_s, WAIT) == pytest.approx(kernel_s)


def test_an_operator_whose_calls_take_longer_on_all_hosts_does_so_on_a_new_one():
    def on(device):
        slow = [
            replace(case, op=replace(case.op, name="aten.relu"), seconds=1.3 * case.seconds) for case in short(device)
        ]
        return short(device) + slow

    def short(device):
        return [case for case in timings_on(device) if case.op.name == "aten.add.Tensor"]

    known = fit_kernels([case for device in DEVICES[:3] for case in on(device)], ("aten.add.Tensor", "aten.relu"))
    asked = tabulate_kernels([short(UNSEEN)[0], on(UNSEEN)[len(short(UNSEEN))]], known.names)
    add_s, relu_s = known.predict(asked.kernels, asked.boards, asked.device)[1]
    assert relu_s / add_s == pytest.approx(1.3, rel=0.05)


def test_the_launch_expected_of_a_new_host_is_the_one_that_is_least_off_in_percent():
    effects = {(str(i), 3): np.array([math.log(launch), launch, 0.0]) for i, launch in enumerate((1, 1.1, 2, 4))}
    launch, arithmetic, _ = typical_effects(FittedKernels({}, effects=effects), 3)
    assert math.exp(launch) == pytest.approx(1.1)
    assert arithmetic == pytest.approx(1.55)


def norm(rows, columns):
    spec, size = TensorSpec((rows, columns), "float32"), float(rows * columns)
    return Op(
        "aten.native_layer_norm", OpKind.NORM, Stage.FORWARD, "float32", size, 4 * size, 4 * size, (spec,), (spec,)
    )


def test_unlearned_norms_use_the_streaming_model(fitted):
    assert NORM not in fitted.groups
    moved_s = 8 * 2**24 / UNSEEN.memory_bytes_per_s
    assert moved_s < LearnedKernels(fitted, UNSEEN).ops_s([norm(2**14, 1024)])[0] < 2 * moved_s


def test_a_norm_reads_rows_again_that_the_last_cache_loses():
    def kernel_s(l2_bytes):
        asked = tabulate_kernels([KernelSample(norm(2**15, 4096), replace(UNSEEN, l2_bytes=l2_bytes), 1e-3)])
        return NORMALIZATION_MODEL.parts(asked.placed(), np.array(NORMALIZATION_MODEL.start), np.zeros((1, 3)))[0][0]

    assert kernel_s(2**20) / kernel_s(2**28) == pytest.approx(1.5, abs=0.1)


def test_a_clock_that_the_catalog_lacks_follows_from_the_peak():
    assert DeviceFeatures.of([replace(DEVICES[0], lanes_per_unit=64)]).clock_hz == pytest.approx(5e12 / (2 * 64 * 20))
    assert DeviceFeatures.of([replace(DEVICES[0], boost_hz=1.4e9)]).clock_hz == 1.4e9
