"""Fit one target: split the samples, select a candidate, calibrate its interval, test it, and fit it on all runs."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Scale, TrainingSet
from leadline.estimators.ports import Array, FittedEstimator, TabularEstimator
from leadline.training.candidate_race import task_runner
from leadline.training.cross_validation import (
    CandidateRecipe,
    OutOfFoldPredictions,
    SampleSplit,
    cross_validation_folds,
    extrapolation_splits,
    hold_out_test_set,
    predict_held_out,
    thin_samples,
    training_share,
)
from leadline.training.dataset import DEFAULTS, TrainingData
from leadline.training.model_card import ErrorMetrics
from leadline.training.records import Progress, TrainingOptions
from leadline.training.selection import Selection, select_candidate
from leadline.uncertainty.conformal import IntervalCalibration, Residuals, calibrate
from leadline.uncertainty.metrics import coverage, mae, mape, ov_mape, underprediction

FOLDS, FEWER_FOLDS = 5, 3
"""Cross-validation folds, of up to ``MANY`` samples and of more."""
MANY = 400
TEST_SHARE = 0.2
LEVEL = 0.9
CUTS = (0.5, 0.75)
"""Shares of the configurations, by size, to fit on when the larger ones are predicted."""
FEW_TO_JUDGE = 15
"""With fewer full-scale configurations, extrapolations of the scaled-down runs are judged too."""
MOST_TO_SELECT, OF_LARGE = 500, 250
"""Samples on which candidates are compared, of normal and of large data sets; the winner is fitted on all."""
LARGE, SLOW = 3000, ("network",)
"""Above so many samples these estimators are left out: they take longest to fit and gain least over the others."""
OF_UNITS = ("unit_law", "fixed_unit_law")
"""Estimators left out where no run reported units of work: they learn from nothing else."""
FEW_CONFIGURATIONS = 30
"""Below so many configurations, a note on the card calls the history small."""
LEARNING_CURVE_SHARES = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""Shares of the training runs of each scale, one for each point of a learning curve."""
LEARNING_CURVE_FOLDS = 3


class IntervalPredictions(Frozen):
    """Predictions of held-out runs with their interval; ``low`` and ``high`` have shape (n,)."""

    predicted: OutOfFoldPredictions
    low: Array
    high: Array

    def by_scale(self) -> Iterator[tuple[Scale, "IntervalPredictions"]]:
        """Yield each predicted scale with the predictions of its runs."""
        for scale in Scale:
            rows = np.array([sample.scale is scale for sample in self.predicted.samples])
            if rows.any():
                yield scale, IntervalPredictions(self.predicted.at(rows), self.low[rows], self.high[rows])


class TrainedTarget(Frozen):
    """A fitted target, and everything its card says about it; the plots show ``validation`` and ``test``.

    ``tested`` and ``validated`` map a scale to the errors on the test runs and out of fold.
    """

    data: TrainingData
    selection: Selection
    fitted: FittedEstimator
    calibration: IntervalCalibration
    tested: dict[str, ErrorMetrics]
    validated: dict[str, ErrorMetrics]
    validation: IntervalPredictions
    test: IntervalPredictions | None
    notes: tuple[str, ...]


