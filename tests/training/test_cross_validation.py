"""Splits keep every configuration on one side."""

from itertools import pairwise

import pytest
from made_runs import campaign, make_run

from leadline.core.jobs import JobState
from leadline.core.runs import Scale
from leadline.training.cross_validation import (
    cross_validation_folds,
    extrapolation_splits,
    hold_out_test_set,
    log_size,
    thin_samples,
    training_share,
)
from leadline.training.dataset import make_dataset
from leadline.training.records import run_records


def dataset(*arguments, **more):
    return make_dataset(run_records(campaign(*arguments, **more))).dataset


def names(samples):
    return {sample.configuration for sample in samples}


def test_repeats_stay_together_and_every_fold_is_held_out_once():
    samples = dataset(60, 20, repeats=3).samples
    parts = cross_validation_folds(samples, 5, seed=1)
    assert all(not names(part.fitted) & names(part.held_out) for part in parts)
    assert sorted(sample.run_id for sample in samples) == sorted(
        sample.run_id for part in parts for sample in part.held_out
    )
    assert all({Scale.SCALED_DOWN, Scale.FULL_SCALE} == {sample.scale for sample in part.held_out} for part in parts)


def test_the_test_set_takes_a_share_of_each_scale_with_enough_configurations():
    samples = dataset(60, 8).samples
    part = hold_out_test_set(samples, 0.2, seed=0)
    assert {Scale.SCALED_DOWN} == {sample.scale for sample in part.held_out}
    assert round(0.2 * len(names(s for s in samples if s.scale is Scale.SCALED_DOWN))) == len(names(part.held_out))
    assert not names(part.fitted) & names(part.held_out)


def test_a_split_depends_on_the_seed_and_not_on_the_order_of_the_runs():
    samples = dataset(60, 20).samples
    held = names(hold_out_test_set(samples, 0.2, seed=0).held_out)
    assert held == names(hold_out_test_set(samples[::-1], 0.2, seed=0).held_out)
    assert held != names(hold_out_test_set(samples, 0.2, seed=1).held_out)


def test_censored_runs_are_fitted_on_and_never_scored():
    runs = [*campaign(20, 0), *(make_run(100 + n, epochs=9 + n, state=JobState.TIMEOUT) for n in range(20))]
    samples = make_dataset(run_records(runs)).dataset.samples
    parts = cross_validation_folds(samples, 4, seed=0)
    assert not any(sample.censored for part in parts for sample in part.held_out)
    assert any(sample.censored for sample in parts[0].fitted)
    assert not any(sample.censored for sample in hold_out_test_set(samples, 0.2, seed=0).held_out)


def test_extrapolation_splits_hold_out_the_largest_configurations():
    found = dataset(60, 0)
    parts = extrapolation_splits(found.samples, ("epochs", "samples"), (0.5, 0.75))
    assert [part.blocked for part in parts] == [True, True]
    for part in parts:
        largest = max(log_size(sample, ("epochs", "samples")) for sample in part.fitted)
        assert largest < min(log_size(sample, ("epochs", "samples")) for sample in part.held_out)
    assert len(parts[0].fitted) < len(parts[1].fitted)


def test_without_scale_features_there_are_no_extrapolation_splits():
    samples = dataset(60, 0).samples
    assert extrapolation_splits(samples, (), (0.5,)) == ()
    assert extrapolation_splits(samples, ("nodes",), (0.5,)) == ()
    assert extrapolation_splits((), ("epochs",), (0.5,)) == ()
    assert len(extrapolation_splits(dataset(14, 0).samples, ("epochs", "samples"), (0.3, 0.75))) == 1


@pytest.mark.parametrize("most", [40, 100])
def test_thinning_keeps_whole_configurations_and_full_scale_runs_first(most):
    samples = dataset(100, 20, repeats=2).samples
    kept = thin_samples(samples, most, seed=0)
    assert len(kept) <= most + 8
    assert sum(sample.configuration in names(kept) for sample in samples) == len(kept)
    full = sum(one.scale is Scale.FULL_SCALE for one in kept)
    assert min(40, most // 2) <= full <= 40


def test_a_larger_share_contains_every_smaller_one_at_both_scales():
    samples = dataset(40, 12).samples
    shares = [names(training_share(samples, share, seed=0)) for share in (0.05, 0.2, 0.5, 1.0)]
    assert all(smaller < larger for smaller, larger in pairwise(shares))
    assert names(samples) == shares[-1]
    assert {Scale.SCALED_DOWN, Scale.FULL_SCALE} == {one.scale for one in training_share(samples, 0.01, seed=0)}
