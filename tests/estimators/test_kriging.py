import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.estimators.kriging import Surface

GRID = tuple((x / 2, y / 2) for x in range(7) for y in range(7))
HILL = Surface(GRID, tuple(math.sin(x) + 0.5 * y for x, y in GRID))


@given(st.floats(0.3, 2.7), st.floats(0.3, 2.7))
def test_a_smooth_surface_is_found_again_between_its_measurements(x, y):
    assert math.sin(x) + 0.5 * y == pytest.approx(HILL.at((x, y)), abs=0.08)


def test_one_measurement_is_all_there_is_to_say():
    assert Surface(((1.0, 2.0),), (0.7,)).at((9.0, 9.0)) == 0.7


@given(st.floats(-3, 3))
def test_a_constant_surface_stays_constant_near_its_measurements(value):
    flat = Surface(GRID, (value,) * len(GRID))
    assert value == pytest.approx(flat.at((1.3, 1.7)), abs=0.02 * abs(value) + 1e-9)


def test_two_measurements_at_one_place_are_averaged():
    twice = Surface(((0.0,), (0.0,), (50.0,)), (1.0, 3.0, 2.0))
    assert pytest.approx(twice.at((0.0,)), abs=0.1) == 2.0


def test_far_from_all_measurements_the_prediction_is_near_their_mean_and_never_beyond_them():
    far = HILL.at((40.0, 40.0))
    assert min(HILL.values) < far < max(HILL.values)
