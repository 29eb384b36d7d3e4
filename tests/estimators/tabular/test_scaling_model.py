import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.runs import Sample, Scale
from leadline.estimators.tabular.corrections import FullScaleCorrection
from leadline.estimators.tabular.posynomials import PosynomialForm
from leadline.estimators.tabular.registry import ESTIMATORS
from leadline.estimators.tabular.scaling_model import ScalingModel
from leadline.uncertainty.metrics import mape

LAWS = ("scaling_law", "additive_law")


def error(recipe, history, truth, scale_features):
    recipe = ESTIMATORS[recipe] if isinstance(recipe, str) else recipe
    fitted = recipe.fit(history, scale_features=scale_features)
    return mape([s.value for s in truth], fitted.predict([s.features for s in truth]).point)


@pytest.mark.parametrize(("large", "allowed"), [(0, 8.0), (4, 5.5)])
def test_a_scaled_down_campaign_reaches_full_scale(application, large, allowed):
    errors = [
        error("scaling_law", application.history(seed, 84, large), application.truth(seed), application.scale_features)
        for seed in (0, 1)
    ]
    assert fmean(errors) < allowed


@pytest.mark.parametrize("large", [0, 4])
def test_a_unit_time_that_is_no_power_product_is_corrected(cliffs, large):
    errors = [error("scaling_law", cliffs.history(s, 84, large), cliffs.truth(s), ("rows",)) for s in (0, 1)]
    assert fmean(errors) < 9


def test_a_pure_category_effect_is_learned_though_two_terms_could_explain_it(dnn):
    """The start-up is 3.0 s on one device and 4.5 s on the other, whatever else is set."""
    runs = [replace(case, value=dnn.startup(case.features)) for case in dnn.history(2, 60, 3)]
    fitted = ScalingModel("plain", PosynomialForm()).fit(runs, scale_features=dnn.scale_features)
    assert fitted.correction is None
    assert fitted.error < 0.01


def test_the_larger_of_two_costs_is_met(rectified):
    assert error("scaling_law", rectified.history(0, 84, 4), rectified.truth(0), rectified.scale_features) < 9


@pytest.mark.parametrize("name", ["scaling_law", "additive_law"])
def test_peak_memory_is_a_constant_and_products(name, memory):
    assert error(name, memory.history(0), memory.truth(0), memory.scale_features) < 6


@pytest.mark.parametrize("name", ["scaling_law", "ensemble"])
def test_trees_extrapolate_badly_where_parametric_models_do_not(name, dnn):
    history, truth = dnn.history(0, 84, 4, reports=True), dnn.truth(0)
    assert error(name, history, truth, dnn.scale_features) < error("boosting", history, truth, dnn.scale_features) / 2


def test_a_reported_start_up_is_separated_from_the_work(dnn):
    told = [error("scaling_law", dnn.history(s, 40, reports=True), dnn.truth(s), dnn.scale_features) for s in range(3)]
    basic = ScalingModel("basic", PosynomialForm())
    whole = [error(basic, dnn.history(s, 40, reports=True), dnn.truth(s), dnn.scale_features) for s in range(3)]
    assert fmean(told) < fmean(whole)


def grown(seed, count, *, full=False):
    """Return runs that read all their data before they begin, so that the start-up grows as the work does."""
    chance = np.random.default_rng([seed, full])
    found = []
    for _ in range(count):
        rows, steps = (float(np.exp(chance.uniform(*np.log(ends)))) for ends in
                       (((3e4, 3e5), (20, 80)) if full else ((1e3, 1e4), (1, 4))))  # fmt: skip
        startup, rest = 0.5 + 2e-5 * rows, 3e-5 * rows * steps
        noisy = np.exp((0.0 if full else 0.03) * chance.standard_normal(2)) * [startup, rest]
        found.append(Sample({"rows": rows, "steps": steps}, float(sum(noisy)),
                            Scale.FULL_SCALE if full else Scale.SCALED_DOWN, startup_s=float(noisy[0])))  # fmt: skip
    return found


def test_runs_whose_watched_loops_differ_are_learned_whole():
    chance = np.random.default_rng(0)
    alike = [replace(case, units=case.features["steps"]) for case in grown(0, 40)]
    mixed = [replace(case, units=chance.choice([20.0, 600.0])) for case in alike]
    fitted = [ESTIMATORS["scaling_law"].fit(runs, scale_features=("rows", "steps")) for runs in (alike, mixed)]
    assert [set(case.phases) for case in fitted] == [{"startup", "work"}, {"whole"}]


