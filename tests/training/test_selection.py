"""Candidates, their training sets and adjustment, and the choice by policy."""

import math
import time
from functools import partial

import numpy as np
import pytest
from made_runs import campaign

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.runs import Scale
from leadline.estimators.ports import Predictions
from leadline.estimators.tabular.registry import ESTIMATORS, Ensemble
from leadline.training.candidate_race import task_runner
from leadline.training.cross_validation import (
    ModelCandidate,
    TrainingRuns,
    cross_validation_folds,
    extrapolation_splits,
    fitting_samples,
    harp_adjustment,
    training_sets,
)
from leadline.training.dataset import make_dataset
from leadline.training.records import TrainingOptions, run_records
from leadline.training.selection import select_candidate


class Constant:
    """An estimator that says what was measured times a factor, looked up, so that its errors are known."""

    def __init__(self, name, factor, truth):
        self.name, self.factor, self.truth, self.seen = name, factor, truth, []

    def fit(self, samples, **_):
        self.seen.append(samples)
        return self

    def predict(self, rows):
        points = [self.truth["\n".join(f"{k}={v}" for k, v in sorted(row.items()))] * self.factor for row in rows]
        return Predictions(np.array(points), np.full(len(points), np.nan), np.zeros(len(points)))

    def dump(self):
        return {}


class Singular:
    def fit(self, *_, **__):
        raise np.linalg.LinAlgError("Matrix is not positive definite")


class Refusing:
    name = "refusing"

    def fit(self, *_, **__):
        raise InvalidInput("refusing needs 1000 samples")


@pytest.fixture(scope="module")
def dataset():
    return make_dataset(run_records(campaign(40, 12))).dataset


def recipes(dataset, **factors):
    truth = {sample.configuration: sample.value for sample in dataset.samples}
    return {name: Constant(name, factor, truth) for name, factor in factors.items()}


def test_the_training_sets_are_those_that_the_scales_allow(dataset):
    assert training_sets(dataset.samples) == (TrainingRuns.SCALED_DOWN, TrainingRuns.BOTH, TrainingRuns.UP_SAMPLED)
    assert training_sets(dataset.at(Scale.FULL_SCALE)) == (TrainingRuns.ALL,)
    as_many = (*dataset.at(Scale.FULL_SCALE), *dataset.at(Scale.SCALED_DOWN)[:12])
    assert training_sets(as_many) == (TrainingRuns.SCALED_DOWN, TrainingRuns.BOTH)


def test_an_up_sampled_set_has_as_many_full_scale_runs_as_scaled_down_ones_and_all_of_them(dataset):
    chosen = fitting_samples(dataset.samples, TrainingRuns.UP_SAMPLED, seed=3)
    full = [sample for sample in chosen if sample.scale is Scale.FULL_SCALE]
    assert 40 == len(full) == len(chosen) - len(full)
    assert {sample.run_id for sample in dataset.at(Scale.FULL_SCALE)} == {sample.run_id for sample in full}
    assert chosen == fitting_samples(dataset.samples, TrainingRuns.UP_SAMPLED, seed=3)
    only = fitting_samples(dataset.samples, TrainingRuns.SCALED_DOWN, seed=3)
    assert {Scale.SCALED_DOWN} == {sample.scale for sample in only}


def test_the_adjustment_is_the_mean_relative_error_of_under_predicted_runs():
    assert harp_adjustment(np.array([10.0, 10.0, 10.0]), np.array([8.0, 6.0, 20.0])) == 1.3
    assert harp_adjustment(np.array([10.0]), np.array([10.0])) == 1.0


def test_mae_chooses_the_closest_and_wtm_the_one_never_too_short(dataset):
    tried = recipes(dataset, short=0.99, long=1.10)
    parts = cross_validation_folds(dataset.samples, 4, seed=0)
    chosen = select_candidate(parts, tried, "mape")
    # adjusted, the short one is 1.01 times as long: as close, to a hundredth
    assert chosen.winner.estimator == "short"
    chosen = select_candidate(parts, recipes(dataset, short=0.8, long=1.1), "wtm")
    assert ModelCandidate("short", TrainingRuns.SCALED_DOWN) != chosen.winner
    assert chosen.scores[0].upp == 0
    assert "0 % under-predicted" in chosen.reason
    assert "the next" in chosen.reason


