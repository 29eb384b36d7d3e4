"""From samples to a tested model with its interval."""

import numpy as np
import pytest
from made_runs import campaign, make_run, walltime_s

from leadline.core.runs import Scale
from leadline.training.build import TrainingOrigin, build_model, measured_targets
from leadline.training.dataset import make_dataset
from leadline.training.fitting import train_target
from leadline.training.records import TrainingOptions, run_records

ORIGIN = TrainingOrigin("test", "2026-01-02", "leadline train test")


def train(runs, quick, **more):
    return train_target(make_dataset(run_records(runs), options=TrainingOptions(**more)), quick)


def test_a_scaling_law_fitted_on_both_scales_is_accurate_on_held_out_runs(built):
    _, (elapsed, memory) = built
    assert elapsed.tested["FS"].mape < 5
    assert memory.tested["SD"].mape < 5
    assert elapsed.validated["FS"].configurations + elapsed.tested["FS"].configurations == 24
    assert elapsed.selection.winner.estimator == "scaling_law"


def test_test_runs_are_not_among_the_validation_runs(built):
    _, (elapsed, _) = built
    tested = {sample.configuration for sample in elapsed.test.predicted.samples}
    assert tested
    assert not tested & {sample.configuration for sample in elapsed.validation.predicted.samples}


def test_intervals_contain_their_points_and_about_nine_of_ten_runs(quick):
    covered = []
    for seed in range(12):
        done = train(campaign(60, 20, seed=seed, noise=0.03), {"linear": quick["linear"]})
        for part in (done.validation, done.test):
            assert (part.low <= part.predicted.point).all()
            assert (part.predicted.point <= part.high).all()
            covered += list((part.low <= part.predicted.measured) & (part.predicted.measured <= part.high))
    assert 0.85 <= np.mean(covered) <= 0.97


def test_scaled_down_runs_alone_are_judged_by_extrapolation_with_a_note(quick):
    done = train(campaign(60, 0), quick, scale_features=("epochs", "samples"))
    assert "largest runs" in done.selection.judged_on
    assert any("no full-scale run was made" in note for note in done.notes)


def test_a_small_history_has_a_note_and_no_test_set(quick):
    done = train([make_run(n, epochs=n + 1, scale=Scale.FULL_SCALE) for n in range(8)], quick)
    assert done.tested == {}
    assert any("the history is small (8 configurations)" in note for note in done.notes)
    assert any("too few configurations to hold any out" in note for note in done.notes)


def test_a_small_history_has_wider_intervals_than_a_large_one(quick, built):
    model, _ = build_model(run_records(campaign(10, 3, seed=2)), quick, ORIGIN, TrainingOptions(("elapsed_s",)))
    large, _ = built
    row = {"epochs": 40, "samples": 60000, "kind": "a", "cores": 2}
    few, many = model.predict("elapsed_s", [row]), large.predict("elapsed_s", [row])
    assert np.log(few.high[0] / few.low[0]) > 1.5 * np.log(many.high[0] / many.low[0])
    assert few.low[0] <= walltime_s(40, 60000, 2) <= few.high[0]
    assert many.high[0] / many.low[0] < 1.2


def test_a_few_runs_at_full_scale_alone_are_trained_on(quick):
    trained = train(campaign(0, 10), quick, scale_features=("epochs", "samples"))
    assert trained.validated["FS"].configurations > 0


def test_the_default_targets_are_those_of_every_completed_run(quick):
    assert measured_targets(run_records(campaign(5, 5))) == ("elapsed_s", "host_memory_bytes")


def test_the_same_seed_makes_the_same_model(quick, built):
    again, _ = build_model(run_records(campaign(80, 24)), quick, ORIGIN, TrainingOptions(("host_memory_bytes",)))
    row = {"epochs": 30, "samples": 50000, "kind": "b", "cores": 1}
    assert again.predict("host_memory_bytes", [row]) == built[0].predict("host_memory_bytes", [row])


@pytest.mark.parametrize("policy", ["mae", "wtm", "pinball", "cost"])
def test_every_policy_chooses_and_gives_its_reason(quick, policy):
    data = make_dataset(run_records(campaign(40, 12)))
    done = train_target(data, {"linear": quick["linear"]}, TrainingOptions(policy=policy))
    assert done.selection.reason.startswith(done.selection.winner.name)
    if policy == "wtm":
        assert done.selection.scores[0].upp == min(score.upp for score in done.selection.scores)
