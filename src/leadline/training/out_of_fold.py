"""What a candidate predicts for runs that its fits did not see."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from leadline.core.samples import Sample
from leadline.estimators.tabular.ensemble import median_of
from leadline.estimators.tabular.ports import Array, FittedEstimator, Predicted, TabularEstimator
from leadline.training.candidates import Candidate, adjustment, fitting_samples
from leadline.training.splits import Parting
from leadline.uncertainty.conformal import Residuals


@dataclass(frozen=True, slots=True)
class OutOfFold:
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

    def times(self, factors: Array) -> "OutOfFold":
        """Return the predictions times a factor each."""
        return OutOfFold(self.samples, self.point * factors, self.spread, self.beyond, self.fold, self.blocked)

    def at(self, chosen: Array) -> "OutOfFold":
        """Return the predictions where ``chosen`` is true."""
        kept = tuple(one for one, keep in zip(self.samples, chosen, strict=True) if keep)
        return OutOfFold(
            kept, self.point[chosen], self.spread[chosen], self.beyond[chosen], self.fold[chosen], self.blocked
        )


def predict_out_of_fold(
    candidate: Candidate,
    recipe: TabularEstimator,
    partings: Sequence[Parting],
    *,
    scale_features: Sequence[str] = (),
    seed: int = 0,
) -> OutOfFold:
    """Fit on each parting and predict what it holds out."""
    parts = []
    for number, parting in enumerate(partings):
        if parting.held_out:
            fitted = fit(candidate, recipe, parting.fitted, scale_features=scale_features, seed=seed)
            parts.append(predict_held_out(fitted, parting.held_out, fold=number, blocked=parting.blocked))
    return joined(parts)


def joined(parts: Sequence[OutOfFold]) -> OutOfFold:
    """Return the predictions of several folds as one."""
    return OutOfFold(
        tuple(one for part in parts for one in part.samples),
        np.concatenate([part.point for part in parts]),
        np.concatenate([part.spread for part in parts]),
        np.concatenate([part.beyond for part in parts]),
        np.concatenate([part.fold for part in parts]),
        parts[0].blocked,
    )


def fit(
    candidate: Candidate,
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
) -> OutOfFold:
    """Predict samples that were not learned from."""
    said = fitted.predict([one.features for one in samples])
    return OutOfFold(tuple(samples), said.point, said.spread, said.beyond, np.full(len(samples), fold), blocked)


def median_out_of_fold(members: Sequence[OutOfFold]) -> OutOfFold:
    """Return what an ensemble says whose members said this of the same samples."""
    said = median_of([Predicted(one.point, one.spread, one.beyond) for one in members])
    return replace(members[0], point=said.point, spread=said.spread, beyond=said.beyond)


def cross_adjustments(plain: OutOfFold) -> Array:
    """Return HARP's adjustment for each prediction, computed from the other folds alone."""
    factors = np.ones(len(plain.samples))
    measured = plain.measured
    for fold in np.unique(plain.fold):
        mine = plain.fold == fold
        others = ~mine if (~mine).any() else mine
        factors[mine] = adjustment(measured[others], plain.point[others])
    return factors
