import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.estimate import Interval
from leadline.core.queues import QueueWait


def wait(*quantiles_s):
    return QueueWait(
        Interval(quantiles_s[len(quantiles_s) // 2], quantiles_s[0], quantiles_s[-1]), 0.0, quantiles_s, 0.0
    )


def test_of_a_wait_without_memory_the_rest_is_as_long_as_the_whole():
    # quantiles of an exponential wait of 1000 s in the mean
    from math import log

    whole = wait(*(-1000 * log(1 - (i + 0.5) / 400) for i in range(400)))
    for waited_s in (0.0, 300.0, 1500.0):
        rest = whole.remaining_s(waited_s)
        assert pytest.approx(rest.point, rel=0.05) == 693.0
        assert pytest.approx(rest.high, rel=0.1) == 2996.0
        assert pytest.approx(rest.low, abs=20) == 51.0


def test_of_a_wait_of_a_known_length_what_is_over_is_taken_off():
    rest = wait(*[600.0] * 40).remaining_s(200.0)
    assert (rest.low, rest.point, rest.high) == (400.0, 400.0, 400.0)


def test_nothing_is_said_of_a_job_that_has_waited_longer_than_was_foretold():
    told = wait(*(float(i) for i in range(40)))
    assert told.remaining_s(35.0) is not None
    assert told.remaining_s(36.0) is None


@given(st.lists(st.floats(0, 1e6), min_size=4, max_size=40).map(sorted), st.floats(0, 1e6))
def test_a_rest_is_above_zero_and_its_ends_are_in_order(quantiles, waited_s):
    rest = wait(*quantiles).remaining_s(waited_s)
    assert rest is None or 0 < rest.low <= rest.point <= rest.high
