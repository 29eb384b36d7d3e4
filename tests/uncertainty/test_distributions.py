"""Quantiles, tails and partial means of each distribution agree with one another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.estimate import Interval
from leadline.uncertainty.distributions import (
    ConditionalDistribution,
    ContaminatedForecast,
    HalfLogNormals,
    ParetoDistribution,
    quantile,
    survival_distribution,
)

FACTOR = st.floats(1.01, 20)


@given(st.floats(0.01, 1e6), FACTOR, FACTOR, st.floats(0.01, 0.99))
def test_the_probability_above_a_quantile_is_its_complement(point, below, above, probability):
    known = HalfLogNormals.of(Interval(point, point / below, point * above))
    assert known.above(known.quantile(probability)) == pytest.approx(1 - probability, abs=1e-6)


def test_the_ends_of_the_interval_are_its_quantiles():
    known = HalfLogNormals.of(Interval(100.0, 60.0, 300.0, 0.8))
    assert tuple(known.quantile(p) for p in (0.1, 0.5, 0.9)) == pytest.approx((60.0, 100.0, 300.0))


@pytest.mark.parametrize("value", [40.0, 90.0, 100.0, 130.0, 500.0])
def test_the_mean_up_to_a_value_is_that_of_many_draws(value):
    known = HalfLogNormals.of(Interval(100.0, 50.0, 300.0))
    draws = [known.quantile((at + 0.5) / 40000) for at in range(40000)]
    expected = sum(draw for draw in draws if draw <= value) / len(draws)
    assert known.mean_below(value) == pytest.approx(expected, rel=2e-3)


def test_a_half_without_width_ends_at_the_median():
    known = HalfLogNormals.of(Interval(100.0, 100.0, 200.0))
    assert known.mean_below(99.0) == 0.0
    assert known.above(99.0) == 1.0


WIDENING = st.floats(1.01, 8)
PROBABILITY = st.floats(0.01, 0.99)


def forecast(below=1.2, above=1.2, point=100.0):
    return Interval(point, point / below, point * above)


@given(WIDENING, WIDENING, st.floats(0.05, 20), PROBABILITY)
def test_the_probability_above_a_quantile_is_its_complement_after_survival(below, above, past, probability):
    known = survival_distribution(forecast(below, above), 100.0 * past)
    assert known.above(known.quantile(probability)) == pytest.approx(1 - probability, abs=1e-5)


@given(WIDENING, st.floats(0.1, 20), st.floats(0.1, 20), PROBABILITY)
def test_longer_survival_raises_the_quantiles(above, one, other, probability):
    earlier, later = sorted((100 * one, 100 * other))
    known = [survival_distribution(forecast(above=above), past).quantile(probability) for past in (earlier, later)]
    assert known[0] <= known[1] * (1 + 1e-9)
    assert later <= known[1]


@given(WIDENING, st.floats(0.1, 20), PROBABILITY)
def test_the_conditional_probability_is_that_of_bayes(above, past, probability):
    known = ContaminatedForecast(forecast(above=above))
    value = 100 * past * (1 + probability)
    assert pytest.approx(known.above(value) / known.above(100 * past)) == ConditionalDistribution(
        known, 100 * past
    ).above(value)


def test_contamination_hardly_moves_the_upper_end_at_the_start():
    sure = forecast()
    assert ContaminatedForecast(sure).quantile(0.95) == pytest.approx(quantile(sure, 0.95), rel=0.02)


def test_within_the_forecast_survival_says_little_more_than_the_forecast():
    assert 120 < survival_distribution(forecast(), 105.0).quantile(0.95) < 135


def test_a_job_that_outlived_its_forecast_by_far_may_last_as_long_again():
    outlived = survival_distribution(forecast(), 300.0)
    assert outlived.above(600.0) == pytest.approx(0.5, abs=0.01)
    by_the_forecast_alone = ConditionalDistribution(HalfLogNormals.of(forecast()), 160.0)
    assert by_the_forecast_alone.above(170.0) < 0.25 < survival_distribution(forecast(), 160.0).above(170.0)


def test_without_a_forecast_only_survival_counts():
    assert survival_distribution(None, 60.0).above(120.0) == pytest.approx(0.5)
    assert survival_distribution(None, 0.0) is None


@pytest.mark.parametrize("past", [0.0, 60.0, 110.0, 250.0])
def test_the_partial_mean_of_a_conditional_distribution_matches_many_draws(past):
    known = survival_distribution(forecast(1.5, 2.0), past)
    draws = [known.quantile((at + 0.5) / 4000) for at in range(4000)]
    expected = sum(draw for draw in draws if draw <= 400.0) / len(draws)
    assert known.mean_below(400.0) == pytest.approx(expected, rel=5e-3)


def test_the_scale_free_tail_has_the_mean_of_its_draws():
    known = ParetoDistribution(10.0)
    draws = [known.quantile((at + 0.5) / 40000) for at in range(40000)]
    assert known.mean_below(80.0) == pytest.approx(sum(d for d in draws if d <= 80.0) / len(draws), rel=2e-3)
    assert known.median == pytest.approx(20.0)


@pytest.mark.parametrize("past", [0.0, 5e-324, 99.0, 100.0, 101.0])
def test_a_forecast_without_width_is_contaminated_above_its_point(past):
    known = survival_distribution(Interval(100.0, 100.0, 100.0), past)
    assert max(100.0, past) <= known.quantile(0.95)
    assert known.above(99.5) == 1.0 or past == 0.0