def test_full_scale_runs_decide_where_there_are_any(dataset):
    chosen = select_candidate(cross_validation_folds(dataset.samples, 4, seed=0), recipes(dataset, one=1.2), "mape")
    assert chosen.judged_on == "12 held-out full-scale runs"
    assert [pytest.approx(score.mape) for score in chosen.scores if not score.name.endswith(", adjusted")] == [20.0] * 3
    down = dataset.at(Scale.SCALED_DOWN)
    parts = extrapolation_splits(down, dataset.scale_features, (0.5, 0.75))
    chosen = select_candidate(parts, recipes(dataset, one=1.2), "mape")
    assert chosen.judged_on == f"the {sum(len(part.held_out) for part in parts)} largest runs, by fits on smaller ones"


def test_no_fit_contains_a_configuration_that_it_predicts(dataset):
    tried = recipes(dataset, one=1.0)
    parts = cross_validation_folds(dataset.samples, 4, seed=0)
    select_candidate(parts, tried, "mae")
    for number, seen in enumerate(tried["one"].seen):
        held = {sample.configuration for sample in parts[number // 3].held_out}
        assert not held & {sample.configuration for sample in seen}


def test_an_unfittable_candidate_is_listed_with_its_reason_and_never_wins(dataset):
    tried = {"refusing": Refusing(), "singular": Singular(), **recipes(dataset, one=1.5)}
    chosen = select_candidate(cross_validation_folds(dataset.samples, 4, seed=0), tried, "cost")
    assert chosen.winner.estimator == "one"
    assert {"refusing needs 1000 samples", "Matrix is not positive definite"} == {
        score.why_not for score in chosen.scores if score.why_not
    }
    with pytest.raises(InvalidInput, match=r"no estimator can be fitted .* needs 1000"):
        select_candidate(cross_validation_folds(dataset.samples, 4, seed=0), {"refusing": Refusing()}, "mae")


def test_a_candidate_far_behind_is_dropped_once_enough_runs_were_judged(dataset):
    tried = recipes(dataset, good=1.05, bad=3.0)
    chosen = select_candidate(cross_validation_folds(dataset.samples, 4, seed=0), tried, "mape")
    assert chosen.winner.estimator == "good"
    assert (len(tried["good"].seen), len(tried["bad"].seen)) == (12, 9)
    why = {score.name.split()[0]: score.why_not for score in chosen.scores if score.why_not}
    assert why == {"bad": "dropped: its error is 23 times the best one's"}
    assert pytest.approx(chosen.scores[-1].mape) == 200


def test_cost_and_pinball_score_the_upper_bound_instead_of_the_point(dataset):
    """A constant factor is taken out of the bound, so that all candidates ask for the same."""
    for policy in ("pinball", "cost"):
        chosen = select_candidate(
            cross_validation_folds(dataset.samples, 4, seed=0), recipes(dataset, half=0.8, twice=1.3), policy
        )
        figures = [score.policy[0] for score in chosen.scores if not score.name.endswith(", adjusted")]
        assert max(figures) == pytest.approx(min(figures), abs=1e-9)


def test_an_unknown_policy_error_suggests_a_known_one(dataset):
    with pytest.raises(UnknownName, match="did you mean 'mae'"):
        select_candidate(cross_validation_folds(dataset.samples, 4, seed=0), recipes(dataset, one=1.0), "mea")


def test_with_few_full_scale_runs_extrapolations_count_and_fewer_candidates_compete(dataset):
    down = dataset.at(Scale.SCALED_DOWN)
    beyond = extrapolation_splits(down, dataset.scale_features, (0.5, 0.75))
    tried = recipes(dataset, good=1.05, fair=1.2, bad=3.0)
    chosen = select_candidate(
        cross_validation_folds(dataset.samples, 4, seed=0), tried, "mape", few=True, extrapolations=beyond
    )
    assert chosen.winner.estimator == "good"
    assert all(f" on {TrainingRuns.BOTH}" in score.name for score in chosen.scores)
    assert not any(score.name.endswith(", adjusted") for score in chosen.scores)
    assert len(tried["bad"].seen) == len(beyond)  # given up before the folds
    assert len(tried["good"].seen) == len(beyond) + 4
    held = sum(len(part.held_out) for part in beyond)
    assert f"and {held} predictions of larger runs from smaller ones" in chosen.judged_on


def test_each_fold_is_predicted_by_the_candidate_chosen_without_it(dataset):
    """Each of two is right on half of the folds: whichever wins, what it says of the other half counts."""
    parts = cross_validation_folds(dataset.samples, 4, seed=0)
    truth = {sample.configuration: sample.value for sample in dataset.samples}
    off = {sample.configuration: number for number, part in enumerate(parts) for sample in part.held_out}
    tried = {}
    for name, mine in (("first", (0, 1)), ("second", (2, 3))):
        wrong = {key: value * (1.0 if off[key] in mine else 1.3) for key, value in truth.items()}
        tried[name] = Constant(name, 1.0, wrong)
    chosen = select_candidate(parts, tried, "mape")
    ratio = chosen.predicted.point / chosen.predicted.measured
    assert ratio == pytest.approx(np.full(len(ratio), 1.3), rel=0.01)


def test_an_ensemble_takes_the_median_of_its_members_without_a_fit(dataset):
    recipe = Ensemble("both", tuple(recipes(dataset, low=0.95, high=1.06, middle=1.0).values()))
    tried = {member.name: member for member in recipe.members} | {"both": recipe}
    parts = cross_validation_folds(dataset.samples, 4, seed=0)
    chosen = select_candidate(parts, tried, "mape")
    both = [
        score for score in chosen.scores if score.name.startswith("both ") and not score.name.endswith(", adjusted")
    ]
    assert [0.0] * len(both) == [pytest.approx(score.mape, abs=1e-9) for score in both]
    assert len(recipe.members[0].seen) == 3 * len(parts)


def test_an_ensemble_is_preferred_where_only_extrapolations_decide():
    small = make_dataset(run_records(campaign(40, 0)), options=TrainingOptions(scale_features=("epochs",))).dataset
    members = recipes(small, low=0.9, high=1.105, higher=1.12)
    tried = members | {"both": Ensemble("both", tuple(members.values()))}
    beyond = extrapolation_splits(small.samples, ("epochs",), (0.5, 0.75))
    chosen = select_candidate(beyond, tried, "mape")
    assert chosen.winner.estimator == "both"
    assert "low on all is hardly better" in chosen.reason
    worse = members | {
        "both": Ensemble("both", (members["high"], members["higher"], *recipes(small, far=1.3).values()))
    }
    assert select_candidate(beyond, worse, "mape").winner.estimator == "low"
    assert select_candidate(cross_validation_folds(small.samples, 4, seed=0), tried, "mape").winner.estimator == "low"


def test_an_ensemble_is_preferred_where_few_full_scale_runs_decide():
    dataset = make_dataset(run_records(campaign(40, 6)), options=TrainingOptions(scale_features=("epochs",))).dataset
    beyond = extrapolation_splits(dataset.at(Scale.SCALED_DOWN), ("epochs",), (0.5, 0.75))
    members = recipes(dataset, low=0.9, high=1.105, higher=1.12)
    tried = members | {"both": Ensemble("both", tuple(members.values()))}
    parts = cross_validation_folds(dataset.samples, 4, seed=0)
    assert select_candidate(parts, tried, "mape", few=True, extrapolations=beyond).winner.estimator == "both"
    assert select_candidate(parts, tried, "mape").winner.estimator == "low"


def test_several_processes_choose_as_one_does(dataset):
    few = {name: ESTIMATORS[name] for name in ("linear", "tree")}
    parts = cross_validation_folds(dataset.samples, 3, seed=0)
    alone, together = select_candidate(parts, few, "mape"), select_candidate(parts, few, "mape", run=task_runner(2))
    assert [(score.name, score.mape) for score in alone.scores] == [
        (score.name, score.mape) for score in together.scores
    ]


def grow(seconds):
    """Keep 400 MB more, as a process does that loads PyTorch, after ``seconds``."""
    time.sleep(seconds)
    vars(math)["kept"] = b"\1" * (seconds > 0) * 400_000_000
    return seconds


def test_a_process_that_grows_is_replaced_without_a_word_and_the_tasks_go_on():
    seconds = [0.0, 0.0, *[1.1] * 4]
    assert list(task_runner(2)([partial(grow, delay) for delay in seconds])) == seconds


def test_no_candidate_is_dropped_for_a_few_runs_of_one_fold():
    few = make_dataset(run_records(campaign(40, 5))).dataset
    chosen = select_candidate(cross_validation_folds(few.samples, 5, seed=0), recipes(few, good=1.05, bad=3.0), "mape")
    assert not [score for score in chosen.scores if score.why_not]


def test_an_ensemble_ignores_members_outside_the_comparison(dataset):
    members = recipes(dataset, low=0.95, high=1.06, middle=1.0)
    recipe = Ensemble("all", (*members.values(), *recipes(dataset, absent=9.0).values()))
    parts = cross_validation_folds(dataset.samples, 4, seed=0)
    chosen = select_candidate(parts, {**members, "all": recipe}, "mape")
    assert recipe.members[-1].seen == []
    assert pytest.approx(min(score.mape for score in chosen.scores if score.name.startswith("all ")), abs=1e-9) == 0.0
