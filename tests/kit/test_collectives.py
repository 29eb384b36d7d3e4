"""Real sweeps of collectives between two processes, through gloo."""

import json
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from leadline.app.machines.this_machine import _time_collectives
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Calibration, Device, DeviceKind
from leadline.estimators.parallelism.collectives import Collective, timed_seconds
from leadline.estimators.parallelism.fabric import make_ring
from leadline.kit import KitError
from leadline.kit.collectives import QUICK_SIZES, sweep_collectives
from leadline.kit.run import MeasureOptions, run_measurements
from leadline.training.measurements import read_measurements

SXM = Device(
    "A100", "nvidia", DeviceKind.GPU, architecture="Ampere", form_factor="SXM4", link_bytes_per_s=600e9, scale_up_gpus=8
)


@pytest.fixture(scope="module")
def timings():
    return _time_collectives("cpu", 2, quick=True)


def swept(timings):
    return replace(SXM, calibration=Calibration("now", "torch", 1, collectives=timings))


def test_a_sweep_times_all_sizes_of_the_collectives_that_the_backend_has(timings):
    sizes = {}
    for timing in timings:
        sizes.setdefault(timing.kind, []).append(timing.dims["bytes"])
        assert 0 < timing.elapsed_s < 10
        assert timing.dims["devices"] == 2
    assert sizes["collective.all_reduce"] == sizes["collective.send"] == QUICK_SIZES


def test_a_swept_machine_answers_with_its_own_times_and_others_with_the_curves(timings):
    ring, unswept = make_ring(swept(timings), 2), make_ring(SXM, 2)
    for timing in timings:
        kind = Collective(timing.kind.removeprefix("collective."))
        assert ring.collective_s(kind, timing.dims["bytes"]) == pytest.approx(timing.elapsed_s)
    assert ring.spread(large=False) < unswept.spread(large=False)
    assert make_ring(swept(timings), 4).all_reduce_s(1e6) == make_ring(SXM, 4).all_reduce_s(1e6)


def test_larger_messages_than_swept_take_in_proportion_longer(timings):
    largest = max(QUICK_SIZES)
    once_s, twice_s = (timed_seconds(swept(timings), Collective.ALL_REDUCE, 2, size) for size in (largest, 2 * largest))
    assert twice_s == pytest.approx(2 * once_s)


def test_a_measurement_file_keeps_the_sweep_beside_its_points_and_is_resumed_without_another(tmp_path):
    options = MeasureOptions(str(tmp_path / "rows.jsonl"), 0.3, "cpu", quick=True, ops=False, collectives=2)
    run_measurements(options)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()[1:]]
    sweep = [row for row in rows if row["kind"].startswith("collective.")]
    assert {row["dims"]["bytes"] for row in sweep} == set(QUICK_SIZES)
    assert len(read_measurements(tmp_path / "rows.jsonl").points) == len(rows) - len(sweep)
    run_measurements(replace(options, minutes=0.05))
    again = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()[1:]]
    assert [row for row in again if row["kind"].startswith("collective.")] == sweep


@pytest.mark.parametrize("processes", [1, -2, 10**6])
def test_a_group_of_no_sensible_size_is_refused(tmp_path, processes):
    with pytest.raises(KitError, match=f"--collectives {processes} is no group of processes"):
        run_measurements(MeasureOptions(str(tmp_path / "rows.jsonl"), device="cpu", collectives=processes))


def test_processes_without_a_gpu_each_are_refused_in_one_sentence():
    with pytest.raises(KitError, match="2 processes need as many GPUs, and torch sees 0"):
        sweep_collectives(sys.executable, "cuda", 2, quick=True)
    with pytest.raises(InvalidInput, match="2 processes need as many GPUs"):
        _time_collectives("cuda", 2)
    assert _time_collectives("cuda") == ()
