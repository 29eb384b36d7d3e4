"""Designs cover the space, keep to the budget, and are the same whenever they are made."""

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("scipy")

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import configuration_key, values_of
from leadline.campaigns.plan import (
    PILOTS,
    choose_configurations,
    grid_design,
    plan_campaign,
    random_design,
    space_filling_design,
    total_forecast_cost,
)
from leadline.core.campaigns import Budget, BudgetUnit, Design, Parameter, ParameterKind, Range
from leadline.core.runs import Scale


@pytest.mark.parametrize("kind", Design)
@pytest.mark.parametrize("scale", Scale)
def test_a_design_is_distinct_within_its_ranges_and_reproducible(classifier, kind, scale):
    found = choose_configurations(classifier.campaign, kind, scale, 30)
    assert choose_configurations(classifier.campaign, kind, scale, 30) == found
    assert len(found) == len({configuration_key(one) for one in found}) >= 24
    low, high = (1, 3) if scale is Scale.SCALED_DOWN else (10, 60)
    for one in found:
        assert low <= one.parameters["epochs"] <= high
        assert isinstance(one.parameters["epochs"], int)
        assert 64 <= one.parameters["width"] <= 1024


@pytest.mark.parametrize("kind", [Design.RANDOM, Design.SPACE_FILLING])
def test_a_seed_changes_the_design_and_a_shorter_design_is_a_prefix(classifier, kind):
    found = choose_configurations(classifier.campaign, kind, Scale.SCALED_DOWN, 30)
    assert found != choose_configurations(replace(classifier.campaign, seed=1), kind, Scale.SCALED_DOWN, 30)
    assert choose_configurations(classifier.campaign, kind, Scale.SCALED_DOWN, 10) == found[:10]


def test_a_grid_has_every_combination_of_its_levels(classifier):
    found = [values_of(one) for one in grid_design(classifier.campaign, Scale.SCALED_DOWN, 60)]
    assert len(found) == 60
    assert Counter(one["epochs"] for one in found) == {1: 20, 2: 20, 3: 20}
    assert {64, 127, 255, 511, 1024} == {one["width"] for one in found}
    assert {("mnist", 1), ("mnist", 2), ("cifar10", 1), ("cifar10", 2)} == {(o["dataset"], o["cores"]) for o in found}


def test_a_grid_uses_explicit_values(classifier):
    width = Parameter("width", ParameterKind.INTEGER, Range(64, 256), Range(64, 256), values=(64, 128, 256))
    found = grid_design(
        replace(classifier.campaign, parameters=(*classifier.campaign.parameters[:2], width)), Scale.SCALED_DOWN, 100
    )
    assert {64, 128, 256} == {one.parameters["width"] for one in found}
    assert len(found) == 36


def test_random_numbers_of_a_log_range_are_spread_evenly_over_its_logarithm(classifier):
    found = random_design(classifier.campaign, Scale.FULL_SCALE, 400)
    below = sum(one.parameters["width"] < 256 for one in found)
    assert 160 < below < 240


def test_a_space_filling_design_balances_categories_and_reaches_the_largest_scale_and_every_end(classifier):
    found = space_filling_design(classifier.campaign, Scale.SCALED_DOWN, 20)
    assert 7 <= sum(one.parameters["dataset"] == "mnist" for one in found) <= 13
    assert 7 <= sum(one.resources.cores_per_task == 1 for one in found) <= 13
    assert sum(one.parameters["epochs"] == 3 for one in found) >= 4
    widths = [one.parameters["width"] for one in found]
    assert min(widths) < 80
    assert max(widths) > 800


def test_a_space_filling_design_costs_less_than_a_random_one_of_as_many_runs(classifier):
    spread = space_filling_design(classifier.campaign, Scale.SCALED_DOWN, 16)
    drawn = random_design(classifier.campaign, Scale.SCALED_DOWN, 16)
    assert sum(map(classifier.seconds, spread)) < sum(map(classifier.seconds, drawn))


def test_a_small_space_is_covered_without_repeats(classifier):
    small = replace(
        classifier.campaign, parameters=classifier.campaign.parameters[:2], command=("a", "{dataset}", "{epochs}")
    )
    for kind in Design:
        assert len(choose_configurations(small, kind, Scale.SCALED_DOWN, 50)) == 12, kind


@pytest.mark.parametrize("kind", Design)
@pytest.mark.parametrize("seconds", [30, 200, 1200])
def test_a_plan_keeps_to_its_budget(classifier, kind, seconds):
    campaign = replace(classifier.campaign, design=kind, budget=Budget(seconds, BudgetUnit.SECONDS))
    found = plan_campaign(campaign)
    assert 0 < total_forecast_cost(campaign, found.runs) <= seconds
    assert found.coverage > 0


def test_a_plan_reserves_full_scale_runs_and_counts_excluded_ones(classifier):
    found = plan_campaign(replace(classifier.campaign, design=Design.RANDOM, budget=Budget(150, BudgetUnit.SECONDS)))
    scales = Counter(one.scale for one in found.runs)
    assert 1 <= scales[Scale.FULL_SCALE] < 6
    assert len(found.runs) + found.left_out == 66


def test_every_configuration_is_repeated_as_requested(classifier):
    found = plan_campaign(
        replace(
            classifier.campaign, design=Design.RANDOM, repeats=3, scaled_down_runs=4, full_scale_runs=1, budget=None
        )
    )
    assert [one.repeat for one in found.runs] == [0, 1, 2] * 5
    assert len({one.id for one in found.runs}) == 15


@pytest.mark.parametrize("kind", [Design.RANDOM, Design.SPACE_FILLING, Design.GRID])
def test_without_a_guess_a_few_cheap_runs_protect_the_budget(classifier, kind):
    campaign = replace(classifier.campaign, design=kind, first_run_s=None)
    found = plan_campaign(campaign)
    assert len(found.runs) == PILOTS
    assert all(one.forecast_s is None for one in found.runs)
    assert {Scale.SCALED_DOWN} == {one.scale for one in found.runs}
    assert found.later >= 54
    assert max(found.relative) > 1 == min(found.relative)


def test_forecasts_from_ended_runs_are_close(classifier):
    campaign = replace(classifier.campaign, design=Design.SPACE_FILLING, first_run_s=None, scaled_down_runs=40)
    ended = [classifier.run(one) for one in plan_campaign(replace(campaign, budget=None)).runs[:25]]
    found = plan_campaign(campaign, ended)
    inside = [one.forecast_s.low <= classifier.seconds(one.configuration) <= one.forecast_s.high for one in found.runs]
    assert sum(inside) >= 0.8 * len(inside)
    small = [one for one in found.runs if one.scale is Scale.SCALED_DOWN]
    off = [abs(one.forecast_s.point / classifier.seconds(one.configuration) - 1) for one in small]
    assert sum(off) / len(off) < 0.1


def test_a_budget_in_core_hours_or_dollars_counts_requested_resources(classifier):
    resources = classifier.campaign.parameters and plan_campaign(classifier.campaign).runs[0].configuration.resources
    priced = replace(classifier.campaign, core_hour=0.003, gpu_hour=0.09)
    two = replace(resources, cores_per_task=2, gpus_per_node=1)
    assert compute_cost(priced, two, 1800) == 1800
    assert compute_cost(replace(priced, budget=Budget(1, BudgetUnit.CORE_HOURS)), two, 1800) == 1.0
    assert compute_cost(replace(priced, budget=Budget(1, BudgetUnit.USD)), two, 1800) == pytest.approx(0.048)
