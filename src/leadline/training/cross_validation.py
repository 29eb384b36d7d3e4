"""Split samples by configuration, fit candidates on one part and predict the other part.

All repeats of a configuration fall into the same part, so no prediction is scored on a repeat of its training data.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import compress
from typing import Any

import numpy as np

from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Scale
from leadline.estimators.ports import Array, FittedEstimator, Predictions, TabularEstimator
from leadline.estimators.tabular.registry import median_prediction
from leadline.uncertainty.conformal import Residuals
from leadline.uncertainty.metrics import up_mape

LEAST_TO_TEST = 10
"""Configurations of a scale that a test set needs; a scale with fewer has none."""
LEAST_TO_EXTRAPOLATE = 8
"""Configurations that must remain for fitting when the largest ones are held out."""


class SampleSplit(Frozen):
    """Samples to fit on and samples to predict; ``blocked`` marks a split by size, which imitates extrapolation."""

    fitted: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    blocked: bool = False


def hold_out_test_set(samples: Sequence[Sample], share: float, seed: int) -> SampleSplit:
    """Hold out a share of the configurations of each scale; none of a scale below ``LEAST_TO_TEST``."""
    test: set[str] = set()
    # A censored run is only a lower bound: no prediction can be scored against it.
    censored = {sample.configuration for sample in samples if sample.censored}
    for part in _by_scale(samples):
        names = _shuffled_configurations(part, seed)
        if len(names) >= LEAST_TO_TEST:
            test |= set([name for name in names if name not in censored][: max(2, round(share * len(names)))])
    return _split(samples, test)


def cross_validation_folds(samples: Sequence[Sample], count: int, seed: int) -> tuple[SampleSplit, ...]:
    """Deal the configurations of each scale into ``count`` folds, each held out once; empty folds are dropped."""
    folds: list[set[str]] = [set() for _ in range(count)]
    for part in _by_scale(samples):
        for place, name in enumerate(_shuffled_configurations(part, seed)):
            folds[place % count].add(name)
    return tuple(_split(samples, fold) for fold in folds if fold)


def extrapolation_splits(
    samples: Sequence[Sample], scale_features: Sequence[str], shares: Sequence[float]
) -> tuple[SampleSplit, ...]:
    """Hold out the largest configurations, once for each share of configurations that remains for fitting.

    Splits that leave fewer than ``LEAST_TO_EXTRAPOLATE`` configurations are dropped, and there are none without
    ``scale_features`` or without samples.
    """
    if not scale_features or not samples:
        return ()
    sizes = {sample.configuration: log_size(sample, scale_features) for sample in samples}
    ranked = sorted(sizes.values())
    splits = []
    for share in shares:
        limit = ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]
        largest = {name for name, size in sizes.items() if size >= limit and size > ranked[0]}
        if largest and len(sizes) - len(largest) >= LEAST_TO_EXTRAPOLATE:
            splits.append(_split(samples, largest, blocked=True))
    return tuple(splits)


def training_share(samples: Sequence[Sample], share: float, seed: int) -> tuple[Sample, ...]:
    """Return a share of the configurations of each scale, at least one; a larger share contains every smaller one."""
    kept: set[str] = set()
    for part in _by_scale(samples):
        names = _shuffled_configurations(part, seed)
        kept |= set(names[: max(1, round(share * len(names)))])
    return tuple(sample for sample in samples if sample.configuration in kept)


def log_size(sample: Sample, scale_features: Sequence[str]) -> float:
    """Return the logarithm of the product of the scale features, the size by which runs are ordered."""
    values = [sample.features.get(name, 0.0) for name in scale_features]
    return sum(math.log(max(value, 1e-12)) for value in values if isinstance(value, int | float))


def thin_samples(samples: Sequence[Sample], most: int, seed: int) -> tuple[Sample, ...]:
    """Return about ``most`` samples in whole configurations; up to half of them are full-scale."""
    if len(samples) <= most:
        return tuple(samples)
    kept: set[str] = set()
    room = most
    full, down = _by_scale(samples)
    for part, part_room in ((full, max(most // 2, most - len(down))), (down, most)):
        counts, used = Counter(sample.configuration for sample in part), 0
        for name in _shuffled_configurations(part, seed):
            if used >= min(part_room, room):
                break
            kept.add(name)
            used += counts[name]
        room -= used
    return tuple(sample for sample in samples if sample.configuration in kept)


def _split(samples: Sequence[Sample], held_out: set[str], *, blocked: bool = False) -> SampleSplit:
    return SampleSplit(
        tuple(sample for sample in samples if sample.configuration not in held_out),
        tuple(sample for sample in samples if sample.configuration in held_out and not sample.censored),
        blocked,
    )


def _by_scale(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the full-scale and the scaled-down samples."""
    full, down = (
        [sample for sample in samples if sample.scale is scale] for scale in (Scale.FULL_SCALE, Scale.SCALED_DOWN)
    )
    return full, down


