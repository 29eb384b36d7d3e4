"""What rounds of jobs say of the plane's rates."""

import pytest

from benchmarks.plane.rates import COUNT, Rate, alone_rows, array_row


def rounds(count):
    """Three rounds, of which the plane takes 1, 2 and 4 times as long as the loop."""
    return [(Rate(count, 10.0, 20.0), Rate(count, 20.0 * times, 20.0 * times)) for times in (1, 2, 4)]


def test_the_median_round_counts_to_the_end_of_the_loop_and_to_its_last_submission():
    rows = alone_rows(rounds(COUNT))
    assert [one.value for one in rows[:2]] == [0.5, 0.25]
    assert [one.met for one in rows[:2]] == [True, False]
    assert pytest.approx([one.value for one in rows[2:]]) == [60 * COUNT / 40, 60 * COUNT / 20, 60 * COUNT / 10]


def test_each_round_of_arrays_is_shown():
    row = array_row(rounds(COUNT))
    assert (row.value, row.target, row.met) == (0.5, 1.0, False)
    assert row.how.endswith("seconds: 20.0 ÷ 20.0, 20.0 ÷ 40.0, 20.0 ÷ 80.0")


def test_fewer_jobs_are_measured_and_not_judged():
    rows = [*alone_rows(rounds(COUNT - 1)), array_row(rounds(COUNT - 1))]
    assert {(None, None)} == {(one.target, one.met) for one in rows}
