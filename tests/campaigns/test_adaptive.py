"""Adaptive runs keep to the budget, avoid what fails, and reach a smaller full-scale error at equal cost."""

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("scipy")

import numpy as np

from leadline.campaigns.adaptive import propose_runs
from leadline.campaigns.configurations import configuration_key, run_configuration
from leadline.campaigns.plan import plan_campaign, random_design
from leadline.campaigns.run_time_model import fit_run_time_model, run_observations
from leadline.core.campaigns import Budget, BudgetUnit, Design
from leadline.core.jobs import JobState
from leadline.core.runs import Scale

AT_MOST = 400


def made(application):
    """Run a campaign to its end as the runner does: nothing starts that is known not to fit the budget."""
    campaign, runs, spent = application.campaign, [], 0.0
    planned = plan_campaign(campaign).runs
    while planned and len(runs) < AT_MOST:
        before = len(runs)
        for one in planned:
            if campaign.budget is None or spent + application.seconds(one.configuration) <= campaign.budget.amount:
                runs.append(application.run(one))
                spent += application.cost(runs[-1])
        if len(runs) == before:
            break
        planned = propose_runs(campaign, runs, spent)
    return runs


def error(application, runs):
    """Return the mean relative error of the law fitted on runs, on full-scale configurations it may not have seen."""
    asked = random_design(replace(application.campaign, seed=4321), Scale.FULL_SCALE, 100)
    seconds = fit_run_time_model(application.campaign, run_observations(runs)).predict(asked).seconds
    true = np.array([application.seconds(one) for one in asked])
    return float(np.abs(seconds / true - 1).mean())


def mean_error(application, design, seconds):
    numbers = {} if design is Design.ADAPTIVE else {"scaled_down_runs": 150, "full_scale_runs": 20}
    changes = {"design": design, "budget": Budget(seconds, BudgetUnit.SECONDS), "first_run_s": None, **numbers}
    tried = [application.with_(seed_of_noise=seed, seed=seed, **changes) for seed in range(2)]
    return sum(error(one, made(one)) for one in tried) / len(tried)


FIXED = (Design.SPACE_FILLING, Design.RANDOM, Design.GRID)


def test_a_solver_is_predicted_far_better_than_with_a_fixed_design_of_equal_cost(solver):
    adaptive = mean_error(solver, Design.ADAPTIVE, 90)
    assert adaptive < 0.05
    for other in FIXED:
        assert adaptive < 0.5 * mean_error(solver, other, 90), other


def test_a_classifier_is_predicted_better_than_with_a_fixed_design_of_equal_cost(classifier):
    adaptive = mean_error(classifier, Design.ADAPTIVE, 600)
    assert adaptive < 0.05
    for other in FIXED:
        assert adaptive < 0.9 * mean_error(classifier, other, 600), other


@pytest.mark.parametrize("seconds", [5, 60])
def test_proposals_fit_the_budget_and_repeat_no_run(solver, seconds):
    solver = solver.with_(budget=Budget(100, BudgetUnit.SECONDS))
    runs = [solver.run(one) for one in plan_campaign(solver.campaign).runs]
    found = propose_runs(solver.campaign, runs, 100 - seconds)
    assert sum(one.forecast_s.point for one in found) <= seconds
    assert not {configuration_key(one.configuration) for one in found} & {
        configuration_key(run_configuration(run)) for run in runs
    }
    assert propose_runs(solver.campaign, runs, 100 - seconds) == found
    assert propose_runs(solver.campaign, runs, 100) == ()


def test_the_requested_numbers_of_configurations_are_respected(classifier):
    runs = made(classifier.with_(scaled_down_runs=14, full_scale_runs=3, repeats=2, budget=None))
    assert Counter(run.scale for run in runs) == {Scale.SCALED_DOWN: 28, Scale.FULL_SCALE: 6}
    assert set(Counter(configuration_key(run_configuration(run)) for run in runs).values()) == {2}


def test_failing_configurations_are_avoided(classifier):
    classifier = classifier.with_(budget=Budget(600, BudgetUnit.SECONDS))
    classifier.fails = lambda one: one.parameters["dataset"] == "cifar10" and one.parameters["width"] > 400
    runs = made(classifier)
    start = len(plan_campaign(classifier.campaign).runs)
    failed = [run.state is JobState.FAILED for run in runs]
    assert 0 < sum(failed) < 0.25 * len(runs)
    assert sum(failed[start:]) <= 0.2 * len(failed[start:])


def test_a_timed_out_run_is_a_lower_bound(solver):
    solver = solver.with_(walltime_s=6.0, budget=Budget(150, BudgetUnit.SECONDS))
    runs = made(solver)
    cut = [run for run in runs if run.state is JobState.TIMEOUT]
    assert len(cut) < 0.2 * len(runs)
    dear = [one for one in random_design(solver.campaign, Scale.FULL_SCALE, 200) if solver.seconds(one) > 12]
    law = fit_run_time_model(
        solver.campaign, run_observations([*runs, *(solver.run_of(one, Scale.FULL_SCALE) for one in dear[:5])])
    )
    assert all(law.predict(dear[:5]).seconds > 5.5)


def test_the_end_of_a_budget_is_not_spent_on_uninformative_runs(classifier):
    campaign = classifier.with_(budget=Budget(600, BudgetUnit.SECONDS)).campaign
    runs = [classifier.run_of(one, Scale.SCALED_DOWN) for one in random_design(campaign, Scale.SCALED_DOWN, 40)]
    runs += [classifier.run_of(one, Scale.FULL_SCALE) for one in random_design(campaign, Scale.FULL_SCALE, 8)]
    assert propose_runs(campaign, runs, 300.0)
    assert propose_runs(campaign, runs, 597.0) == ()


def test_another_configuration_follows_a_start_that_failed_completely(classifier):
    classifier.fails = lambda _: True
    runs = [classifier.run(one) for one in plan_campaign(classifier.campaign).runs]
    (one,) = propose_runs(classifier.campaign, runs, 1.0)
    assert configuration_key(one.configuration) not in {configuration_key(run_configuration(run)) for run in runs}


@pytest.mark.parametrize("design", FIXED)
def test_a_fixed_design_continues_within_the_remaining_budget(classifier, design):
    classifier = classifier.with_(design=design, first_run_s=None, budget=Budget(300, BudgetUnit.SECONDS))
    runs = [classifier.run(one) for one in plan_campaign(classifier.campaign).runs]
    spent = sum(map(classifier.cost, runs))
    found = propose_runs(classifier.campaign, runs, spent)
    assert {Scale.SCALED_DOWN, Scale.FULL_SCALE} == {one.scale for one in found}
    assert not {one.id for one in found} & {run.id for run in runs}
    assert sum(one.forecast_s.point for one in found) <= 300 - spent


def test_there_is_still_a_choice_after_300_runs(classifier):
    classifier = classifier.with_(budget=Budget(9000, BudgetUnit.SECONDS))
    runs = [
        classifier.run_of(one, Scale.SCALED_DOWN) for one in random_design(classifier.campaign, Scale.SCALED_DOWN, 280)
    ]
    runs += [
        classifier.run_of(one, Scale.FULL_SCALE) for one in random_design(classifier.campaign, Scale.FULL_SCALE, 20)
    ]
    assert propose_runs(classifier.campaign, runs, 3000.0)
