import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.runs import Scale
from leadline.core.samples import Sample
from leadline.estimators.tabular.registry import ESTIMATORS
from leadline.uncertainty.metrics import mape

LAWS = ("scaling_law", "scaling_law_basic", "additive_law")


def error(name, history, truth, scale_features):
    fitted = ESTIMATORS[name].fit(history, scale_features=scale_features)
    return mape([s.value for s in truth], fitted.predict([s.features for s in truth]).point)


@pytest.mark.parametrize(("large", "allowed"), [(0, 8.0), (4, 5.5)])
def test_a_scaled_down_campaign_reaches_full_scale(application, large, allowed):
    errors = [
        error("scaling_law", application.history(seed, 84, large), application.truth(seed), application.scale_features)
        for seed in (0, 1)
    ]
    assert fmean(errors) < allowed


@pytest.mark.parametrize("large", [0, 4])
def test_a_unit_time_that_is_no_product_of_powers_is_learnt_beside_the_law(cliffs, large):
    errors = [error("scaling_law", cliffs.history(s, 84, large), cliffs.truth(s), ("rows",)) for s in (0, 1)]
    assert fmean(errors) < 9


def test_the_larger_of_two_costs_is_met(rectified):
    assert error("scaling_law", rectified.history(0, 84, 4), rectified.truth(0), rectified.scale_features) < 9


@pytest.mark.parametrize("name", ["scaling_law", "additive_law"])
def test_peak_memory_is_a_constant_and_products(name, memory):
    assert error(name, memory.history(0), memory.truth(0), memory.scale_features) < 6


@pytest.mark.parametrize("name", LAWS)
def test_trees_are_far_off_where_laws_are_not(name, dnn):
    history, truth = dnn.history(0, 84, 4), dnn.truth(0)
    assert error(name, history, truth, dnn.scale_features) < error("boosting", history, truth, dnn.scale_features) / 2


def test_a_reported_start_up_tells_the_law_apart_from_the_work(dnn):
    told = [error("scaling_law", dnn.history(s, 40, reports=True), dnn.truth(s), dnn.scale_features) for s in range(3)]
    whole = [
        error("scaling_law_basic", dnn.history(s, 40, reports=True), dnn.truth(s), dnn.scale_features) for s in range(3)
    ]
    assert fmean(told) < fmean(whole)


def test_a_few_wild_runs_do_not_move_the_law(dnn):
    history = dnn.history(0)
    wild = [replace(one, value=one.value * (5 if i % 20 == 3 else 1)) for i, one in enumerate(history)]
    assert error("scaling_law", wild, dnn.truth(0), dnn.scale_features) < 20


@pytest.mark.parametrize("name", ["linear", "gaussian_process", "scaling_law"])
def test_runs_cut_off_at_their_limit_count_as_lower_bounds(name, dnn):
    """Those killed at the limit are the longest: leaving them out, or taking the limit for their time, is too short."""
    history, truth = dnn.history(3, 120), dnn.history(4, 60)
    limit = float(np.quantile([one.value for one in history], 0.6))
    cut = [replace(one, value=limit, censored=True) if one.value > limit else one for one in history]
    believed = [replace(one, censored=False) for one in cut]
    assert error(name, cut, truth, dnn.scale_features) < 0.8 * error(name, believed, truth, dnn.scale_features)


@pytest.mark.parametrize("name", ["scaling_law", "additive_law"])
def test_the_spread_tells_how_far_off_the_law_is_at_full_scale(name, application):
    truth = application.truth(1)
    fitted = ESTIMATORS[name].fit(application.history(1), scale_features=application.scale_features)
    told = fitted.predict([one.features for one in truth])
    off = np.abs(np.log(told.point / [one.value for one in truth]))
    assert np.mean(off < 3 * told.spread) > 0.8


@pytest.fixture(scope="module")
def laws(dnn):
    return {name: ESTIMATORS[name].fit(dnn.history(2, 60, 3), scale_features=dnn.scale_features) for name in LAWS}


@pytest.mark.parametrize("name", LAWS)
@given(
    samples=st.floats(1, 1e9),
    epochs=st.floats(0.1, 1e5),
    more=st.floats(1, 1e6),
    feature=st.sampled_from(["samples", "epochs"]),
    width=st.sampled_from([128, 512, 4096]),
    device=st.sampled_from(["v100", "a100", "h100"]),
)
def test_more_work_never_takes_less(name, laws, samples, epochs, more, feature, width, device):
    row = {"samples": samples, "epochs": epochs, "width": width, "device": device, "batch": 64, "cores": 4}
    less, much = laws[name].predict([row, {**row, feature: row[feature] * more}]).point
    assert much >= less * (1 - 1e-9)


def test_the_spread_grows_with_the_distance_from_what_was_run(laws, dnn):
    row = dnn.history(2, 1)[0].features
    rows = [{**row, "samples": 2_000 * 10**power} for power in range(5)]
    spread = laws["scaling_law"].predict(rows).spread
    assert np.all(np.diff(spread) > -1e-9)
    assert spread[-1] > 1.5 * spread[0]


def test_one_feature_and_six_runs_are_enough_for_a_law():
    runs = [Sample({"n": n}, 2.0 + 0.01 * n, Scale.SCALED_DOWN) for n in (100, 200, 400, 800, 1600, 3200)]
    fitted = ESTIMATORS["scaling_law"].fit(runs, scale_features=["n"])
    assert math.log(2.0 + 640) == pytest.approx(math.log(fitted.predict([{"n": 64_000}]).point[0]), abs=0.2)
