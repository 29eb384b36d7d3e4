"""What may be chosen: an estimator, fitted on one of several training sets, as it is or adjusted as HARP does."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leadline.core.runs import Scale
from leadline.core.samples import Sample
from leadline.estimators.tabular.ports import Array
from leadline.uncertainty.metrics import up_mape


class TrainingSet(StrEnum):
    """Which runs an estimator is fitted on; ``ALL`` where there is one scale only."""

    ALL = "all"
    SCALED_DOWN = "SD"
    BOTH = "SD + FS"
    UP_SAMPLED = "SD + FS up-sampled"


@dataclass(frozen=True, slots=True)
class Candidate:
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


def adjustment(measured: Array, predicted: Array) -> float:
    """Return HARP's factor: 1 + the mean relative error of what was under-predicted, to two digits; 1 without any.

    Source: HARP 1.0 (Vallabhajosyula and Ramnath, PEARC 2023).
    """
    return 1 + round(up_mape(measured.tolist(), predicted.tolist()) / 100, 2) if len(measured) else 1.0
