"""Ranking under a deadline, a budget, or neither, and the reasons of rejected options."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import ResourceSpec
from leadline.core.queues import QueueWait
from leadline.core.recommendation import Constraints
from leadline.core.systems import Billing, BillingRule, Limits, NodeType, Partition, System
from leadline.core.units import GIB
from leadline.recommendation.feasibility import PlacementCandidate, check_configuration, check_place
from leadline.recommendation.ranking import pareto_front, rank_candidates
from leadline.recommendation.requests import request_for_estimate, round_walltime_s
from leadline.uncertainty.distributions import quantile

GPU = Device("V100", "nvidia", DeviceKind.GPU, memory_bytes=16 * GIB)
OSC = Billing(BillingRule.CORES_AND_GPUS, "USD", core_hour=0.003, gpu_hour=0.09)


def candidate(cores, seconds, *, billing=OSC, memory=1 * GIB, spread=1.0, limit_s=None, name="gpu"):
    node = NodeType("dual", cores=48, device="V100", gpus=2)
    partition = Partition(f"{name}-{cores}", node, limits=Limits(max_walltime_s=limit_s), billing=billing)
    elapsed = Interval(seconds, seconds / spread, seconds * spread)
    estimate = Estimate(
        Target("V100"), "test", Basis(Tier.SPECS), elapsed_s=elapsed, gpu_memory_bytes=Interval(memory, memory, memory)
    )
    request = ResourceSpec(cores_per_task=cores, gpus_per_node=1, walltime_s=round_walltime_s(seconds * spread))
    hourly = compute_charge(billing, request, 1.0, node) if billing else None
    return PlacementCandidate(
        System("Pitzer", "OSC", "hpc", "production", "slurm"), partition, GPU, estimate, request, hourly
    )


HARP = [candidate(48, 180), candidate(28, 95), candidate(10, 103)]
"""HARP's three configurations (cores with one GPU) with its predicted walltimes in seconds."""


def test_under_harps_time_limit_the_cheapest_that_qualifies_is_ten_cores():
    answer = rank_candidates(HARP, Constraints(deadline_s=120))
    assert [option.resources.cores_per_task for option in answer.options] == [10, 28]
    assert [rejection.kind for rejection in answer.rejections] == ["deadline"]


def test_under_harps_cost_limit_the_fastest_that_is_affordable_is_twenty_eight_cores():
    answer = rank_candidates(HARP, Constraints(budget=0.01))
    assert [option.resources.cores_per_task for option in answer.options] == [28, 10]
    assert [rejection.kind for rejection in answer.rejections] == ["budget"]


def test_harps_predicted_costs_are_reproduced():
    costs = [round(option.estimate.cost.point, 3) for option in rank_candidates(HARP, Constraints()).options]
    assert sorted([0.012, 0.005, 0.003]) == sorted(costs)


def test_without_limits_the_front_comes_first_and_holds_no_dominated_option():
    answer = rank_candidates(HARP, Constraints())
    assert [option.on_front for option in answer.options] == [True, True, False]
    assert {option.resources.cores_per_task for option in answer.options if option.on_front} == {28, 10}


def test_when_nothing_fits_the_smallest_change_is_named():
    answer = rank_candidates(HARP, Constraints(deadline_s=90))
    assert answer.options == ()
    assert answer.smallest_change == "a deadline of 1m 35s would make Pitzer:gpu-28 fit"


def test_amounts_in_different_currencies_are_never_compared():
    units = Billing(BillingRule.CORES_AND_GPUS, "Expanse SU", core_hour=0.0, gpu_hour=0.001)
    answer = rank_candidates([candidate(10, 200, billing=units), candidate(48, 400)], Constraints())
    assert [option.estimate.currency for option in answer.options] == ["Expanse SU", "USD"]  # by time
    assert "costs in Expanse SU, USD cannot be compared: options are ordered by time" in answer.notes
    assert all(option.on_front for option in answer.options)
    rejected = rank_candidates([candidate(10, 200, billing=units)], Constraints(budget=100.0)).rejections
    assert [one.kind for one in rejected] == ["currency"]


