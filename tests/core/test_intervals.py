import numpy as np
import pytest

from leadline.core.estimate import Interval


def test_independent_errors_partly_cancel_in_a_sum():
    both = Interval(10.0, 7.0, 14.0).plus(Interval(20.0, 16.0, 23.0))
    assert (both.point, both.low, both.high) == (30.0, pytest.approx(25.0), pytest.approx(35.0))
    common = Interval(10.0, 7.0, 14.0).joined(Interval(20.0, 16.0, 23.0))
    assert (common.low, common.high) == (23.0, 37.0)


def test_a_sum_of_independent_log_normal_quantities_lies_within_its_interval_nine_times_of_ten():
    draw = np.random.default_rng(3)
    sums = draw.lognormal(0.0, 0.3, 20_000) + 2 * draw.lognormal(0.0, 0.2, 20_000)
    part, other = (Interval(1.0, 1 / f, f) for f in (1.638, 1.390))  # exp(1.645 × 0.3) and exp(1.645 × 0.2)
    both = part.plus(other.scaled(2))
    assert both.low == pytest.approx(np.quantile(sums, 0.05), rel=0.05)
    assert both.high == pytest.approx(np.quantile(sums, 0.95), rel=0.05)
