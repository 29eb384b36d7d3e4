import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.estimators.queue_wait import wait_grid, wait_probability, wait_quantile

GRID = np.array([5.0, 60.0, 120.0, 480.0])
HALVES = np.array([[0.25, 0.5, 0.5, 1.0]])


def test_the_wait_grid_doubles_from_a_minute_past_the_longest_wait():
    grid = wait_grid(500.0)
    assert grid.tolist() == [5.0, 15.0, 60.0, 120.0, 240.0, 480.0, 960.0]


def test_a_quantile_is_read_between_the_waits_of_the_grid_in_logarithms():
    assert wait_quantile(GRID, HALVES, np.array([0.125]))[0] == 2.5
    assert pytest.approx(wait_quantile(GRID, HALVES, np.array([0.5]))[0]) == 60.0
    assert pytest.approx(wait_quantile(GRID, HALVES, np.array([0.75]))[0]) == 240.0
    assert wait_quantile(GRID, HALVES, np.array([1.0]))[0] == 480.0


def test_a_wait_past_the_grid_has_probability_one():
    assert wait_probability(GRID, HALVES, np.array([1e6])).tolist() == [1.0]


@given(st.lists(st.floats(0.01, 1), min_size=4, max_size=4), st.floats(0.001, 0.999))
def test_a_quantile_has_the_requested_probability(steps, level):
    told = np.cumsum(steps)[None] / sum(steps)
    wait = wait_quantile(GRID, told, np.array([level]))
    assert level == pytest.approx(wait_probability(GRID, told, wait)[0], abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.floats(0.001, 1), st.floats(0.001, 1))
def test_quantiles_ascend(steps, one, other):
    told = np.minimum(np.cumsum(steps), 1.0)[None]
    told[0, -1] = 1.0
    low, high = sorted((one, other))
    assert wait_quantile(GRID, told, np.array([low]))[0] <= wait_quantile(GRID, told, np.array([high]))[0]
