"""Part samples by configuration, so that no repeat of what was learned from is ever predicted."""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from leadline.core.runs import Sample, Scale
from leadline.estimators.ports import Array, FittedEstimator, Predictions, TabularEstimator
from leadline.estimators.tabular.registry import median_prediction
from leadline.uncertainty.conformal import Residuals
from leadline.uncertainty.metrics import up_mape

LEAST_TO_TEST = 10
"""Configurations of a scale below which none of them is held out for the test."""
LEAST_TO_EXTRAPOLATE = 8
"""Configurations from which larger ones are predicted, to see how well that does."""


@dataclass(frozen=True, slots=True)
class SampleSplit:
    """Two parts of samples, and what was done; ``held_out`` was not learned from."""

    fitted: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    blocked: bool = False


def hold_out_test_set(samples: Sequence[Sample], share: float, seed: int) -> SampleSplit:
    """Hold out a share of the configurations of each scale, for the test; none of a scale that has few.

    Configurations with a censored run are never held out: nothing can be scored against a bound.
    """
    held: set[str] = set()
    for scale in Scale:
        names = _shuffled([one for one in samples if one.scale is scale], seed)
        cut = {one.configuration for one in samples if one.censored}
        if len(names) >= LEAST_TO_TEST:
            held |= set([name for name in names if name not in cut][: max(2, round(share * len(names)))])
    return _part(samples, held)


def cross_validation_folds(samples: Sequence[Sample], count: int, seed: int) -> tuple[SampleSplit, ...]:
    """Part the configurations of each scale into ``count`` folds, each held out once; fewer where there are fewer."""
    dealt: list[set[str]] = [set() for _ in range(count)]
    for scale in Scale:
        for place, name in enumerate(_shuffled([one for one in samples if one.scale is scale], seed)):
            dealt[place % count].add(name)
    return tuple(_part(samples, held) for held in dealt if held)


def extrapolation_splits(
    samples: Sequence[Sample], scale_features: Sequence[str], shares: Sequence[float]
) -> tuple[SampleSplit, ...]:
    """Hold out the largest configurations, to imitate extrapolation; for each share that is left to fit.

    Nothing where no feature carries scale, and no parting that leaves fewer than ``LEAST_TO_EXTRAPOLATE`` to fit.
    """
    sizes = {one.configuration: log_size(one, scale_features) for one in samples}
    ordered = sorted(set(sizes.values()))
    if not scale_features:
        return ()
    found = []
    for share in shares:
        ranked = sorted(sizes.values())
        limit = ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]
        held = {name for name, size in sizes.items() if size >= limit and size > ordered[0]}
        if held and len(sizes) - len(held) >= LEAST_TO_EXTRAPOLATE:
            found.append(_part(samples, held, blocked=True))
    return tuple(found)


def training_share(samples: Sequence[Sample], share: float, seed: int) -> tuple[Sample, ...]:
    """Return a share of the configurations of each scale, one at least; a larger share holds all of a smaller one."""
    kept: set[str] = set()
    for scale in Scale:
        names = _shuffled([one for one in samples if one.scale is scale], seed)
        kept |= set(names[: max(1, round(share * len(names)))])
    return tuple(one for one in samples if one.configuration in kept)


def log_size(sample: Sample, scale_features: Sequence[str]) -> float:
    """Return the logarithm of the product of what carries scale, by which runs are ordered."""
    values = [sample.features.get(name, 0.0) for name in scale_features]
    return sum(math.log(max(value, 1e-12)) for value in values if isinstance(value, int | float))