def _shuffled_configurations(samples: Sequence[Sample], seed: int) -> list[str]:
    # A hash orders each name by itself: adding a run leaves the order of the others as it was.
    names = {sample.configuration for sample in samples}
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())


class TrainingRuns(StrEnum):
    """Runs that an estimator is fitted on; ``ALL`` where the history has a single scale."""

    ALL = "all"
    SCALED_DOWN = "SD"
    BOTH = "SD + FS"
    UP_SAMPLED = "SD + FS up-sampled"


class ModelCandidate(Frozen):
    """An estimator fitted on one training set; ``adjusted`` multiplies its predictions by HARP's factor."""

    estimator: str
    training_set: TrainingRuns
    adjusted: bool = False

    @property
    def name(self) -> str:
        """Return the name in tables: ``boosting on SD + FS, adjusted``."""
        return f"{self.estimator} on {self.training_set}" + ", adjusted" * self.adjusted


def training_sets(samples: Sequence[Sample], *, all_runs: bool = False) -> tuple[TrainingRuns, ...]:
    """Return the training sets that the samples allow; only the largest one with ``all_runs``."""
    scales = [sample.scale for sample in samples if not sample.censored]
    down, full = scales.count(Scale.SCALED_DOWN), scales.count(Scale.FULL_SCALE)
    if not down or not full:
        return (TrainingRuns.ALL,)
    if all_runs:
        return (TrainingRuns.BOTH,)
    standard = (TrainingRuns.SCALED_DOWN, TrainingRuns.BOTH)
    # Drawing fewer than a fifth of the full-scale runs again would hardly change the fit.
    return (*standard, TrainingRuns.UP_SAMPLED) if full < 0.8 * down else standard


def fitting_samples(samples: Sequence[Sample], training_set: TrainingRuns, seed: int) -> tuple[Sample, ...]:
    """Return the samples of a training set.

    Up-sampling draws full-scale runs with replacement, as HARP does, until both scales are equally many. Every
    full-scale run stays in the set at least once.
    """
    full, down = _by_scale(samples)
    if training_set is TrainingRuns.SCALED_DOWN:
        return tuple(down)
    missing = len(down) - len(full)
    if training_set is not TrainingRuns.UP_SAMPLED or missing <= 0 or not full:
        return tuple(samples)
    draw = random.Random(seed)  # noqa: S311 - a training set must repeat, not be secret
    return (*down, *full, *draw.choices(full, k=missing))


def harp_adjustment(measured: Array, predicted: Array) -> float:
    """Return HARP's factor: 1 + the mean relative error of the under-predicted runs, rounded to two digits.

    Source: HARP 1.0 (Vallabhajosyula and Ramnath, PEARC 2023).
    """
    return 1 + round(up_mape(measured.tolist(), predicted.tolist()) / 100, 2) if len(measured) else 1.0


