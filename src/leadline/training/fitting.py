"""From the samples of one target to a fitted estimator with its interval: split, select, calibrate, test, refit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.runs import Sample, Scale, TrainingSet
from leadline.estimators.ports import Array, FittedEstimator, TabularEstimator
from leadline.training.candidate_race import Progress, task_runner
from leadline.training.cross_validation import (
    OutOfFoldPredictions,
    SampleSplit,
    cross_validation_folds,
    extrapolation_splits,
    fit_candidate,
    hold_out_test_set,
    predict_held_out,
    predict_out_of_fold,
    thin_samples,
    training_share,
)
from leadline.training.dataset import TrainingData
from leadline.training.model_card import ErrorMetrics
from leadline.training.selection import Selection, select_candidate
from leadline.uncertainty.conformal import IntervalCalibration, Residuals, calibrate
from leadline.uncertainty.metrics import coverage, mae, mape, ov_mape, underprediction

FOLDS, FEWER_FOLDS = 5, 3
"""Of few samples and of many."""
MANY = 400
TEST_SHARE = 0.2
LEVEL = 0.9
CUTS = (0.5, 0.75)
"""Shares of the configurations, by size, below which one fits and above which one predicts: an extrapolation."""
FEW_TO_JUDGE = 15
"""Full-scale configurations below which candidates are judged by extrapolations of the scaled-down runs besides."""
MOST_TO_SELECT, OF_LARGE = 500, 250
"""Samples on which candidates are compared, fewer where there are many; the chosen one is fitted on all."""
LARGE, SLOW = 3000, ("network",)
"""Above so many samples, these estimators are left out: they take longest to fit and gain least over the others."""
OF_UNITS = ("unit_law", "fixed_unit_law")
"""Where no units of work were watched, these estimators are left out: they learn nothing else."""
FEW_CONFIGURATIONS = 30
"""Below so many, the history is called small."""


@dataclass(frozen=True, slots=True)
class IntervalPredictions:
    """What was predicted for runs that were not learned from, with its interval; the arrays of a plot."""

    predicted: OutOfFoldPredictions
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class TrainedTarget:
    """A fitted target, and everything its card says of it.

    ``tested`` maps a scale to the errors on the test runs, ``validated`` to those out of fold. ``factor`` is HARP's
    adjustment, 1 where the chosen candidate has none. ``validation`` and ``test`` are what the plots show.
    """

    data: TrainingData
    selection: Selection
    fitted: FittedEstimator
    factor: float
    calibration: IntervalCalibration
    tested: dict[str, ErrorMetrics]
    validated: dict[str, ErrorMetrics]
    validation: IntervalPredictions
    test: IntervalPredictions | None
    notes: tuple[str, ...]


def train_target(
    data: TrainingData,
    estimators: Mapping[str, TabularEstimator],
    *,
    policy: str = "mape",
    seed: int = 0,
    jobs: int | None = 1,
    progress: Progress = lambda *_: None,
) -> TrainedTarget:
    """Choose, calibrate and test an estimator for a target, then fit it again on all runs.

    It takes ``jobs`` processes; ``None`` is one for each core.

    The test runs take part in nothing before they are scored, once. Afterwards the recipe is fitted on them too, and
    their errors join those that the interval is made of.

    Raises:
        InvalidInput: no estimator can be fitted on so few runs.
        UnknownName: there is no such policy.
    """
    dataset, carries = data.dataset, data.dataset.scale_features
    parts, run = _parted(dataset, seed), task_runner(jobs)
    without = (*(SLOW if parts.many else ()),
               *(() if any(one.units for one in dataset.samples) else OF_UNITS))  # fmt: skip
    compared = {name: one for name, one in estimators.items() if name not in without} or estimators
    selection = select_candidate(
        parts.beyond if parts.extrapolates else parts.inside,
        compared,
        policy,
        few=parts.few,
        many=parts.many,
        extrapolations=parts.extrapolations,
        scale_features=carries,
        seed=seed,
        run=run,
        progress=progress,
    )
    recipe = selection.recipe
    progress(f"calibrating {selection.winner.name}", 1, 1)

    def predict(partings: Sequence[SampleSplit]) -> OutOfFoldPredictions:
        return predict_out_of_fold(selection.winner, recipe, partings, scale_features=carries, seed=seed)

    factor = selection.factor
    inside_said = predict(parts.inside) if parts.extrapolates else selection.predicted
    errors = [inside_said.residuals()]
    if largest := _where_it_can_be_fitted(predict, parts.beyond):
        errors.append(largest.times(np.full(len(largest.samples), factor)).residuals())
    validation = _cross_intervals(inside_said, errors[1:])
    test = None
    without_test = [parts.kept.fitted] if parts.kept.held_out else []
    fits = [partial(fit_candidate, selection.winner, recipe, samples, scale_features=carries, seed=seed)
            for samples in (*without_test, dataset.samples)]  # fmt: skip
    *fitted, whole = run(fits)
    if fitted:
        said = predict_held_out(fitted[0], parts.kept.held_out)
        said = said.times(np.full(len(said.samples), factor))
        test = _with_interval(said, calibrate(Residuals.joined(*errors)))
        errors.append(said.residuals())
    return TrainedTarget(
        data,
        selection,
        whole,
        factor,
        calibrate(Residuals.joined(*errors)),
        errors_by_scale(test) if test else {},
        errors_by_scale(validation),
        validation,
        test,
        _notes(data, extrapolates=parts.extrapolates, tested=test is not None, thinned_to=_fewer(parts)),
    )


@dataclass(frozen=True, slots=True)
class _Parted:
    """The test and the rest; of the rest the samples on which candidates are ``compared``, and how these are parted.

    ``extrapolates`` says that there is no full-scale run to judge by; where there are ``few``, ``extrapolations`` of
    the scaled-down runs are judged besides. ``many`` says that fewer are compared than there are.
    """

    kept: SampleSplit
    compared: tuple[Sample, ...]
    inside: tuple[SampleSplit, ...]
    beyond: tuple[SampleSplit, ...]
    extrapolates: bool
    few: bool
    many: bool
    extrapolations: tuple[SampleSplit, ...]


def _parted(dataset: TrainingSet, seed: int) -> _Parted:
    carries = dataset.scale_features
    kept = hold_out_test_set(dataset.samples, TEST_SHARE, seed)
    many = len(dataset.samples) > LARGE
    compared = thin_samples(kept.fitted, OF_LARGE if many else MOST_TO_SELECT, seed)
    inside = cross_validation_folds(compared, FEWER_FOLDS if many or len(compared) > MANY else FOLDS, seed)
    beyond = extrapolation_splits(compared, carries, CUTS)
    small = [one for one in compared if one.scale is Scale.SCALED_DOWN]
    few = 0 < _configurations(compared) - _configurations(small) < FEW_TO_JUDGE
    return _Parted(
        kept,
        compared,
        inside,
        beyond,
        bool(beyond) and not dataset.at(Scale.FULL_SCALE),
        few,
        many,
        extrapolation_splits(small, carries, CUTS) if few else (),
    )


def errors_by_scale(said: IntervalPredictions) -> dict[str, ErrorMetrics]:
    """Return the errors of each scale that was predicted."""
    found = {}
    scales = np.array([one.scale.value for one in said.predicted.samples])
    for scale in Scale:
        mine = scales == scale.value
        if not mine.any():
            continue
        part = said.predicted.at(mine)
        measured, points = part.measured.tolist(), part.point.tolist()
        low, high = said.low[mine].tolist(), said.high[mine].tolist()
        found[scale.value] = ErrorMetrics(
            len(measured),
            len({one.configuration for one in part.samples}),
            mape(measured, points),
            mae(measured, points),
            underprediction(measured, points),
            ov_mape(measured, points),
            coverage(measured, low, high),
            float(np.median(said.high[mine] / part.measured)),
        )
    return found


def _where_it_can_be_fitted(
    predict: Callable[[Sequence[SampleSplit]], OutOfFoldPredictions], partings: Sequence[SampleSplit]
) -> OutOfFoldPredictions | None:
    """Return what is predicted of the largest runs, from as few smaller ones as the estimator can be fitted on."""
    for start in range(len(partings)):
        try:
            return predict(partings[start:])
        except InvalidInput:  # too few runs below this cut
            continue
    return None


def _with_interval(said: OutOfFoldPredictions, calibration: IntervalCalibration) -> IntervalPredictions:
    scales = [one.scale.value for one in said.samples]
    low, high = calibration.interval(said.point, said.spread, said.beyond, scales, LEVEL)
    return IntervalPredictions(said, np.minimum(low, said.point), np.maximum(high, said.point))


def _cross_intervals(said: OutOfFoldPredictions, others: Sequence[Residuals]) -> IntervalPredictions:
    """Return the intervals of predictions out of fold, each learned from the other folds."""
    low, high = np.array(said.point), np.array(said.point)
    residuals = said.residuals()
    for fold in np.unique(said.fold):
        mine = said.fold == fold
        if (~mine).any():
            found = _with_interval(said.at(mine), calibrate(Residuals.joined(residuals.at(~mine), *others)))
            low[mine], high[mine] = found.low, found.high
    return IntervalPredictions(said, low, high)


def _fewer(parts: _Parted) -> int | None:
    """Return on how many samples candidates were compared, where not on all but the test's."""
    return len(parts.compared) if len(parts.compared) < len(parts.kept.fitted) else None


