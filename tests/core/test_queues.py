import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.estimate import Interval
from leadline.core.queues import QueueWait


def wait(*quantiles_s):
    return QueueWait(
        Interval(quantiles_s[len(quantiles_s) // 2], quantiles_s[0], quantiles_s[-1]), 0.0, quantiles_s, 0.0
    )


def test_the_remaining_wait_of_a_memoryless_queue_is_constant():
    # quantiles of an exponential wait of 1000 s in the mean
    from math import log

    whole = wait(*(-1000 * log(1 - (i + 0.5) / 400) for i in range(400)))
    for waited_s in (0.0, 300.0, 1500.0):
        remaining = whole.remaining_s(waited_s)
        assert remaining.point == pytest.approx(693.0, rel=0.05)
        assert remaining.high == pytest.approx(2996.0, rel=0.1)
        assert remaining.low == pytest.approx(51.0, abs=20)


def test_a_wait_of_fixed_length_shrinks_by_the_elapsed_wait():
    remaining = wait(*[600.0] * 40).remaining_s(200.0)
    assert (remaining.low, remaining.point, remaining.high) == (400.0, 400.0, 400.0)


def test_a_job_that_outlasts_the_prediction_has_no_remaining_wait():
    prediction = wait(*(float(i) for i in range(40)))
    assert prediction.remaining_s(35.0) is not None
    assert prediction.remaining_s(36.0) is None


@given(st.lists(st.floats(0, 1e6), min_size=4, max_size=40).map(sorted), st.floats(0, 1e6))
def test_a_remaining_wait_is_positive_and_its_bounds_are_ordered(quantiles, waited_s):
    remaining = wait(*quantiles).remaining_s(waited_s)
    assert remaining is None or 0 < remaining.low <= remaining.point <= remaining.high