def test_under_a_deadline_the_cheapest_of_each_currency_come_first_whatever_its_name():
    units = Billing(BillingRule.CORES_AND_GPUS, "Zeta SU", core_hour=0.0, gpu_hour=0.001)
    cents = Billing(BillingRule.CORES_AND_GPUS, "Alpha SU", core_hour=0.0, gpu_hour=5.0)
    fast = [candidate(10, 82 * 60, billing=units), candidate(28, 90 * 60, billing=units)]
    slow = [candidate(48, 20 * 3600), candidate(10, 21 * 3600, billing=cents)]
    answer = rank_candidates([*slow, *fast], Constraints(deadline_s=24 * 3600))
    order = [(option.estimate.currency, round(option.estimate.elapsed_s.point / 60)) for option in answer.options]
    assert order == [("Zeta SU", 82), ("USD", 1200), ("Alpha SU", 1260), ("Zeta SU", 90)]
    assert [option.reason for option in answer.options[:3]] == [
        f"the cheapest in {currency} within the deadline" for currency in ("Zeta SU", "USD", "Alpha SU")
    ]
    assert "the cheapest of each come first, ordered by time" in answer.notes[0]


@given(st.permutations(["USD", "Expanse SU", "Zeta SU", "node-hours"]))
def test_the_names_of_currencies_never_decide_the_order(names):
    priced = [
        candidate(cores, seconds, billing=Billing(BillingRule.CORES_AND_GPUS, name, core_hour=0.0, gpu_hour=0.001))
        for name, (cores, seconds) in zip(names, [(48, 100), (28, 200), (10, 300), (5, 400)], strict=True)
    ]
    for limits in (Constraints(), Constraints(deadline_s=1000)):
        ordered = rank_candidates(priced, limits).options
        assert [option.estimate.elapsed_s.point for option in ordered] == [100, 200, 300, 400]


def test_one_currency_needs_no_note():
    assert rank_candidates(HARP, Constraints()).notes == ()


def test_an_unpriced_place_is_last_and_refused_under_a_budget():
    unpriced = candidate(10, 50, billing=None)
    answer = rank_candidates([unpriced, candidate(48, 400)], Constraints())
    assert [option.resources.cores_per_task for option in answer.options] == [48, 10]
    assert [rejection.kind for rejection in rank_candidates([unpriced], Constraints(budget=1.0)).rejections] == [
        "price-unknown"
    ]


def test_a_job_too_large_for_the_device_is_refused_with_both_sizes():
    answer = rank_candidates([candidate(10, 50, memory=20 * GIB)], Constraints())
    assert "20.0 GiB" in answer.rejections[0].reason
    assert "16.0 GiB" in answer.rejections[0].reason


def test_a_walltime_above_the_partitions_limit_is_refused():
    answer = rank_candidates([candidate(10, 7200, limit_s=3600)], Constraints())
    assert answer.rejections[0].kind == "walltime"


def test_a_deadline_is_held_at_the_chosen_risk_and_not_only_at_the_point():
    wide = candidate(10, 100, spread=2.0)
    assert rank_candidates([wide], Constraints(deadline_s=150, risk=0.05)).options == ()
    assert len(rank_candidates([wide], Constraints(deadline_s=150, risk=0.4)).options) == 1


@pytest.mark.parametrize(
    ("change", "nodes", "kind"),
    [
        ({"restricted": True}, 1, "restricted"),
        ({"interactive": True}, 1, "interactive"),
        ({"limits": Limits(max_nodes=1)}, 2, "too-many-nodes"),
        ({"limits": Limits(min_nodes=2)}, 1, "too-few-nodes"),
    ],
)
def test_a_place_that_cannot_take_the_job_is_refused_before_any_estimate(change, nodes, kind):
    partition = replace(HARP[0].partition, **change)
    assert kind == check_place(HARP[0].system, partition, 2, nodes).kind


