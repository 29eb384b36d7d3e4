"""HARP is rebuilt as published, with its faults, so that comparisons are fair."""

import numpy as np
import pytest

from benchmarks.harp.harp_1_0 import SEED, build_harp
from leadline.core.errors import InvalidInput
from leadline.core.runs import Sample, Scale
from leadline.training.cross_validation import harp_adjustment
from leadline.uncertainty.metrics import underprediction


def run(epochs, width, kind="a", noise=1.0, **more):
    value = (0.5 + epochs * width * (0.02 if kind == "a" else 0.03)) * noise
    scale = Scale.FULL_SCALE if epochs > 10 else Scale.SCALED_DOWN
    return Sample({"epochs": epochs, "width": width, "kind": kind}, value, scale, startup_s=0.5, **more)


def history(seed=0, small=60, full=16):
    rng = np.random.default_rng(seed)

    def some(n, low, high):
        return [
            run(
                int(rng.integers(low, high)), int(rng.integers(1, 64)), str(rng.choice(["a", "b"])), rng.normal(1, 0.01)
            )
            for _ in range(n)
        ]

    return some(small, 1, 10), some(full, 50, 100)


def values(samples):
    return [sample.value for sample in samples]


def test_the_adjustment_is_the_mean_shortfall_to_two_digits():
    assert harp_adjustment(np.array([10.0, 10.0, 10.0, 10.0]), np.array([5.0, 8.76, 10.0, 20.0])) == 1.31
    assert harp_adjustment(np.array([10.0]), np.array([11.0])) == 1.0
    assert harp_adjustment(np.empty(0), np.empty(0)) == 1.0


def test_three_regressors_four_training_sets_and_two_adjustments_make_24_models():
    small, full = history()
    names = [model.name for model in build_harp(small + full[:8], full[8:]).models]
    assert len(set(names)) == 24
    assert "net SD+75%FS adjusted" in names


def named(build, name):
    return next(model for model in build.models if model.name == name)


def test_trees_fitted_on_scaled_down_runs_predict_nothing_longer():
    small, full = history()
    full = [sample for sample in full if sample.value > max(values(small))]
    tree = named(build_harp(small, full), "tree SD raw")
    assert underprediction(values(full), list(tree.predicted)) == 100.0


def test_without_full_scale_runs_there_is_one_training_set_and_nothing_to_adjust_by():
    small, full = history()
    models = build_harp(small, full).models
    assert len(models) == 6
    assert {1.0} == {model.adjustment for model in models}


def test_the_published_policy_is_scored_on_the_test_itself_and_the_clean_one_is_not():
    small, full = history()
    assert values(full[8:]) == list(build_harp(small + full[:8], full[8:]).judged_by)
    judged_by = build_harp(small + full[:8], full[8:], faithful=False).judged_by
    assert len(judged_by) == 2
    assert set(judged_by) <= set(values(full[:8]))


def test_the_published_build_drops_long_runs_as_outliers_and_the_clean_one_keeps_them():
    small, _ = history(small=40, full=0)
    long = [run(1000, width) for width in (58, 59, 61, 62)]
    asked = [run(1000, 60)]

    def tree(*, faithful):
        models = build_harp(small + long, [*asked, *small], faithful=faithful).models
        found = [
            model.predicted[0] for model in models if model.name.startswith("tree SD+") and model.name.endswith("raw")
        ]
        return max(found, default=0.0)

    assert 0.5 * asked[0].value > tree(faithful=True)
    assert asked[0].value == pytest.approx(tree(faithful=False), rel=0.05)


def test_published_predictions_depend_on_the_other_test_rows():
    small, full = history()
    alone = build_harp(small, full[:1])
    together = build_harp(small, [*full[:1], run(5000, 64, "b")])
    assert alone.models[2].predicted[0] != pytest.approx(together.models[2].predicted[0], rel=1e-6)
    clean = [build_harp(small, rows, faithful=False).models[2].predicted[0] for rows in (full[:1], full[:2])]
    assert clean[0] == pytest.approx(clean[1])


def test_the_custom_mode_multiplies_the_time_of_one_epoch_and_so_extrapolates():
    small, full = ([run(epochs, 10) for epochs in some] for some in (range(1, 10), (50, 100)))
    basic, custom = (
        list(named(build_harp(small, full, work=work), "tree SD raw").predicted) for work in (None, "epochs")
    )
    assert values(full) == pytest.approx(custom)
    assert [max(values(small))] * 2 == pytest.approx(basic)


def test_the_same_seed_builds_the_same_models():
    small, full = history()
    first, again = (build_harp(small + full[:8], full[8:], seed=SEED) for _ in range(2))
    assert all(np.array_equal(a.predicted, b.predicted) for a, b in zip(first.models, again.models, strict=True))


def test_censored_runs_are_left_out():
    small, full = history()
    cut = [run(5, 5, censored=True, noise=100.0)]
    with_cut, without = (build_harp(rows, full).models[0].predicted for rows in (small + cut, small))
    assert np.array_equal(with_cut, without)


def test_harp_cannot_learn_without_scaled_down_runs():
    _, full = history()
    with pytest.raises(InvalidInput, match="mark the small ones SD"):
        build_harp(full[:8], full[8:])


def test_the_custom_mode_needs_its_work_in_every_run():
    small, full = history()
    with pytest.raises(InvalidInput, match="'samples' in every run, and one has 'nothing'"):
        build_harp(small, full, work="samples")
