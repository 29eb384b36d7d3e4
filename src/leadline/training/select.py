"""Fit every candidate on folds, score what it predicts for runs it did not see, and choose one by policy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.runs import Scale
from leadline.core.samples import Sample
from leadline.estimators.tabular.ports import Array, FittedEstimator, TabularEstimator
from leadline.training.candidates import Candidate, adjustment, fitting_samples, training_sets
from leadline.training.splits import Parting
from leadline.uncertainty.conformal import Residuals, calibrate
from leadline.uncertainty.metrics import mae, mape, ov_mape, underprediction
from leadline.uncertainty.policies import POLICIES, QUANTILE, choose

Progress = Callable[[str, int, int], None]
"""Told what is done now, its number, and how many there are."""
HOPELESS = 4.0
"""A candidate whose mean error is so many times that of the best, on the folds so far, is given up."""
LEAST_JUDGED = 8
"""Runs below which none is given up: on one or two, a bad estimator may be right by chance and a good one not."""
TINY = 0.03
"""Mean errors of logarithms below this are told apart by more folds only."""
UPPER = ("pinball", "cost")
"""Policies that judge what would be asked for, the upper bound, and not the point."""


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


@dataclass(frozen=True, slots=True)
class Score:
    """How a candidate did on the validation runs, in percent but for ``mae`` (the target's unit) and the policy's own.

    ``why_not`` says why it was not fitted on all folds; its figures are NaN then, but for a ``mape`` on the first ones.
    """

    candidate: Candidate
    mape: float = math.nan
    mae: float = math.nan
    upp: float = math.nan
    ov_mape: float = math.nan
    policy: tuple[float, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The scores, best first, the winner with what it predicted before any adjustment, and on what it was judged."""

    policy: str
    scores: tuple[Score, ...]
    winner: Candidate
    predicted: OutOfFold
    judged_on: str

    @property
    def reason(self) -> str:
        """Return why the winner won, as a sentence."""
        fitted = [one for one in self.scores if not one.why_not]
        best = fitted[0]
        said = f"{best.candidate.name} has {_FIGURES[self.policy](best)} on {self.judged_on}"
        if len(fitted) > 1:
            said += f"; the next, {fitted[1].candidate.name}, has {_FIGURES[self.policy](fitted[1])}"
        return said


_FIGURES: Mapping[str, Callable[[Score], str]] = {
    "mae": lambda one: f"a mean error of {one.mae:.3g}",
    "mape": lambda one: f"a mean error of {one.mape:.1f} %",
    "wtm": lambda one: f"{one.upp:.0f} % under-predicted and {one.ov_mape:.1f} % over-prediction in the mean",
    "pinball": lambda one: f"a pinball loss of {one.policy[0]:.3g} for what 90 % of runs stay below",
    "cost": lambda one: f"an expected cost of {100 * one.policy[0]:.1f} % of the run for kills and waste",
}


def select(
    partings: Sequence[Parting],
    estimators: Mapping[str, TabularEstimator],
    policy: str,
    *,
    scale_features: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Selection:
    """Return every candidate's score and the one that ``policy`` chooses.

    Judged are full-scale runs where there are any, for they are what is asked about; else all that was held out. One
    that is far worse than the best on a fold is not fitted on the others.

    Raises:
        InvalidInput: no candidate can be fitted on so few runs.
        UnknownName: there is no such policy.
    """
    if policy not in POLICIES:
        choose(policy, [], {})  # which says what is known
    sets = training_sets([one for parting in partings[:1] for one in (*parting.fitted, *parting.held_out)])
    candidates = [Candidate(name, which) for name in estimators for which in sets]
    parts: dict[Candidate, list[OutOfFold]] = {one: [] for one in candidates}
    why_not: dict[Candidate, str] = {}
    for number, parting in enumerate(partings):
        for place, one in enumerate(candidates, 1):
            if one in why_not or not parting.held_out:
                continue
            progress(one.name, number * len(candidates) + place, len(partings) * len(candidates))
            try:
                fitted = fit(one, estimators[one.estimator], parting.fitted, scale_features=scale_features, seed=seed)
            except (InvalidInput, np.linalg.LinAlgError) as error:
                why_not[one] = str(error)
                continue
            parts[one].append(predict_held_out(fitted, parting.held_out, fold=number, blocked=parting.blocked))
        why_not |= _hopeless({one: joined(parts[one]) for one in candidates if one not in why_not and parts[one]})
    plain = {one: joined(parts[one]) for one in candidates if one not in why_not and parts[one]}
    if not plain:
        raise InvalidInput(
            f"no estimator can be fitted on so few runs: {next(iter(why_not.values()), 'none is known')}"
        )
    adjusted = {replace(one, adjusted=True): said.times(cross_adjustments(said)) for one, said in plain.items()}
    both = {one: said for pair in zip(plain.items(), adjusted.items(), strict=True) for one, said in pair}
    given_up = [Score(one, _mape(parts[one]), why_not=why) for one, why in why_not.items()]
    return _choose(both, sorted(given_up, key=_by_error), policy)


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


def cross_adjustments(plain: OutOfFold) -> Array:
    """Return HARP's adjustment for each prediction, computed from the other folds alone."""
    factors = np.ones(len(plain.samples))
    measured = plain.measured
    for fold in np.unique(plain.fold):
        mine = plain.fold == fold
        others = ~mine if (~mine).any() else mine
        factors[mine] = adjustment(measured[others], plain.point[others])
    return factors


def _mape(parts: Sequence[OutOfFold]) -> float:
    """Return the mean error on what was judged so far; NaN of nothing."""
    if not parts:
        return math.nan
    said = joined(parts)
    judged = _judged_rows(said)
    return mape(said.measured[judged].tolist(), said.point[judged].tolist())


def _by_error(score: Score) -> float:
    return math.inf if math.isnan(score.mape) else score.mape


def _hopeless(so_far: Mapping[Candidate, OutOfFold]) -> dict[Candidate, str]:
    """Return the candidates that are far worse than the best so far, with a sentence; they are not fitted again."""
    errors = {}
    for one, said in so_far.items():
        judged = _judged_rows(said)
        if judged.sum() < LEAST_JUDGED:
            return {}
        errors[one] = float(np.mean(np.abs(np.log(said.point[judged] / said.measured[judged]))))
    best = min(errors.values(), default=0.0)
    return {
        one: f"given up: {error / max(best, TINY):.0f} times as far off as the best"
        for one, error in errors.items()
        if error > HOPELESS * max(best, TINY)
    }


def _judged_rows(said: OutOfFold) -> Array:
    """Return which predictions count: those of full-scale runs where there are any."""
    full = np.array([one.scale is Scale.FULL_SCALE for one in said.samples])
    return full if full.any() else np.ones(len(full), bool)


def _choose(predicted: Mapping[Candidate, OutOfFold], failed: Sequence[Score], policy: str) -> Selection:
    some = next(iter(predicted.values()))
    full = np.array([one.scale is Scale.FULL_SCALE for one in some.samples])
    judged = _judged_rows(some)
    measured = some.measured[judged].tolist()
    by_name = {one.name: one for one in predicted}
    asked = {one.name: _judged(predicted[one], policy)[judged].tolist() for one in predicted}
    best = by_name[choose(policy, measured, asked)]
    scores = [
        Score(
            one,
            mape(measured, points),
            mae(measured, points),
            underprediction(measured, points),
            ov_mape(measured, points),
            tuple(POLICIES[policy](measured, asked[one.name])),
        )
        for one, points in ((one, predicted[one].point[judged].tolist()) for one in predicted)
    ]
    scores.sort(key=lambda score: (score.candidate != best, score.policy))
    what = f"{int(judged.sum())} {'full-scale ' if full.any() else ''}runs that its fits did not see"
    if some.blocked:
        what = f"the {int(judged.sum())} largest runs, by fits on smaller ones"
    plain = predicted[replace(best, adjusted=False)]
    return Selection(policy, (*scores, *failed), best, plain, what)


def _judged(predicted: OutOfFold, policy: str) -> Array:
    """Return what a policy judges: the points, or the bounds that would be asked for, learned from other folds."""
    if policy not in UPPER:
        return predicted.point
    bounds = np.array(predicted.point)
    residuals = predicted.residuals()
    scales = np.array([one.scale.value for one in predicted.samples])
    for fold in np.unique(predicted.fold):
        mine = predicted.fold == fold
        if (~mine).any():
            learned = calibrate(residuals.at(~mine))
            bounds[mine] = learned.upper(
                predicted.point[mine], predicted.spread[mine], predicted.beyond[mine], scales[mine], 1 - QUANTILE
            )
    return bounds