@given(st.lists(st.tuples(st.integers(1, 48), st.integers(1, 5000)), min_size=1, max_size=30))
def test_no_option_of_the_front_is_dominated(rows):
    candidates = [candidate(cores, seconds) for cores, seconds in rows]
    points = [(candidate.estimate.elapsed_s.point, candidate.cost(0.5)) for candidate in candidates]
    for one in pareto_front(candidates):
        time, cost = one.estimate.elapsed_s.point, one.cost(0.5)
        assert not any(t <= time and c < cost * (1 - 1e-9) for t, c in points)


@given(st.floats(1, 1e6), st.floats(1.01, 10), st.floats(0.01, 0.49))
def test_a_quantile_is_above_the_point_and_at_its_level_is_the_end_of_the_interval(point, factor, risk):
    interval = Interval(point, point / factor, point * factor, 0.9)
    assert quantile(interval, 1 - risk) >= point
    assert quantile(interval, 0.95) == pytest.approx(interval.high)
    assert quantile(interval, 0.05) == pytest.approx(interval.low)


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.2])
def test_a_risk_outside_its_range_is_refused(risk):
    with pytest.raises(InvalidInput, match="risk"):
        quantile(Interval(1, 1, 1), 1 - risk)


def test_a_gpu_job_requests_the_share_of_cores_of_its_gpus():
    one = HARP[0]
    assert request_for_estimate(one.estimate, one.partition, 0.05).resources.cores_per_task == 24


def waiting(one, *quantiles_s):
    interval = Interval(quantiles_s[len(quantiles_s) // 2], quantiles_s[0], quantiles_s[-1])
    return replace(one, wait=QueueWait(interval, 0.0, quantiles_s, 0.0))


def test_under_a_deadline_the_wait_counts_where_it_is_known():
    quick, slow = candidate(28, 95), candidate(10, 110)
    answer = rank_candidates([waiting(quick, 60.0), slow], Constraints(deadline_s=120))
    assert [option.resources.cores_per_task for option in answer.options] == [10]
    (lost,) = answer.rejections
    assert lost.reason == "deadline: waits and runs for up to 2m 35s at 5% risk"


def test_the_first_result_is_the_fastest_once_all_waits_are_known():
    quick, slow = waiting(candidate(28, 95), 600.0), waiting(candidate(10, 110), 5.0)
    assert [
        option.resources.cores_per_task for option in rank_candidates([quick, slow], Constraints(budget=1.0)).options
    ] == [10, 28]
    best = rank_candidates([quick, slow], Constraints(budget=1.0)).options[0]
    assert (best.wait_s.point, best.result_s.point) == (5.0, 115.0)


def test_an_unknown_wait_is_not_zero():
    quick, slow = waiting(candidate(28, 95), 600.0), candidate(10, 110)
    options = rank_candidates([quick, slow], Constraints(budget=1.0)).options
    assert [option.resources.cores_per_task for option in options] == [28, 10]
    assert [option.wait_s is not None for option in options] == [True, False]
    assert [option.result_s is not None for option in options] == [True, False]


def test_the_front_is_of_results_where_all_waits_are_known():
    # alone the quicker one is dearer and stays; behind its queue it is beaten in both
    quick, slow = candidate(48, 90), candidate(10, 103)
    assert [option.on_front for option in rank_candidates([quick, slow], Constraints()).options] == [True, True]
    known = rank_candidates([waiting(quick, 3600.0), waiting(slow, 0.0)], Constraints()).options
    assert [(option.resources.cores_per_task, option.on_front) for option in known] == [(10, True), (48, False)]


def test_gpus_of_an_unknown_model_are_not_reported_as_missing():
    unknown = Partition("gpu", NodeType("n", cores=8, gpus=4))
    assert "has GPUs of a model that is not known" in check_configuration(unknown, 4, 1, 1).reason
    assert "has no GPUs" in check_configuration(Partition("cpu", NodeType("n", cores=8)), 4, 1, 1).reason