def test_work_that_start_up_hides_is_learned_from_the_watched_loops():
    """The whole of a scaled-down run is nearly its start-up, which varies more than its loops take."""

    def runs(seed, count, *, full=False):
        chance = np.random.default_rng([seed, full])
        found = []
        for _ in range(count):
            steps = float(np.exp(chance.uniform(*np.log((2e3, 2e4) if full else (10, 100)))))
            width = float(np.exp(chance.uniform(*np.log((64, 512)))))
            startup, work = 3.0 * np.exp(0.1 * chance.standard_normal()), 1e-5 * steps * width
            found.append(Sample({"steps": steps, "width": width}, float(startup + work),
                                Scale.FULL_SCALE if full else Scale.SCALED_DOWN,
                                startup_s=float(startup), work_s=float(work), units=steps))  # fmt: skip
        return found

    small, asked = runs(0, 60), runs(1, 40, full=True)
    blind = [replace(case, startup_s=None, work_s=None) for case in small]
    for name in ("scaling_law", "gaussian_process"):
        assert error(name, small, asked, ("steps",)) < 5 < error(name, blind, asked, ("steps",))


def test_warm_up_in_short_runs_does_not_blur_the_unit_time():
    """The loops of a scaled-down run take a second to warm up, and their steps no longer than those of a long one."""

    def runs(seed, count, *, full=False):
        chance = np.random.default_rng([seed, full])
        found = []
        for _ in range(count):
            rows, width = (float(np.exp(chance.uniform(*np.log(ends))))
                           for ends in ((2e4, 2e5) if full else (2e2, 2e3), (64, 512)))  # fmt: skip
            unit = 1e-4 * width * float(np.exp(0.05 * chance.standard_normal()))
            steps = math.ceil(rows / 32)
            work = 1.1 * steps * unit + 0.3 * float(np.exp(chance.standard_normal()))
            found.append(Sample({"rows": rows, "width": width}, 2.0 + work,
                                Scale.FULL_SCALE if full else Scale.SCALED_DOWN,
                                startup_s=2.0, work_s=work, units=steps, unit_s=unit))  # fmt: skip
        return found

    errors = [error("unit_law", runs(seed, 60), runs(seed, 40, full=True), ("rows",)) for seed in range(3)]
    assert fmean(errors) < 9


def test_a_cliff_among_small_runs_is_not_carried_on_by_the_time_of_a_unit():
    """Beyond 4,000 rows the data leave the cache, and a step takes 1.6 times as long: of 40,000 rows no longer yet."""

    def runs(seed, count, *, full=False):
        chance = np.random.default_rng([seed, full])
        found = []
        for _ in range(count):
            rows, width, batch = (float(np.exp(chance.uniform(*np.log(ends))))
                                  for ends in ((2e4, 6e4) if full else (2e3, 8e3), (64, 512), (32, 512)))  # fmt: skip
            layers, steps = int(chance.integers(1, 5)), math.ceil(rows / batch)
            unit = 1e-3 * layers + 1e-7 * width * batch + 3e-9 * layers * width**2
            unit *= (1 + 0.6 / (1 + (4000 / rows) ** 3)) * float(np.exp(0.2 * chance.standard_normal() * (not full)))
            found.append(Sample({"rows": rows, "width": width, "batch": batch, "layers": layers}, 2.0 + steps * unit,
                                Scale.FULL_SCALE if full else Scale.SCALED_DOWN,
                                startup_s=2.0, work_s=steps * unit, units=steps, unit_s=unit))  # fmt: skip
        return found

    errors = [error("unit_law", runs(seed, 40), runs(seed, 40, full=True), ("rows",)) for seed in range(4)]
    assert max(errors) < 20


def test_a_unit_model_needs_runs_with_watched_units(dnn):
    with pytest.raises(InvalidInput, match=r"unit_law needs at least 6 finished runs whose units .* there are 0"):
        ESTIMATORS["unit_law"].fit(dnn.history(0, 20), scale_features=dnn.scale_features)


def test_a_reported_start_up_that_grows_with_scale_is_taken_for_no_constant():
    errors = [error("scaling_law", grown(seed, 40), grown(seed, 40, full=True), ("rows", "steps")) for seed in range(3)]
    assert fmean(errors) < 5


