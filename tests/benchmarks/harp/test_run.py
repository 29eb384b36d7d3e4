"""The bench is run on a made-up history, where what it should find is known."""

import json
import math

import numpy as np
import pytest

from benchmarks.harp import run as harp
from benchmarks.harp.campaign_curve import GROWING, draw_curves, growing_campaigns
from benchmarks.harp.commands import resampled_runs, resumed_campaign_rows
from benchmarks.harp.contenders import BOOSTING, CONTENDERS, FIXED, HARP, LEADLINE, RunPredictions, answer_questions
from benchmarks.harp.page import tables
from benchmarks.harp.stopping import FULL_ONLY, MIXED, stopping_rows
from benchmarks.histories import cost_s, read_histories, split_history
from leadline.core.runs import Scale


@pytest.fixture(scope="module")
def history(made_up_histories):
    return read_histories(made_up_histories)[0]


def answered(measured, point, low=math.nan, high=math.nan, own_error=math.nan):
    n = len(measured)
    runs, own_error = np.array([f"run{number}" for number in range(n)]), np.full(n, own_error)
    return RunPredictions(np.array(measured), np.array(point), np.full(n, low), np.full(n, high), runs, own_error)


def test_every_method_answers_for_the_same_runs(history, one_estimator):
    parted = split_history(history, 5, 0)
    answers = {name: one for each in CONTENDERS.values() for name, one in each(parted, "elapsed_s", 0).items()}
    assert len(answers) == 10
    assert len({tuple(one.measured) for one in answers.values()}) == 1
    assert len(answers[HARP].point) == 9
    assert np.isnan(answers[HARP].high).all()
    assert np.isnan(answers[HARP].own_error).all()  # as released it is scored on the test
    assert (answers[FIXED].own_error > 0).all()
    assert (answers["Leadline"].own_error > 0).all()
    assert (answers["Leadline"].low <= answers["Leadline"].high).all()


def test_the_figures_are_of_what_was_answered():
    figures = answered([10.0, 10.0], [8.0, 13.0], 9.0, 12.5).metrics()
    assert pytest.approx(figures["MAPE"]) == 25.0
    assert figures["UPP"] == 50.0
    assert figures["coverage"] == 100.0
    assert figures["under-predicted at 5 % risk"] == 0.0
    assert pytest.approx(figures["over-request"]) == 1.25
    assert answered([10.0], [8.0]).metrics()["coverage"] is None


def test_a_request_is_judged_from_both_sides(history):
    one = harp.HarpComparison(history, "SD + 5 FS", "elapsed_s", {
        "Leadline": answered([10.0] * 20, [10.0] * 20, 9.0, 11.0),
        "boosting": answered([10.0] * 20, [5.0] * 20, 1.0, 9.0),
    })  # fmt: skip
    short, not_idle, over = harp._request(one, "walltime")
    assert (short.met, not_idle.met, over.met) == (True, False, True)
    assert short.baseline == 100.0


def test_runs_that_several_draws_share_count_once():
    twice = RunPredictions.pooled([answered([10.0, 20.0], [9.0, 19.0]), answered([10.0, 20.0], [11.0, 21.0])])
    assert (len(twice.measured), twice.n) == (4, 2)


def campaign_answers(history, own_errors):
    """Answers whose own errors are those of each step, by method and kind of campaign; tests are 10 % off."""
    answers = {}
    for name, growing, key in ((LEADLINE, MIXED, "ours"), (LEADLINE, FULL_ONLY, "alone"), (FIXED, MIXED, "harp")):
        for step, own_error in zip(growing_campaigns(history, growing), own_errors[key], strict=True):
            for question in step.questions(name):
                answers[question] = {name: answered([10.0, 10.0], [11.0, 9.0], own_error=own_error)}
    return answers


def test_a_campaign_ends_where_its_own_error_promises_the_target_whatever_the_test_says(history):
    own_errors = {"ours": [30.0, 7.0, 2.0, 2.0, 2.0], "alone": [9.0, 7.9, 1.0], "harp": [50.0] * 5}
    saving, error, as_many = stopping_rows(history, campaign_answers(history, own_errors))
    steps, alone = growing_campaigns(history, MIXED), growing_campaigns(history, FULL_ONLY)

    def cost(step):
        return sum(cost_s(question.split(history).learned) for question in step.questions(LEADLINE))

    assert saving.value == pytest.approx(cost(alone[1]) / cost(steps[1]))
    assert saving.baseline == pytest.approx(cost(alone[1]) / cost(steps[-1]))
    assert "not stopped" in saving.how
    assert (error.value, error.met) == (pytest.approx(10.0), False)  # scored after the end, never a reason to end
    assert (as_many.target, saving.n) == (None, 2)


def test_a_campaign_that_never_promises_the_target_misses_it_however_cheap_it_was(history):
    own_errors = {"ours": [30.0] * 5, "alone": [30.0] * 3, "harp": [50.0] * 5}
    saving, *_ = stopping_rows(history, campaign_answers(history, own_errors))
    assert saving.met is False
    assert saving.how.startswith("no promise of 8 % in every draw")


def test_a_curve_grows_and_is_drawn(history, tmp_path):
    growing, methods = growing_campaigns(history, GROWING[-3:]), [BOOSTING, HARP, FIXED]
    answers = answer_questions([history], [one for each in growing for name in methods for one in each.questions(name)])
    points = [one.point(answers, methods) for one in growing]
    assert [one.cost_s for one in points] == sorted(one.cost_s for one in points)
    details = [{"history": "made-up", "curve": True, **one.document()} for one in points]
    draw_curves(json.loads(json.dumps(details)), tmp_path / "curve.svg")
    assert "made-up" in (tmp_path / "curve.svg").read_text()
    every = [{**one, "mape": {"Leadline": 4.0, **one["mape"]}} for one in details]
    assert f"| made-up | {points[-1].name} | " in tables(every)


def test_resampled_runs_are_near_the_real_ones_and_end_at_full_scale(history):
    runs = resampled_runs(history, 500)
    assert len({run.id for run in runs}) == 500
    assert Scale.FULL_SCALE is runs[-1].scale
    real = sorted(record.metrics["elapsed_s"] for record in history.records)
    made = [run.measured["elapsed_s"].value for run in runs]
    assert real[0] * 0.85 < min(made)
    assert max(made) < real[-1] * 1.15


def test_a_killed_campaign_loses_no_run_and_makes_none_twice():
    lost, twice = resumed_campaign_rows(quick=True)
    assert (lost.value, twice.value) == (0, 0)
    assert lost.n >= 2