def _notes(data: TrainingData, *, extrapolates: bool, tested: bool, thinned_to: int | None) -> tuple[str, ...]:
    """Return what a user should know before relying on the model, a sentence each."""
    samples = data.dataset.samples
    notes = []
    configurations = _configurations(samples)
    full = _configurations(data.dataset.at(Scale.FULL_SCALE))
    down = _configurations(data.dataset.at(Scale.SCALED_DOWN))
    if configurations < FEW_CONFIGURATIONS:
        notes.append(
            f"the history is small ({configurations} configurations), so the intervals are wide: "
            f"{FEW_CONFIGURATIONS} or more make them tighter"
        )
    if extrapolates:
        notes.append(
            "no full-scale run was made: what is said beyond the scaled-down runs rests on how the largest of them "
            "were predicted from smaller ones; a few full-scale runs make it far surer"
        )
    elif down and full and full < 10:
        notes.append(f"only {full} full-scale configurations were run: a few more make full-scale predictions surer")
    if down and not full and not data.dataset.scale_features:
        notes.append("no feature is known to carry scale: name it with --scale, and larger runs are told from smaller")
    if not tested:
        notes.append("there are too few configurations to hold any out for a test: the errors are those out of fold")
    if thinned_to is not None:
        notes.append(f"candidates were compared on {thinned_to} of {len(samples)} samples; the chosen one has all")
    if len(samples) > LARGE:
        notes.append(f"of so many runs {', '.join(SLOW)} was not compared: it takes longest to fit")
    return tuple(notes)


