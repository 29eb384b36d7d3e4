"""Intervals of extrapolations: their coverage, and how they widen with the spread."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.normalized_errors import normalize_errors
from leadline.uncertainty.normalized_scores import BEYOND_LARGEST, NormalizedScores


@pytest.mark.parametrize("n", [19, 60])
def test_intervals_of_nine_in_ten_have_that_coverage(n):
    """Errors of heavy tails, each as large as its doubt says; 90 % of new ones, at most 1/(n + 1) more."""
    held = []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        doubt = rng.uniform(0.01, 0.3, n + 40)
        error = doubt * rng.standard_t(3, n + 40)
        low, high = normalize_errors(error[:n], doubt[:n]).interval(np.ones(40), doubt[n:], 0.9)
        held.append((low <= np.exp(error[n:])) & (np.exp(error[n:]) <= high))
    assert 0.9 - 0.008 < np.mean(held) < 0.9 + 1 / (n + 1) + 0.008


def test_the_side_of_an_error_does_not_matter():
    one, other = (normalize_errors(sign * np.linspace(0.01, 0.4, 40), np.ones(40)) for sign in (1, -1))
    low, high = one.interval([2.0], [1.0], 0.9)
    assert low[0] * high[0] == pytest.approx(4.0)
    assert one.factor(0.9) == other.factor(0.9)


def test_the_interval_grows_in_proportion_to_the_spread():
    scores = normalize_errors(np.linspace(-0.3, 0.3, 50), np.full(50, 0.1))
    widths = [np.log(high[0]) for _, high in (scores.interval([1.0], [doubt], 0.9) for doubt in (0.1, 0.2))]
    assert widths[1] / widths[0] == pytest.approx(2.0)


def test_untested_spread_is_added_as_a_normal_deviation():
    scores = normalize_errors(np.zeros(50), np.ones(50))
    _, high = scores.interval([1.0], [1.0], 0.9, untested=0.1)
    assert np.log(high[0]) == pytest.approx(0.1645, rel=1e-3)


def test_all_units_weigh_the_same_whatever_their_number_of_errors():
    """A thousand small errors of one curve and ten large ones of two more: two of three curves were far off."""
    errors = np.concatenate([np.full(1000, 0.01), np.full(20, 0.5)])
    units = ["a"] * 1000 + ["b"] * 10 + ["c"] * 10
    assert normalize_errors(errors, np.ones(1020)).factor(0.9) == pytest.approx(0.01)
    assert normalize_errors(errors, np.ones(1020), units).factor(0.9) == pytest.approx(0.5)


def test_a_level_too_high_for_few_errors_exceeds_them_all():
    assert normalize_errors([0.1, -0.4, 0.2], np.ones(3)).factor(0.9) == pytest.approx(BEYOND_LARGEST * 0.4)


@settings(max_examples=50)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=60), st.floats(0.5, 0.99))
def test_restored_scores_make_the_same_intervals(errors, level):
    scores = normalize_errors(errors, np.full(len(errors), 0.1))
    assert scores.factor(level) == NormalizedScores.load(scores.dump()).factor(level)


@pytest.mark.parametrize("errors", [[], [np.inf], [np.nan, 0.1]])
def test_missing_or_infinite_errors_are_refused(errors):
    with pytest.raises(ValueError, match="scores need errors of held-out runs"):
        normalize_errors(errors, np.ones(len(errors)))
