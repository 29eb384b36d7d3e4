import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.uncertainty.metrics import best_constant, mape, underprediction

PAIRS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


def test_the_error_is_a_share_of_what_was_measured():
    assert 75.0 == pytest.approx(mape([1.0, 4.0], [2.0, 2.0]))
    assert 50.0 == underprediction([1.0, 4.0], [2.0, 2.0])


def test_nothing_measured_has_no_error_to_speak_of():
    with pytest.raises(ValueError, match="at least one"):
        mape([], [])


@given(PAIRS, st.floats(0.01, 100))
def test_no_other_constant_beats_the_best_one(pairs, other):
    measured, predicted = zip(*pairs, strict=True)
    best = best_constant(measured, predicted)
    error = mape(measured, [best * p for p in predicted])
    assert error <= mape(measured, [other * p for p in predicted]) * (1 + 1e-9)