def _configurations(samples: Sequence[Sample]) -> int:
    return len({one.configuration for one in samples})


LEARNING_CURVE_SHARES = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""Shares of the runs of each scale that are learned from."""
LEARNING_CURVE_FOLDS = 3


@dataclass(frozen=True, slots=True)
class LearningCurvePoint:
    """Learned from runs that took ``cost_s`` seconds to make: the error in percent on those held out, and how many."""

    cost_s: float
    runs: int
    mape: float


def learning_curve(one: TrainedTarget, seed: int = 0) -> tuple[LearningCurvePoint, ...]:
    """Return the steps of growing cost that the chosen estimator can be fitted on.

    Each learns from a share of the configurations of each scale, and is scored on the full-scale runs (all, where there
    are none) of folds held out.
    """
    data = one.data.dataset
    partings = cross_validation_folds(data.samples, LEARNING_CURVE_FOLDS, seed)
    found: list[LearningCurvePoint] = []
    for share in LEARNING_CURVE_SHARES:
        costs, runs, errors = [], [], []
        for parting in partings:
            part = training_share(parting.fitted, share, seed)
            held = [each for each in parting.held_out if each.scale is Scale.FULL_SCALE] or list(parting.held_out)
            try:
                fitted = fit_candidate(
                    one.selection.winner,
                    one.selection.recipe,
                    part,
                    scale_features=data.scale_features,
                    seed=seed,
                )
            except InvalidInput:  # too few runs for this estimator: the curve begins later
                continue
            said = predict_held_out(fitted, held)
            errors.append(mape(said.measured.tolist(), (said.point * one.factor).tolist()))
            costs.append(sum(each.cost_s for each in part))
            runs.append(len(part))
        if len(errors) == len(partings) and (not found or sum(runs) > found[-1].runs * len(runs)):
            found.append(
                LearningCurvePoint(sum(costs) / len(costs), round(sum(runs) / len(runs)), sum(errors) / len(errors))
            )
    return tuple(found)