def train_target(
    data: TrainingData,
    estimators: Mapping[str, TabularEstimator],
    options: TrainingOptions = DEFAULTS,
    progress: Progress = lambda *_: None,
) -> TrainedTarget:
    """Choose, calibrate and test an estimator for a target, then fit it again on all runs.

    The test runs are scored once, and take part in nothing before that. Afterwards the estimator is fitted on them too,
    and their errors join those that the interval is made of.

    Raises:
        InvalidInput: no estimator can be fitted on so few runs.
        UnknownName: no such policy.
    """
    dataset, seed, run = data.dataset, options.seed, task_runner(options.jobs)
    splits = _split_all(dataset, seed)
    selection = select_candidate(
        splits.by_size if splits.extrapolates else splits.folds,
        _without_slow(estimators, dataset, many=splits.many),
        options.policy,
        few=splits.few,
        many=splits.many,
        extrapolations=splits.extrapolations,
        scale_features=dataset.scale_features,
        seed=seed,
        run=run,
        progress=progress,
    )
    recipe, factor = selection.recipe, selection.factor
    progress(f"calibrating {selection.winner.name}", 1, 1)
    folds = recipe.predict_out_of_fold(splits.folds) if splits.extrapolates else selection.predicted
    errors = [folds.residuals()]
    if largest := _predict_largest(recipe, splits.by_size):
        errors.append(largest.times(factor).residuals())
    validation, test = _cross_intervals(folds, errors[1:]), None
    parts = [splits.test.fitted, dataset.samples] if splits.test.held_out else [dataset.samples]
    *fitted, final = run([partial(recipe.fit, samples) for samples in parts])
    if fitted:
        tested = predict_held_out(fitted[0], splits.test.held_out).times(factor)
        # The test's own errors join only after its interval is made.
        test = _with_interval(tested, calibrate(Residuals.joined(*errors)))
        errors.append(tested.residuals())
    return TrainedTarget(
        data, selection, final, calibrate(Residuals.joined(*errors)), errors_by_scale(test) if test else {},
        errors_by_scale(validation), validation, test, _notes(data, splits),
    )  # fmt: skip


def _without_slow(
    estimators: Mapping[str, TabularEstimator], dataset: TrainingSet, *, many: bool
) -> Mapping[str, TabularEstimator]:
    """Return the estimators that are worth comparing on the samples."""
    left_out: tuple[str, ...] = SLOW if many else ()
    if not any(sample.units for sample in dataset.samples):
        left_out += OF_UNITS
    return {name: recipe for name, recipe in estimators.items() if name not in left_out} or estimators


class _Splits(Frozen):
    """All splits of a data set; ``folds`` and ``by_size`` are of the ``compared`` samples."""

    test: SampleSplit  # the test set, and the samples that remain
    compared: tuple[Sample, ...]  # of the remaining ones, those on which candidates are compared
    folds: tuple[SampleSplit, ...]
    by_size: tuple[SampleSplit, ...]
    extrapolates: bool  # there is no full-scale run to judge by; ``few``: there are few
    few: bool
    many: bool  # candidates are compared on a small part of a large data set
    extrapolations: tuple[SampleSplit, ...]  # of the scaled-down runs by size, judged too where full-scale runs are few


def _split_all(dataset: TrainingSet, seed: int) -> _Splits:
    scale_features = dataset.scale_features
    test = hold_out_test_set(dataset.samples, TEST_SHARE, seed)
    many = len(dataset.samples) > LARGE
    compared = thin_samples(test.fitted, OF_LARGE if many else MOST_TO_SELECT, seed)
    folds = cross_validation_folds(compared, FEWER_FOLDS if many or len(compared) > MANY else FOLDS, seed)
    by_size = extrapolation_splits(compared, scale_features, CUTS)
    small = [sample for sample in compared if sample.scale is Scale.SCALED_DOWN]
    few = 0 < _configurations(compared) - _configurations(small) < FEW_TO_JUDGE
    extrapolates = bool(by_size) and not dataset.at(Scale.FULL_SCALE)
    extrapolations = extrapolation_splits(small, scale_features, CUTS) if few else ()
    return _Splits(test, compared, folds, by_size, extrapolates, few, many, extrapolations)


def errors_by_scale(predictions: IntervalPredictions) -> dict[str, ErrorMetrics]:
    """Return the errors of each predicted scale."""
    errors = {}
    for scale, part in predictions.by_scale():
        measured, points = part.predicted.measured.tolist(), part.predicted.point.tolist()
        errors[scale.value] = ErrorMetrics(
            len(measured),
            _configurations(part.predicted.samples),
            mape(measured, points),
            mae(measured, points),
            underprediction(measured, points),
            ov_mape(measured, points),
            coverage(measured, part.low.tolist(), part.high.tolist()),
            float(np.median(part.high / part.predicted.measured)),
        )
    return errors


def _predict_largest(recipe: CandidateRecipe, splits: Sequence[SampleSplit]) -> OutOfFoldPredictions | None:
    """Predict the largest runs, from as few smaller ones as the estimator can be fitted on."""
    for start in range(len(splits)):
        try:
            return recipe.predict_out_of_fold(splits[start:])
        except InvalidInput:  # too few runs below this cut
            continue
    return None