def test_a_category_may_have_exponents_of_its_own():
    def runs(seed, count, *, full=False):
        chance = np.random.default_rng([seed, full])
        sizes = np.exp(chance.uniform(*np.log((1e5, 1e6) if full else (1e3, 2e4)), count))
        kinds = chance.choice(["flat", "deep"], count)
        values = 1e-4 * sizes ** np.where(kinds == "flat", 1.5, 1.0) * np.exp(0.03 * chance.standard_normal(count))
        scale = Scale.FULL_SCALE if full else Scale.SCALED_DOWN
        return [Sample({"size": float(size), "kind": str(kind)}, float(0.3 + value), scale)
                for size, kind, value in zip(sizes, kinds, values, strict=True)]  # fmt: skip

    learned, asked = [*runs(0, 80), *runs(1, 5, full=True)], runs(2, 40, full=True)
    assert error("scaling_law", learned, asked, ("size",)) < 6


def test_a_few_outliers_do_not_move_the_model(dnn):
    history = dnn.history(0)
    wild = [replace(case, value=case.value * (5 if i % 20 == 3 else 1)) for i, case in enumerate(history)]
    assert error("scaling_law", wild, dnn.truth(0), dnn.scale_features) < 20


@pytest.mark.parametrize("name", ["linear", "gaussian_process", "scaling_law"])
def test_runs_cut_off_at_their_limit_count_as_lower_bounds(name, dnn):
    """Those killed at the limit are the longest: leaving them out, or taking the limit for their time, is too short."""
    history, truth = dnn.history(3, 120), dnn.history(4, 60)
    limit = float(np.quantile([case.value for case in history], 0.6))
    cut = [replace(case, value=limit, censored=True) if case.value > limit else case for case in history]
    believed = [replace(case, censored=False) for case in cut]
    assert error(name, cut, truth, dnn.scale_features) < 0.8 * error(name, believed, truth, dnn.scale_features)


@pytest.mark.parametrize("name", ["scaling_law", "additive_law"])
def test_the_spread_matches_the_error_at_full_scale(name, application):
    truth = application.truth(1)
    fitted = ESTIMATORS[name].fit(application.history(1), scale_features=application.scale_features)
    told = fitted.predict([case.features for case in truth])
    off = np.abs(np.log(told.point / [case.value for case in truth]))
    assert np.mean(off < 3 * told.spread) > 0.8


@pytest.fixture(scope="module")
def laws(dnn):
    return {
        name: ESTIMATORS[name].fit(dnn.history(2, 60, 3, reports=True), scale_features=dnn.scale_features)
        for name in LAWS
    }


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


def test_the_spread_grows_with_extrapolation(laws, dnn):
    row = dnn.history(2, 1)[0].features
    rows = [{**row, "samples": 2_000 * 10**power} for power in range(5)]
    spread = laws["scaling_law"].predict(rows).spread
    assert np.all(np.diff(spread) > -1e-9)
    assert spread[-1] > 1.5 * spread[0]


def test_one_feature_and_six_runs_are_enough_for_a_model():
    runs = [Sample({"n": n}, 2.0 + 0.01 * n, Scale.SCALED_DOWN) for n in (100, 200, 400, 800, 1600, 3200)]
    fitted = ESTIMATORS["scaling_law"].fit(runs, scale_features=["n"])
    assert math.log(2.0 + 640) == pytest.approx(math.log(fitted.predict([{"n": 64_000}]).point[0]), abs=0.2)


def test_a_cliff_that_only_large_runs_meet_is_learned_from_a_few_of_them():
    """Double precision costs no more within the cache, and half as much again beyond it."""

    def runs(seed, count, *, full=False):
        chance = np.random.default_rng([seed, full])
        found = []
        for _ in range(count):
            size = float(np.exp(chance.uniform(*np.log((1e5, 1e6) if full else (1e3, 2e4)))))
            kind = str(chance.choice(["single", "double"]))
            cliff = 1.5 if full and kind == "double" else 1.0
            value = (0.3 + 1e-4 * size * cliff) * float(np.exp(0.03 * chance.standard_normal()))
            found.append(Sample({"size": size, "kind": kind}, value, Scale.FULL_SCALE if full else Scale.SCALED_DOWN))
        return found

    errors = [
        error("scaling_law", [*runs(seed, 80), *runs(seed + 9, 6, full=True)], runs(seed + 20, 40, full=True), ["size"])
        for seed in range(3)
    ]
    assert fmean(errors) < 8


@given(st.floats(-3, 3), st.floats(-3, 3), st.lists(st.floats(-2, 2), min_size=2, max_size=2))
def test_a_bend_never_turns_more_work_into_less_time(offset, slope, ends):
    bend = FullScaleCorrection(offset, 0.0, 1.0, np.array([slope]))
    low, high = bend.at(np.array(sorted(ends)), np.ones((2, 1)))
    assert low <= high + 1e-12
