import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.uncertainty.metrics import (
    best_constant,
    coverage,
    mae,
    mape,
    ov_mape,
    over_request,
    pinball,
    underprediction,
    up_mape,
)

PAIRS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


def test_the_error_is_a_share_of_what_was_measured():
    assert pytest.approx(mape([1.0, 4.0], [2.0, 2.0])) == 75.0
    assert underprediction([1.0, 4.0], [2.0, 2.0]) == 50.0
    assert mae([1.0, 4.0], [2.0, 2.0]) == 1.5


def test_under_and_over_predictions_have_errors_of_their_own():
    measured, predicted = [10.0, 10.0, 10.0, 10.0], [5.0, 9.0, 10.0, 14.0]
    assert pytest.approx(up_mape(measured, predicted)) == 30.0
    assert pytest.approx(ov_mape(measured, predicted)) == 40.0
    assert up_mape([1.0], [2.0]) == 0.0
    assert ov_mape([2.0], [1.0]) == 0.0


def test_a_request_is_judged_by_what_it_asks_for_beyond_the_need():
    assert over_request([10.0, 10.0, 10.0], [11.0, 15.0, 100.0]) == 1.5


def test_the_pinball_loss_weighs_the_two_sides_by_the_quantile():
    assert pytest.approx(pinball([2.0], [1.0], 0.9)) == 0.9
    assert pytest.approx(pinball([1.0], [2.0], 0.9)) == 0.1


def test_coverage_counts_the_ends_of_an_interval():
    assert coverage([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]) == 75.0


@pytest.mark.parametrize(("measured", "predicted"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([-1.0], [1.0])])
@pytest.mark.parametrize("metric", [mae, mape, underprediction, up_mape, ov_mape, over_request])
def test_nothing_measured_has_no_error_to_speak_of(metric, measured, predicted):
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