def _with_interval(predictions: OutOfFoldPredictions, calibration: IntervalCalibration) -> IntervalPredictions:
    point = predictions.point
    low, high = calibration.interval(point, predictions.spread, predictions.beyond, predictions.scales, LEVEL)
    return IntervalPredictions(predictions, np.minimum(low, point), np.maximum(high, point))


def _cross_intervals(predictions: OutOfFoldPredictions, extrapolated: Sequence[Residuals]) -> IntervalPredictions:
    """Return the out-of-fold predictions with intervals; each fold's interval is calibrated on the other folds."""
    low, high = np.array(predictions.point), np.array(predictions.point)
    residuals = predictions.residuals()
    for fold in np.unique(predictions.fold):
        in_fold = predictions.fold == fold
        if (~in_fold).any():
            calibration = calibrate(Residuals.joined(residuals.at(~in_fold), *extrapolated))
            part = _with_interval(predictions.at(in_fold), calibration)
            low[in_fold], high[in_fold] = part.low, part.high
    return IntervalPredictions(predictions, low, high)


def _notes(data: TrainingData, splits: _Splits) -> tuple[str, ...]:
    notes, samples = [], data.dataset.samples
    configurations = _configurations(samples)
    full, down = (_configurations(data.dataset.at(scale)) for scale in (Scale.FULL_SCALE, Scale.SCALED_DOWN))
    if configurations < FEW_CONFIGURATIONS:
        notes.append(
            f"the history is small ({configurations} configurations), so the intervals are wide: "
            f"{FEW_CONFIGURATIONS} or more make them tighter"
        )
    if splits.extrapolates:
        notes.append(
            "no full-scale run was made: larger runs are predicted as well as smaller runs predicted the largest "
            "scaled-down ones; a few full-scale runs make this far surer"
        )
    elif down and full and full < 10:
        notes.append(f"only {full} full-scale configurations were run: a few more make full-scale predictions surer")
    if down and not full and not data.dataset.scale_features:
        notes.append("no feature is known to carry scale: name it with --scale to predict larger runs from smaller")
    if not splits.test.held_out:
        notes.append("there are too few configurations to hold any out for a test: the errors are out of fold")
    if len(splits.compared) < len(splits.test.fitted):
        compared = len(splits.compared)
        notes.append(f"candidates were compared on {compared} of {len(samples)} samples; the winner is fitted on all")
    if splits.many:
        notes.append(f"{', '.join(SLOW)} was not compared on so many runs: it takes longest to fit")
    return tuple(notes)


def _configurations(samples: Sequence[Sample]) -> int:
    return len({sample.configuration for sample in samples})


class LearningCurvePoint(Frozen):
    """The error on held-out runs, in percent, after training on ``runs`` runs that took ``cost_s`` seconds."""

    cost_s: float
    runs: int
    mape: float


def learning_curve(trained: TrainedTarget) -> tuple[LearningCurvePoint, ...]:
    """Return the error of the chosen estimator after training on growing shares of the runs.

    Each point is scored on the held-out full-scale runs, or on all held-out runs where none is full-scale. The curve
    begins at the smallest share on which the estimator can be fitted.
    """
    recipe = trained.selection.recipe
    splits = cross_validation_folds(trained.data.dataset.samples, LEARNING_CURVE_FOLDS, recipe.seed)
    curve: list[LearningCurvePoint] = []
    for share in LEARNING_CURVE_SHARES:
        costs, runs, errors = [], [], []
        for split in splits:
            part = training_share(split.fitted, share, recipe.seed)
            scored = [sample for sample in split.held_out if sample.scale is Scale.FULL_SCALE] or list(split.held_out)
            try:
                fitted = recipe.fit(part)
            except InvalidInput:  # too few runs for this estimator: the curve begins later
                continue
            predicted = predict_held_out(fitted, scored)
            errors.append(mape(predicted.measured.tolist(), (predicted.point * trained.selection.factor).tolist()))
            costs.append(sum(sample.cost_s for sample in part))
            runs.append(len(part))
        count = len(splits)
        if len(errors) == count and (not curve or sum(runs) > curve[-1].runs * count):
            curve.append(LearningCurvePoint(sum(costs) / count, round(sum(runs) / count), sum(errors) / count))
    return tuple(curve)
