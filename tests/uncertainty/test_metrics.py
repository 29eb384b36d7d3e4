"""Error metrics, selection policies and the paired comparison of predictors."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.best_constant import best_constant
from leadline.core.errors import UnknownName
from leadline.uncertainty.metrics import (
    EXACT,
    POLICIES,
    choose_model,
    compare_errors,
    coverage,
    expected_cost,
    mae,
    mape,
    ov_mape,
    over_request,
    pinball,
    underprediction,
    up_mape,
)

PAIRS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


def test_the_percentage_error_is_relative_to_the_measurement():
    assert pytest.approx(mape([1.0, 4.0], [2.0, 2.0])) == 75.0
    assert underprediction([1.0, 4.0], [2.0, 2.0]) == 50.0
    assert mae([1.0, 4.0], [2.0, 2.0]) == 1.5


def test_under_and_over_predictions_have_separate_errors():
    measured, predicted = [10.0, 10.0, 10.0, 10.0], [5.0, 9.0, 10.0, 14.0]
    assert pytest.approx(up_mape(measured, predicted)) == 30.0
    assert pytest.approx(ov_mape(measured, predicted)) == 40.0
    assert up_mape([1.0], [2.0]) == 0.0
    assert ov_mape([2.0], [1.0]) == 0.0


def test_over_request_is_the_median_of_requested_to_needed():
    assert over_request([10.0, 10.0, 10.0], [11.0, 15.0, 100.0]) == 1.5


def test_the_pinball_loss_weighs_the_two_sides_by_the_quantile():
    assert pytest.approx(pinball([2.0], [1.0], 0.9)) == 0.9
    assert pytest.approx(pinball([1.0], [2.0], 0.9)) == 0.1


def test_coverage_counts_the_ends_of_an_interval():
    assert coverage([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]) == 75.0


@pytest.mark.parametrize(("measured", "predicted"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([-1.0], [1.0])])
@pytest.mark.parametrize("metric", [mae, mape, underprediction, up_mape, ov_mape, over_request])
def test_metrics_refuse_empty_or_nonpositive_measurements(metric, measured, predicted):
    with pytest.raises(ValueError, match="at least one"):
        metric(measured, predicted)


@given(PAIRS, st.floats(0.01, 100))
def test_no_other_constant_beats_the_best_one(pairs, other):
    measured, predicted = zip(*pairs, strict=True)
    best = best_constant(measured, predicted)
    error = mape(measured, [best * p for p in predicted])
    assert error <= mape(measured, [other * p for p in predicted]) * (1 + 1e-9)


@given(PAIRS)
def test_the_error_is_that_of_its_two_sides(pairs):
    measured, predicted = zip(*pairs, strict=True)
    below = underprediction(measured, predicted) / 100
    above = sum(p > y for y, p in pairs) / len(pairs)
    parts = below * up_mape(measured, predicted) + above * ov_mape(measured, predicted)
    assert mape(measured, predicted) == pytest.approx(parts)


@given(PAIRS, st.floats(0.05, 0.95))
def test_a_sample_quantile_has_the_least_pinball_loss_of_its_sample(pairs, quantile):
    measured = sorted(y for y, _ in pairs)
    losses = [pinball(measured, [y] * len(measured), quantile) for y in measured]
    best = measured[min(int(quantile * len(measured)), len(measured) - 1)]
    assert pinball(measured, [best] * len(measured), quantile) <= min(losses) * (1 + 1e-9) + 1e-9


MEASURED = [10.0, 10.0, 10.0, 10.0]
MODELS = {
    "close but short": [9.9, 9.9, 9.9, 9.9],
    "never short, far": [30.0, 30.0, 30.0, 30.0],
    "never short, near": [12.0, 12.0, 12.0, 12.0],
    "mixed": [9.0, 10.5, 10.5, 10.5],
}


@pytest.mark.parametrize(
    ("kept", "policy"),
    [
        ("close but short", "mae"),
        ("close but short", "mape"),
        ("never short, near", "wtm"),
        ("close but short", "wtm-published"),
        ("close but short", "pinball"),
        ("never short, near", "cost"),
    ],
)
def test_each_policy_chooses_by_its_own_metric(kept, policy):
    assert kept == choose_model(policy, MEASURED, MODELS)


def test_the_published_walltime_metric_is_right_where_nothing_ties():
    models = {name: MODELS[name] for name in ("never short, far", "close but short", "mixed")}
    assert (
        "never short, far" == choose_model("wtm-published", MEASURED, models) == choose_model("wtm", MEASURED, models)
    )


def test_the_first_of_equal_models_is_chosen():
    assert choose_model("mae", MEASURED, {"a": MEASURED, "b": MEASURED}) == "a"


def test_a_far_short_prediction_costs_more_than_one_as_far_too_long_by_pinball():
    models = {"short": [8.0] * 4, "long": [12.0] * 4}
    assert choose_model("pinball", MEASURED, models) == "long"


@pytest.mark.parametrize(
    ("cost", "requested"),
    [
        (0.0, 10.0),
        (0.2, 20.0),  # ten idle seconds at a fifth
        (0.8 + 0.2 * 0.2 + 0.25, 8.0),  # eight seconds lost, then twelve asked for, and one more place in the queue
        (0.5 + 0.75 + 0.2 * 0.125 + 2 * 0.25, 5.0),  # 5, then 7.5, then 11.25
    ],
)
def test_a_kill_costs_the_request_and_waste_a_share_of_it(cost, requested):
    assert cost == pytest.approx(expected_cost([10.0], [requested]))


def test_a_request_of_nearly_nothing_is_expensive_and_terminates():
    assert 10 < expected_cost([10.0], [0.0]) == expected_cost([10.0], [-5.0])


def test_an_unknown_policy_suggests_the_closest_one():
    with pytest.raises(UnknownName, match="did you mean 'wtm'"):
        choose_model("wmt", MEASURED, MODELS)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_prefers_another_model_to_a_perfect_one(policy):
    assert choose_model(policy, MEASURED, {**MODELS, "perfect": MEASURED}) == "perfect"


def test_a_gain_on_every_run_has_the_p_value_of_equal_signs():
    assert compare_errors([0.2] * 6, [0.1] * 6).p_value == 1 / 2**6


@pytest.mark.parametrize("n", [EXACT, EXACT + 1, 60])
def test_equally_good_predictors_differ_as_often_as_the_risk_allows(n):
    source = random.Random(n)  # noqa: S311
    replaced = 0
    for seed in range(60):
        before = [source.gauss(0, 0.1) for _ in range(n)]
        after = [source.gauss(0, 0.1) for _ in range(n)]
        replaced += compare_errors(before, after, seed=seed).better(0.1)
    assert 1 <= replaced <= 14  # six are expected; fifteen or more has a probability below 0.001


def test_a_worse_predictor_is_never_better():
    assert not compare_errors([0.1] * 30, [0.2] * 30).better(0.9999)


def test_choosing_the_best_of_several_makes_chance_likelier():
    once, thrice = (compare_errors([0.2] * 6, [0.1] * 6, tried=tried) for tried in (1, 3))
    assert 3 * once.p_value == thrice.p_value


def test_errors_of_different_runs_are_refused():
    with pytest.raises(ValueError, match="not those of the same runs"):
        compare_errors([0.1], [0.1, 0.2])
