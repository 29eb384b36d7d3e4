import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.queues import QueueWait
from leadline.recommendation.feasibility import time_to_result

LEVELS = [(i + 0.5) / 40 for i in range(40)]


def wait(*quantiles_s):
    return QueueWait(
        Interval(quantiles_s[len(quantiles_s) // 2], quantiles_s[0], quantiles_s[-1]), 0.0, quantiles_s, 0.0
    )


def test_an_exact_wait_shifts_the_run():
    run = Interval(100.0, 80.0, 130.0)
    found = time_to_result(wait(50.0), run).interval(0.9)
    assert pytest.approx((found.point, found.low, found.high), rel=0.02) == (150.0, 130.0, 180.0)


def test_an_exact_run_shifts_the_wait():
    found = time_to_result(wait(0.0, 10.0, 1000.0, 5000.0), Interval(60.0, 60.0, 60.0))
    assert [found.quantile(p) for p in (0.2, 0.5, 0.75, 0.99)] == [60.0, 70.0, 1060.0, 5060.0]


def test_quantiles_of_the_sum_are_those_of_many_draws():
    normal = NormalDist()
    waits = [3600 * 2.718281828 ** normal.inv_cdf(p) for p in LEVELS]
    found = time_to_result(wait(*waits), Interval(7200.0, 7200.0 / 1.8, 7200.0 * 1.8))
    draw = random.Random(0)  # noqa: S311 - draws to compare with
    sigma = 0.5877866649 / 1.6448536
    drawn = sorted(
        3600 * 2.718281828 ** draw.gauss(0, 1) + 7200 * 2.718281828 ** draw.gauss(0, sigma) for _ in range(200_000)
    )
    for p in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert drawn[int(p * len(drawn))] == pytest.approx(found.quantile(p), rel=0.04)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40).map(sorted),
    st.floats(1, 1e5),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
)
def test_a_result_takes_longer_than_its_run_and_quantiles_ascend(waits, run_s, one, other):
    found = time_to_result(wait(*waits), Interval(run_s, run_s / 2, run_s * 3))
    low, high = sorted((one, other))
    assert found.quantile(low) <= found.quantile(high)
    assert found.sums_s[0] >= waits[0]


@pytest.mark.parametrize("probability", [0.0, 1.0, 2.0])
def test_a_risk_outside_zero_to_one_is_refused(probability):
    with pytest.raises(InvalidInput, match="choose one between 0 and 1"):
        time_to_result(wait(1.0), Interval(1.0, 1.0, 1.0)).quantile(probability)