class OutOfFoldPredictions(Frozen):
    """A candidate's predictions for samples that its fits did not see; arrays of shape (n,) in their order.

    ``spread`` and ``beyond`` are as in ``Predictions``. ``fold`` is the number of the split in which a sample was held
    out, and ``blocked`` says that the splits were by size.
    """

    samples: tuple[Sample, ...]
    point: Array
    spread: Array
    beyond: Array
    fold: Array
    blocked: bool = False

    @property
    def measured(self) -> Array:
        """Return the measured values."""
        return np.array([sample.value for sample in self.samples])

    @property
    def scales(self) -> list[str]:
        """Return the scale of each sample."""
        return [sample.scale.value for sample in self.samples]

    def residuals(self) -> Residuals:
        """Return the errors, grouped by scale."""
        return Residuals.of(
            self.measured,
            self.point,
            spread=self.spread,
            beyond=self.beyond,
            scale=self.scales,
            blocked=self.blocked,
            configuration=[sample.configuration for sample in self.samples],
        )

    def times(self, factors: Array | float) -> "OutOfFoldPredictions":
        """Return the predictions multiplied by their factors."""
        return replace(self, point=self.point * factors)

    def at(self, rows: Array) -> "OutOfFoldPredictions":
        """Return the predictions where the mask ``rows`` is true."""
        arrays = {name: getattr(self, name)[rows] for name in _ARRAYS}
        return replace(self, samples=tuple(compress(self.samples, rows)), **arrays)


_ARRAYS = ("point", "spread", "beyond", "fold")


class CandidateRecipe(Frozen):
    """A candidate with the estimator to fit for it, and how to fit that."""

    candidate: ModelCandidate
    estimator: TabularEstimator
    scale_features: Sequence[str]
    seed: int

    def fit(self, samples: Sequence[Sample]) -> FittedEstimator:
        """Fit on the candidate's training set, taken from ``samples``."""
        training = fitting_samples(samples, self.candidate.training_set, self.seed)
        return self.estimator.fit(training, scale_features=self.scale_features, seed=self.seed)

    def predict_split(self, split: SampleSplit, number: int) -> OutOfFoldPredictions:
        """Fit on a split and predict its held-out samples; they get its number."""
        return predict_held_out(self.fit(split.fitted), split.held_out, fold=number, blocked=split.blocked)

    def predict_out_of_fold(self, splits: Sequence[SampleSplit]) -> OutOfFoldPredictions:
        """Fit on each split and predict its held-out samples."""
        return join_predictions(
            [self.predict_split(split, number) for number, split in enumerate(splits) if split.held_out]
        )


def join_predictions(parts: Sequence[OutOfFoldPredictions]) -> OutOfFoldPredictions:
    """Concatenate the predictions of several folds."""
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return replace(parts[0], samples=tuple(sample for part in parts for sample in part.samples), **arrays)


def predict_held_out(
    fitted: FittedEstimator, samples: Sequence[Sample], *, fold: int = 0, blocked: bool = False
) -> OutOfFoldPredictions:
    """Predict held-out samples."""
    predicted = fitted.predict([sample.features for sample in samples])
    folds = np.full(len(samples), fold)
    return OutOfFoldPredictions(
        tuple(samples), predicted.point, predicted.spread, predicted.extrapolation, folds, blocked
    )


def median_out_of_fold(members: Sequence[OutOfFoldPredictions]) -> OutOfFoldPredictions:
    """Return an ensemble's predictions from those of its members for the same samples."""
    median = median_prediction([Predictions(member.point, member.spread, member.beyond) for member in members])
    return replace(members[0], point=median.point, spread=median.spread, beyond=median.extrapolation)


def cross_adjustments(predictions: OutOfFoldPredictions) -> Array:
    """Return HARP's adjustment for each prediction, computed from the other folds alone."""
    factors = np.ones(len(predictions.samples))
    measured = predictions.measured
    for fold in np.unique(predictions.fold):
        in_fold = predictions.fold == fold
        basis = ~in_fold if (~in_fold).any() else in_fold
        factors[in_fold] = harp_adjustment(measured[basis], predictions.point[basis])
    return factors
