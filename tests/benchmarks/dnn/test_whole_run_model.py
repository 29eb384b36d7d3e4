"""Whole runs from earlier ones: what is alike says most, software drifts, and unknown workloads are refused."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.dnn.run_similarity import WholeRun, covariance, encode_runs, find_first_appearances
from benchmarks.dnn.whole_run_model import AGEING, PARTS, WALKING, fit_run_times, load_run_times
from leadline.core.errors import InvalidInput

pytest.importorskip("scipy")

PEAKS = {"A": (312e12, 2e12), "B": (989e12, 3.35e12), "C": (2250e12, 8e12)}
WORK = {"bert": 9.5, "resnet": 9.6, "ssd": 10.0}


def run(workload="bert", device="A", devices=8, when=0.0, **more):
    peak, bandwidth = PEAKS[device]
    return WholeRun(
        workload, device, devices, batch=256.0, when=when, system=f"{device} box", peak_flops_per_s=peak,
        memory_bytes_per_s=bandwidth, **more,
    )  # fmt: skip


def made_s(one):
    """Truth: work ÷ (count^0.9 × speed), 5 % faster each generation of software."""
    speed = (one.peak_flops_per_s * one.memory_bytes_per_s / (312e12 * 2e12)) ** 0.5
    return float(np.exp(WORK[one.workload]) / one.devices**0.9 / speed * 0.95**one.when)


HISTORY = [
    run(workload, device, devices, when)
    for workload in WORK
    for device in ("A", "B")
    for devices in (4, 8, 32)
    for when in (0.0, 1.0, 2.0)
]


@pytest.fixture(scope="module")
def times():
    return fit_run_times(HISTORY, [made_s(case) for case in HISTORY])


def relative(times, *asked):
    return times.predict(asked).point / [made_s(case) for case in asked]


def test_the_next_software_generation_is_predicted_within_a_few_percent(times):
    assert np.abs(relative(times, *(run(w, d, 8, 3.0) for w in WORK for d in "AB")) - 1).max() < 0.06


def test_a_device_count_between_known_ones_is_predicted_within_a_few_percent(times):
    assert np.abs(relative(times, run(devices=16, when=2.0), run("ssd", "B", 16, 2.0)) - 1).max() < 0.08


def test_a_new_accelerator_is_predicted_from_specifications_with_a_wide_spread(times):
    new, seen = run(device="C", when=2.0), run(device="B", when=2.0)
    told = times.predict([new, seen])
    assert told.point[0] < told.point[1]
    assert 0.5 < relative(times, new)[0] < 2
    assert told.spread[1] < told.spread[0]
    assert [np.inf, 0.0] == told.extrapolation.tolist()


def test_a_million_devices_may_help_no_more_than_the_most_that_were_run(times):
    """Whether the time falls with the number or has its least already, the interval holds both."""
    most, far = run(devices=16, when=2.0), run(devices=10**6, when=2.0)
    told = times.predict([most, far])
    assert told.extrapolation[0] == 0 < told.extrapolation[1]
    assert told.point[1] * np.exp(1.645 * told.spread[1]) > told.point[0] / 2
    assert told.point[1] * np.exp(-1.645 * told.spread[1]) < told.point[0] * 16 / 10**6


def test_far_future_software_has_a_wider_spread(times):
    now, later = times.predict([run(when=2.0), run(when=60.0)]).spread
    assert 1.5 * now < later


def test_an_unknown_workload_is_refused(times):
    with pytest.raises(InvalidInput, match="no run of gpt3 is in the training data"):
        times.predict([replace(run(), workload="gpt3")])


def test_a_wild_run_hardly_moves_the_others():
    seconds = [made_s(case) for case in HISTORY]
    seconds[4] *= 20
    assert (
        np.abs(relative(fit_run_times(HISTORY, seconds), run(devices=8, when=2.0), run("ssd", "B", 8, 2.0)) - 1).max()
        < 0.15
    )


def test_the_state_makes_the_same_answers(times):
    again, asked = load_run_times(times.dump()), [run(when=3.0), run(device="C", when=3.0, host="new")]
    for name in ("point", "spread", "extrapolation"):
        assert getattr(times.predict(asked), name).tolist() == getattr(again.predict(asked), name).tolist()


@pytest.mark.parametrize("part", [*PARTS, *AGEING, *WALKING], ids=lambda part: part.name)
def test_every_part_is_a_covariance(part):
    """Symmetric, and no variance of any combination of runs is below zero."""
    runs = [*HISTORY, run(when=3.0, form="PCIe"), run(device="C", devices=1), replace(run(), batch=None)]
    encoded = encode_runs(runs, find_first_appearances(runs), {})
    matrix = covariance(part, encoded, encoded)
    assert np.array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-8 * max(1.0, matrix.max())


def test_few_runs_and_a_run_of_no_time_are_refused():
    with pytest.raises(InvalidInput, match="2 runs are too few"):
        fit_run_times(HISTORY[:2], [1.0, 2.0])
    with pytest.raises(InvalidInput, match="took no time"):
        fit_run_times(HISTORY, [0.0] * len(HISTORY))