def thin_samples(samples: Sequence[Sample], most: int, seed: int) -> tuple[Sample, ...]:
    """Return at most about ``most`` samples, whole configurations, as many full-scale ones as may be up to a half."""
    if len(samples) <= most:
        return tuple(samples)
    kept: set[str] = set()
    left = most
    full = [one for one in samples if one.scale is Scale.FULL_SCALE]
    down = [one for one in samples if one.scale is Scale.SCALED_DOWN]
    for part, room in ((full, max(most // 2, most - len(down))), (down, most)):
        counts: dict[str, int] = {}
        for one in part:
            counts[one.configuration] = counts.get(one.configuration, 0) + 1
        taken = 0
        for name in _shuffled(part, seed):
            if taken >= min(room, left):
                break
            kept.add(name)
            taken += counts[name]
        left -= taken
    return tuple(one for one in samples if one.configuration in kept)


def _part(samples: Sequence[Sample], held: set[str], *, blocked: bool = False) -> SampleSplit:
    return SampleSplit(
        tuple(one for one in samples if one.configuration not in held),
        tuple(one for one in samples if one.configuration in held and not one.censored),
        blocked,
    )


def _shuffled(samples: Sequence[Sample], seed: int) -> list[str]:
    """Return the configurations in an order that depends on their names and the seed alone."""
    names = {one.configuration for one in samples}
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())


class TrainingSet(StrEnum):
    """Which runs an estimator is fitted on; ``ALL`` where there is one scale only."""

    ALL = "all"
    SCALED_DOWN = "SD"
    BOTH = "SD + FS"
    UP_SAMPLED = "SD + FS up-sampled"


@dataclass(frozen=True, slots=True)
class ModelCandidate:
    """One of the models that selection compares."""

    estimator: str
    training_set: TrainingSet
    adjusted: bool = False

    @property
    def name(self) -> str:
        """Return what a table shows: ``boosting on SD + FS, adjusted``."""
        return f"{self.estimator} on {self.training_set}" + ", adjusted" * self.adjusted


def training_sets(samples: Sequence[Sample], *, all_runs: bool = False) -> tuple[TrainingSet, ...]:
    """Return the training sets that the samples allow; up-sampled where that would add a fifth or more.

    With ``all_runs`` none is left out nor up-sampled: of few full-scale runs the noise would be taken for the law.
    """
    scales = [one.scale for one in samples if not one.censored]
    down, full = scales.count(Scale.SCALED_DOWN), scales.count(Scale.FULL_SCALE)
    if not down or not full:
        return (TrainingSet.ALL,)
    if all_runs:
        return (TrainingSet.BOTH,)
    both = (TrainingSet.SCALED_DOWN, TrainingSet.BOTH)
    return (*both, TrainingSet.UP_SAMPLED) if full < 0.8 * down else both


def fitting_samples(samples: Sequence[Sample], which: TrainingSet, seed: int) -> tuple[Sample, ...]:
    """Return the samples of a training set; up-sampled, full-scale runs are drawn again to as many as scaled-down ones.

    The draw is with replacement, as HARP's, and every full-scale run is there at least once.
    """
    down = [one for one in samples if one.scale is Scale.SCALED_DOWN]
    full = [one for one in samples if one.scale is Scale.FULL_SCALE]
    if which is TrainingSet.SCALED_DOWN:
        return tuple(down)
    more = len(down) - len(full)
    if which is not TrainingSet.UP_SAMPLED or more <= 0 or not full:
        return tuple(samples)
    draw = random.Random(seed)  # noqa: S311 - a training set must repeat, not be secret
    return (*down, *full, *draw.choices(full, k=more))


def harp_adjustment(measured: Array, predicted: Array) -> float:
    """Return HARP's factor: 1 + the mean relative error of what was under-predicted, to two digits; 1 without any.

    Source: HARP 1.0 (Vallabhajosyula and Ramnath, PEARC 2023).
    """
    return 1 + round(up_mape(measured.tolist(), predicted.tolist()) / 100, 2) if len(measured) else 1.0


@dataclass(frozen=True, slots=True)
class OutOfFoldPredictions:
    """What a candidate predicted for samples that its fits did not see; arrays of shape (n,) in the order of them.

    ``fold`` numbers the parting in which a sample was held out.
    """

    samples: tuple[Sample, ...]
    point: Array
    spread: Array
    beyond: Array
    fold: Array
    blocked: bool = False

    @property
    def measured(self) -> Array:
        """Return what was measured."""
        return np.array([one.value for one in self.samples])

    def residuals(self) -> Residuals:
        """Return the errors, apart for each scale."""
        return Residuals.of(
            self.measured,
            self.point,
            spread=self.spread,
            beyond=self.beyond,
            scale=[one.scale.value for one in self.samples],
            blocked=self.blocked,
            configuration=[one.configuration for one in self.samples],
        )

    def times(self, factors: Array) -> "OutOfFoldPredictions":
        """Return the predictions times a factor each."""
        return OutOfFoldPredictions(
            self.samples, self.point * factors, self.spread, self.beyond, self.fold, self.blocked
        )

    def at(self, chosen: Array) -> "OutOfFoldPredictions":
        """Return the predictions where ``chosen`` is true."""
        kept = tuple(one for one, keep in zip(self.samples, chosen, strict=True) if keep)
        return OutOfFoldPredictions(
            kept, self.point[chosen], self.spread[chosen], self.beyond[chosen], self.fold[chosen], self.blocked
        )


def predict_out_of_fold(
    candidate: ModelCandidate,
    recipe: TabularEstimator,
    partings: Sequence[SampleSplit],
    *,
    scale_features: Sequence[str] = (),
    seed: int = 0,
) -> OutOfFoldPredictions:
    """Fit on each parting and predict what it holds out."""
    parts = []
    for number, parting in enumerate(partings):
        if parting.held_out:
            fitted = fit_candidate(candidate, recipe, parting.fitted, scale_features=scale_features, seed=seed)
            parts.append(predict_held_out(fitted, parting.held_out, fold=number, blocked=parting.blocked))
    return join_predictions(parts)


def join_predictions(parts: Sequence[OutOfFoldPredictions]) -> OutOfFoldPredictions:
    """Return the predictions of several folds as one."""
    return OutOfFoldPredictions(
        tuple(one for part in parts for one in part.samples),
        np.concatenate([part.point for part in parts]),
        np.concatenate([part.spread for part in parts]),
        np.concatenate([part.beyond for part in parts]),
        np.concatenate([part.fold for part in parts]),
        parts[0].blocked,
    )


def fit_candidate(
    candidate: ModelCandidate,
    recipe: TabularEstimator,
    samples: Sequence[Sample],
    *,
    scale_features: Sequence[str] = (),
    seed: int = 0,
) -> FittedEstimator:
    """Fit a candidate's estimator on its training set, made of ``samples``."""
    chosen = fitting_samples(samples, candidate.training_set, seed)
    return recipe.fit(chosen, scale_features=scale_features, seed=seed)


def predict_held_out(
    fitted: FittedEstimator, samples: Sequence[Sample], *, fold: int = 0, blocked: bool = False
) -> OutOfFoldPredictions:
    """Predict samples that were not learned from."""
    said = fitted.predict([one.features for one in samples])
    return OutOfFoldPredictions(
        tuple(samples), said.point, said.spread, said.extrapolation, np.full(len(samples), fold), blocked
    )


def median_out_of_fold(members: Sequence[OutOfFoldPredictions]) -> OutOfFoldPredictions:
    """Return what an ensemble says whose members said this of the same samples."""
    said = median_prediction([Predictions(one.point, one.spread, one.beyond) for one in members])
    return replace(members[0], point=said.point, spread=said.spread, beyond=said.extrapolation)


def cross_adjustments(plain: OutOfFoldPredictions) -> Array:
    """Return HARP's adjustment for each prediction, computed from the other folds alone."""
    factors = np.ones(len(plain.samples))
    measured = plain.measured
    for fold in np.unique(plain.fold):
        mine = plain.fold == fold
        others = ~mine if (~mine).any() else mine
        factors[mine] = harp_adjustment(measured[others], plain.point[others])
    return factors
