"""A model is replaced only where a challenger is better on later runs."""

import random
from dataclasses import replace

import pytest
from made_runs import make_run

from leadline.core.jobs import JobState
from leadline.core.runs import Measurement, Scale
from leadline.training.build import TrainingOrigin
from leadline.training.model_card import model_card_markdown
from leadline.training.records import run_records
from leadline.training.refit import LEAST_NEW, prediction_outcomes, refit_model
from leadline.uncertainty.drift import DriftKind


@pytest.fixture(scope="module")
def asked(quick):
    return (quick, TrainingOrigin("the history of net", "2026-03-01T00:00:00+00:00", "leadline learn"))


@pytest.fixture(scope="module")
def slowed(built, asked):
    """Return runs of which the later ones take 1.3 times as long, and the model and the decision after them."""
    runs = [*later(30), *later(40, 1.3, seed=4, first=2000)]
    return (runs, *decide(built[0], runs, asked))


def later(count, times=1.0, *, seed=3, noise=0.02, first=1000):
    """Return runs of the same application that came later and took so many times as long."""
    draw = random.Random(seed)  # noqa: S311
    runs = []
    for number in range(count):
        run = make_run(
            first + number, epochs=draw.randint(20, 60), samples=draw.randint(20, 100) * 1000,
            cores=draw.choice((1, 2, 4)), kind=draw.choice("ab"), scale=Scale.FULL_SCALE, noise=draw.gauss(0, noise),
        )  # fmt: skip
        elapsed = run.measured["elapsed_s"]
        slower = {"elapsed_s": Measurement(elapsed.value * times, "s", "test")}
        runs.append(replace(run, measured={**run.measured, **slower}))
    return runs


def decide(model, runs, asked, **more):
    better, decided = refit_model(model, run_records(runs), *asked, **more)
    return better, next(one for one in decided if one.target == "elapsed_s")


def test_unchanged_runs_keep_the_model(built, asked):
    better, decided = decide(built[0], later(40), asked)
    assert (decided.replaced, decided.drift.detected) == (False, False)
    assert better.card == built[0].card
    assert "no better by more than chance and noise" in decided.reason


def test_a_slower_machine_is_detected_and_the_model_is_refitted(built, slowed):
    """Early runs are as before: the drift is one of the stream, and what is learned is of the runs since."""
    runs, better, decided = slowed
    assert (decided.replaced, decided.drift.change) == (True, DriftKind.MORE)
    assert pytest.approx(decided.drift.ratio, rel=0.05) == 1.3
    assert decided.comparison.after < 0.05
    assert decided.comparison.before > 0.2
    fresh = prediction_outcomes(better, "elapsed_s", run_records(later(40, 1.3, seed=5)))
    assert sum(run.predicted.low <= run.measured <= run.predicted.high for run in fresh) / 40 >= 0.75
    assert better.predict("host_memory_bytes", [runs[0].parameters]) == built[0].predict(
        "host_memory_bytes", [runs[0].parameters]
    )


def test_the_card_gives_the_time_reason_and_errors_of_a_refit(slowed):
    _, better, decided = slowed
    (line,) = better.card.refits
    assert (line.at, line.target) == ("2026-03-01T00:00:00+00:00", "elapsed_s")
    assert "drifted: since run" in line.why
    assert (line.before, line.after) == (decided.comparison.before, decided.comparison.after)
    assert "## Refits" in model_card_markdown(better.card)
    assert "2026-03-01 00:00: elapsed_s, " in model_card_markdown(better.card)


def test_a_refitted_model_is_not_refitted_again_on_the_same_runs(slowed, asked):
    runs, better, _ = slowed
    again, decided = decide(better, runs, asked)
    assert (decided.new_runs, decided.replaced) == (0, False)
    assert again.card == better.card


def test_few_runs_are_too_few_to_judge_by(built, asked):
    _, decided = decide(built[0], later(LEAST_NEW - 1, 2.0), asked)
    assert not decided.replaced
    assert f"{LEAST_NEW} are needed" in decided.reason


def test_a_failed_refit_waits_for_a_quarter_more_runs(built, asked):
    _, decided = decide(built[0], later(40), asked, previous_runs={"elapsed_s": 35})
    assert (decided.comparison, decided.reason) == (None, "it was reconsidered with 35 of these 40 runs")


def test_jobs_that_reach_their_limit_count_as_lower_bounds(built, asked):
    cut = []
    for run in later(30, 1.5, first=2000):
        told = built[0].predict("elapsed_s", [run_records([run])[0].features]).point[0]
        resources = replace(run.job.resources, walltime_s=1.2 * told)
        cut.append(replace(run, state=JobState.TIMEOUT, job=replace(run.job, resources=resources), measured={}))
    outcomes = prediction_outcomes(built[0], "elapsed_s", run_records(cut))
    assert all(
        outcome.censored and outcome.measured == pytest.approx(1.2 * outcome.predicted.point) for outcome in outcomes
    )
    _, decided = decide(built[0], [*later(30), *cut], asked)
    assert (decided.drift.detected, decided.drift.at_least) == (True, True)
