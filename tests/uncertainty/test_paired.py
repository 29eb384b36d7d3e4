"""The paired comparison of two predictors."""

import random

import pytest

from leadline.uncertainty.paired import EXACT, compare


def test_a_gain_on_every_run_has_the_probability_of_all_signs_alike():
    assert compare([0.2] * 6, [0.1] * 6).p_value == 1 / 2**6


@pytest.mark.parametrize("n", [EXACT, EXACT + 1, 60])
def test_predictors_that_are_equally_good_are_told_apart_as_often_as_the_risk_says(n):
    source = random.Random(n)  # noqa: S311
    replaced = 0
    for seed in range(60):
        before = [source.gauss(0, 0.1) for _ in range(n)]
        after = [source.gauss(0, 0.1) for _ in range(n)]
        replaced += compare(before, after, seed=seed).better(0.1)
    assert 1 <= replaced <= 14  # six are expected; fifteen or more has a probability below 0.001


def test_a_worse_predictor_is_never_better():
    assert not compare([0.1] * 30, [0.2] * 30).better(0.9999)


def test_choosing_the_best_of_several_makes_chance_likelier():
    once, thrice = (compare([0.2] * 6, [0.1] * 6, tried=tried) for tried in (1, 3))
    assert 3 * once.p_value == thrice.p_value


def test_errors_of_different_runs_are_refused():
    with pytest.raises(ValueError, match="not those of the same runs"):
        compare([0.1], [0.1, 0.2])
