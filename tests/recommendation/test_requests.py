"""The limit of least expected loss: what decides it, and that it never exceeds the risk."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import RiskWeights
from leadline.core.systems import Billing, BillingRule, Limits, NodeType, Partition
from leadline.core.units import GIB, HOUR_S
from leadline.recommendation.requests import (
    RERUN_GROWTH,
    KillLoss,
    LimitReason,
    build_request,
    cheapest_risk,
    expected_loss,
    limit_from_interval,
    round_walltime_s,
)
from leadline.uncertainty.distributions import HalfLogNormals, log_spreads, quantile

EVEN = RiskWeights()
SPREAD = st.floats(0.01, 2.5)
RISK = st.floats(0.001, 0.5)
WEIGHT = st.floats(0.01, 20)
LOSS = st.sampled_from(KillLoss)


def spread_by(spread, point=100.0):
    """An interval at a level of 90 % whose logarithm has that standard deviation."""
    factor = math.exp(1.6448536269514722 * spread)
    return Interval(point, point / factor, point * factor, 0.9)


def test_the_spread_of_an_interval_is_read_back():
    assert log_spreads(spread_by(0.3)) == pytest.approx((0.3, 0.3))
    assert log_spreads(Interval(5.0, 5.0, 5.0)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("spread", "risk", "decided"),
    [(0.02, 0.05, LimitReason.COST), (0.1, 0.05, LimitReason.COST), (0.2, 0.05, LimitReason.RISK),
     (0.2, 0.2, LimitReason.COST), (0.5, 0.05, LimitReason.RISK), (0.5, 0.01, LimitReason.RISK)],
)  # fmt: skip
def test_cost_decides_narrow_intervals_and_risk_wide_ones(spread, risk, decided):
    assert decided is limit_from_interval(spread_by(spread), risk, EVEN).decided


@pytest.mark.parametrize(("spread", "cheapest"), [(0.05, 0.013), (0.14, 0.05), (0.3, 0.13), (1.0, 0.26)])
def test_the_cheapest_risk_of_a_log_normal_is_that_of_the_table(spread, cheapest):
    assert limit_from_interval(spread_by(spread), 0.5, EVEN).risk == pytest.approx(cheapest, rel=0.15)


def test_where_the_risk_decides_the_limit_is_the_quantile_that_it_leaves():
    interval = spread_by(0.5)
    assert limit_from_interval(interval, 0.05, EVEN).value == pytest.approx(quantile(interval, 0.95))


def test_a_distribution_has_the_same_cheapest_risk_as_its_interval():
    interval = spread_by(0.5)
    risk = cheapest_risk(HalfLogNormals.of(interval), EVEN, KillLoss.LIMIT)
    assert limit_from_interval(interval, 0.05, EVEN).cheapest_risk == pytest.approx(risk)
    with pytest.raises(InvalidInput, match="weight"):
        cheapest_risk(HalfLogNormals.of(interval), RiskWeights(-1, 1), KillLoss.LIMIT)


def test_an_interval_without_width_is_its_own_limit():
    assert limit_from_interval(Interval(60, 60, 60), 0.05, EVEN).value == 60.0


def test_expected_loss_is_what_many_runs_lose_on_average():
    known, limit = HalfLogNormals(100.0, 0.4, 0.4), 140.0
    runs = [known.quantile((at + 0.5) / 20000) for at in range(20000)]
    total = 0.0
    for run in runs:
        asked = limit
        while run > asked:
            total += asked
            asked *= RERUN_GROWTH
        total += 0.5 * (asked - run)
    assert pytest.approx(total / len(runs), rel=2e-3) == expected_loss(
        known, limit, RiskWeights(1.0, 0.5), KillLoss.LIMIT
    )


def test_no_other_limit_within_the_risk_loses_noticeably_less():
    for spread in (0.05, 0.2, 0.8):
        known = HalfLogNormals(100.0, spread, spread)
        chosen = expected_loss(known, limit_from_interval(spread_by(spread), 0.5, EVEN).value, EVEN, KillLoss.LIMIT)
        others = [expected_loss(known, known.quantile(p / 1000), EVEN, KillLoss.LIMIT) for p in range(500, 1000)]
        assert chosen <= 1.01 * min(others)


def test_a_cap_between_the_two_decides_and_one_below_the_risk_is_exceeded():
    interval = spread_by(0.05)
    free, least = limit_from_interval(interval, 0.05, EVEN).value, quantile(interval, 0.95)
    cap = (free + least) / 2
    capped = limit_from_interval(interval, 0.05, EVEN, cap=cap)
    assert (cap, LimitReason.CAP) == (capped.value, capped.decided)
    assert capped.risk <= 0.05
    assert free == limit_from_interval(interval, 0.05, EVEN, cap=least * 0.99).value


@given(SPREAD, RISK, WEIGHT, WEIGHT, LOSS)
def test_the_accepted_risk_is_never_exceeded(spread, risk, kill, waste, loss):
    interval = spread_by(spread)
    limit = limit_from_interval(interval, risk, RiskWeights(kill, waste), loss)
    assert HalfLogNormals.of(interval).above(limit.value) <= risk * (1 + 1e-6)
    assert limit.risk <= risk


@given(SPREAD, RISK, WEIGHT, WEIGHT, WEIGHT, LOSS)
def test_a_higher_price_of_kills_never_lowers_the_limit(spread, risk, kill, more, waste, loss):
    cheap, dear = (
        limit_from_interval(spread_by(spread), risk, RiskWeights(one, waste), loss).value for one in (kill, kill + more)
    )
    assert cheap <= dear * (1 + 1e-12)


@given(SPREAD, RISK, WEIGHT, WEIGHT, WEIGHT)
def test_a_higher_price_of_waste_never_raises_the_limit(spread, risk, kill, waste, more):
    cheap, dear = (
        limit_from_interval(spread_by(spread), risk, RiskWeights(kill, one)).value for one in (waste, waste + more)
    )
    assert dear <= cheap * (1 + 1e-12)


@given(SPREAD, RISK, RISK, LOSS)
def test_a_smaller_risk_never_lowers_the_limit(spread, one, other, loss):
    limits = [
        limit_from_interval(spread_by(spread), risk, EVEN, loss).value for risk in sorted((one, other), reverse=True)
    ]
    assert limits[0] <= limits[1] * (1 + 1e-12)


@given(SPREAD, RISK, st.floats(0.001, 1e9))
def test_the_limit_grows_in_proportion_to_the_quantity(spread, risk, point):
    one, many = (limit_from_interval(spread_by(spread, median), risk, EVEN).value for median in (1.0, point))
    assert many / one == pytest.approx(point)


@pytest.mark.parametrize(
    ("risk", "weights"), [(0.0, EVEN), (1.0, EVEN), (0.1, RiskWeights(-1.0, 1.0)), (0.1, RiskWeights(1.0, math.nan))]
)
def test_a_risk_or_a_weight_out_of_range_is_refused(risk, weights):
    with pytest.raises(InvalidInput, match="not usable"):
        limit_from_interval(spread_by(0.2), risk, weights)


NODE = NodeType("standard", cores=40, memory_bytes=192 * GIB)
CPU = Partition("cpu", NODE)
ONE = ResourceSpec(cores_per_task=4)


def test_the_walltime_is_rounded_up_and_the_sentence_says_what_decided():
    asked = build_request(Interval(3000, 1500, 6000), None, ONE, CPU, 0.05)
    assert asked.resources.walltime_s == 6300.0
    assert asked.reason == "the accepted risk of 5 % decides the walltime (cost alone would take 19 %)"


def test_where_cost_decides_the_sentence_says_which_risk_is_cheapest():
    asked = build_request(Interval(3000, 2900, 3100), None, ONE, CPU, 0.05)
    assert asked.reason == "cost decides the walltime (killing 0.45 % of runs costs least; 5 % are accepted)"


def test_memory_has_its_own_part_of_the_reason():
    asked = build_request(Interval(3000, 1500, 6000), Interval(8 * GIB, 4 * GIB, 15.5 * GIB), ONE, CPU, 0.05)
    assert asked.resources.memory_bytes_per_node == 16 * GIB
    assert "decides the walltime and the memory (cost alone would take 19 % and " in asked.reason


def test_rounding_up_does_not_pass_the_partitions_limit():
    partition = replace(CPU, limits=Limits(max_walltime_s=3500))
    assert build_request(Interval(3400, 3350, 3450), None, ONE, partition, 0.05).resources.walltime_s == 3500


def test_a_limit_that_cannot_meet_the_risk_is_exceeded_and_so_refused():
    partition = replace(CPU, limits=Limits(max_walltime_s=HOUR_S))
    assert build_request(Interval(3500, 1500, 8000), None, ONE, partition, 0.05).resources.walltime_s > HOUR_S


def test_charged_memory_is_requested_more_sparingly():
    billing = Billing(BillingRule.CORE_HOURS, "SU", core_hour=1.0, memory_bytes_per_core=2 * GIB)
    memory = Interval(50 * GIB, 45 * GIB, 55 * GIB)
    charged = build_request(None, memory, ONE, replace(CPU, billing=billing), 0.2).resources
    paid_for = build_request(
        None, memory, replace(ONE, cores_per_task=40), replace(CPU, billing=billing), 0.2
    ).resources
    assert charged.memory_bytes_per_node < paid_for.memory_bytes_per_node


def test_a_higher_price_of_kills_raises_the_request_and_unknown_limits_stay_unset():
    wide = Interval(30000, 27000, 33000)
    limits = [
        build_request(wide, None, ONE, CPU, 0.3, RiskWeights(kill, 1.0)).resources.walltime_s for kill in (0.2, 10.0)
    ]
    assert limits[0] < limits[1]
    assert build_request(wide, None, ONE, CPU, 0.05).resources.memory_bytes_per_node is None
    assert build_request(None, None, ONE, CPU, 0.05).reason == ""


@pytest.mark.parametrize(("asked", "rounded"), [(1, 300), (301, 600), (3601, 4500), (43201, 46800)])
def test_walltimes_are_rounded_up_to_round_durations(asked, rounded):
    assert rounded == round_walltime_s(asked)
