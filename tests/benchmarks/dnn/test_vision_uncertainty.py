"""What widens the interval of a step on a GPU that was not seen."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.dnn.setting_models import prior_op_utilization
from benchmarks.dnn.vision_devices import few_run_predictions, pairs_of
from benchmarks.dnn.vision_lab import VisionLab, inference
from benchmarks.dnn.vision_uncertainty import (
    DEVICE_SPREAD,
    SPREAD_QUANTILE,
    DeviceUncertainty,
    StandIn,
    device_uncertainty,
    family_errors,
    releases_between,
    unevenness,
)

NEAR = "rtx4090 infer nhwc 240"


def rows_like(n, relative, elsewhere=0.0):
    return StandIn(
        "",
        NEAR,
        prior_op_utilization(),
        np.arange(n),
        np.ones(n),
        np.full(n, elsewhere),
        np.broadcast_to(relative, n),
    )


def test_an_unseen_family_adds_the_errors_of_families_held_out_on_the_known_gpu():
    errors = np.random.default_rng(0).normal(0.0, 0.1, 400)
    lab = SimpleNamespace(steps=SimpleNamespace(step_s=np.exp(errors)))
    factors = family_errors(lab, [{NEAR: rows_like(400, 1.0)}, {NEAR: rows_like(400, 1.0)}])
    assert factors[NEAR] == pytest.approx(0.1645, rel=0.1)  # nine in ten of a normal distribution
    unsure = family_errors(lab, [{NEAR: rows_like(400, 2.0)}])
    assert unsure[NEAR] == pytest.approx(factors[NEAR] / 2, rel=0.05)  # the spread explains half of them


def test_releases_are_counted_over_the_change_of_the_first_number():
    assert releases_between("rtx3090 infer nchw 240", "rtx4090 infer nchw 240") == 0
    assert releases_between("rtx3090 infer nchw 113", "rtx3090 infer nchw 210") == 2
    assert releases_between("rtx4090 infer nchw 291", "rtx3090 infer nchw 240") == 5


def test_the_release_that_was_seen_adds_no_doubt_to_that_of_the_device():
    doubts = DeviceUncertainty({NEAR: 1.5}, drift=0.04)
    half = doubts.half("rtx3090 infer nhwc 240", rows_like(3, [0.5, 1.0, 4.0]))
    assert pytest.approx([1.5 * SPREAD_QUANTILE * DEVICE_SPREAD] * 3) == half.tolist()


def test_doubt_of_a_release_grows_with_their_number_and_with_how_unsure_the_law_is():
    doubts, device = DeviceUncertainty({NEAR: 1.0}, drift=0.04), SPREAD_QUANTILE * DEVICE_SPREAD
    drifted = [
        np.sqrt(doubts.half(setting, rows_like(2, [1.0, 2.0])) ** 2 - device**2)
        for setting in ("rtx3090 infer nhwc 230", "rtx3090 infer nhwc 200")
    ]
    assert pytest.approx([0.04, 0.08]) == drifted[0].tolist()
    assert pytest.approx([2.0, 2.0]) == (drifted[1] / drifted[0]).tolist()


@pytest.mark.parametrize("releases", [1, 4])
def test_drift_makes_nine_of_ten_errors_between_releases_no_larger(releases):
    rng = np.random.default_rng(0)
    relative = rng.uniform(0.5, 3.0, 20_000)
    errors = rng.normal(0.0, 0.02 * relative * np.sqrt(releases))
    lab = SimpleNamespace(steps=SimpleNamespace(step_s=np.exp(errors)))
    tried = {f"rtx4090 infer nhwc 2{4 + releases}0": rows_like(20_000, relative)}
    doubts = device_uncertainty(lab, tried, {NEAR: 1.0}, knowing=False)
    assert pytest.approx(1.645 * 0.02, rel=0.03) == doubts.drift


def test_an_error_that_is_carried_is_no_drift():
    lab = SimpleNamespace(steps=SimpleNamespace(step_s=np.exp(np.full(50, 0.1))))
    tried = {"rtx4090 infer nhwc 250": rows_like(50, 1.0, elsewhere=0.1)}
    plain, knowing = (device_uncertainty(lab, tried, {NEAR: 1.0}, knowing=one).drift for one in (False, True))
    assert pytest.approx(0.1) == plain
    assert knowing < 0.05


@pytest.fixture(scope="module")
def lab():
    folder = os.environ.get("LEADLINE_DATA")
    if not folder or not Path(folder, "timm_steps.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder with timm_steps.parquet")
    return VisionLab(Path(folder))


@pytest.mark.slow
def test_channels_last_is_less_even_than_contiguous_on_either_gpu(lab):
    for seen in ("rtx3090", "rtx4090"):
        learn = inference(lab, seen)
        uneven = unevenness(lab, learn, lab.laws(learn))
        assert uneven[f"{seen} infer nhwc 240"] > uneven[f"{seen} infer nchw 240"]
        assert set(uneven) == set(lab.setting[learn].tolist())


@pytest.mark.slow
def test_intervals_after_few_runs_hold_what_they_say(lab):
    held = []
    for pair in pairs_of(lab):
        for one in pair.parts.values():
            rows, _, low, high = few_run_predictions(lab, one, 17, knowing=True)
            took = lab.steps.step_s[rows.astype(int)]
            held.append(float(np.mean((low <= took) & (took <= high))))
    assert 0.86 < np.mean(held) < 0.95
