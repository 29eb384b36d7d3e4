"""Distributions read from intervals: their quantiles, tails and partial means agree with one another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.estimate import Interval
from leadline.uncertainty.distributions import HalfLogNormals

FACTOR = st.floats(1.01, 20)


@given(st.floats(0.01, 1e6), FACTOR, FACTOR, st.floats(0.01, 0.99))
def test_what_lies_above_a_quantile_is_the_rest(point, below, above, probability):
    known = HalfLogNormals.of(Interval(point, point / below, point * above))
    assert pytest.approx(1 - probability, abs=1e-6) == known.above(known.quantile(probability))


def test_the_ends_of_the_interval_are_its_quantiles():
    known = HalfLogNormals.of(Interval(100.0, 60.0, 300.0, 0.8))
    assert pytest.approx((60.0, 100.0, 300.0)) == tuple(known.quantile(p) for p in (0.1, 0.5, 0.9))


@pytest.mark.parametrize("value", [40.0, 90.0, 100.0, 130.0, 500.0])
def test_the_mean_up_to_a_value_is_that_of_many_draws(value):
    known = HalfLogNormals.of(Interval(100.0, 50.0, 300.0))
    draws = [known.quantile((at + 0.5) / 40000) for at in range(40000)]
    expected = sum(draw for draw in draws if draw <= value) / len(draws)
    assert pytest.approx(expected, rel=2e-3) == known.mean_below(value)


def test_a_half_without_width_ends_at_the_median():
    known = HalfLogNormals.of(Interval(100.0, 100.0, 200.0))
    assert known.mean_below(99.0) == 0.0
    assert known.above(99.0) == 1.0
