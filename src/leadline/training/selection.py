"""Score the out-of-fold predictions of every candidate, and choose one by policy."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.runs import Scale
from leadline.estimators.ports import Array, TabularEstimator
from leadline.estimators.tabular.registry import Ensemble
from leadline.training.candidate_race import CandidatePredictions, CandidateRace, TaskRunner, judged_rows, run_serially
from leadline.training.cross_validation import (
    CandidateRecipe,
    ModelCandidate,
    OutOfFoldPredictions,
    SampleSplit,
    TrainingRuns,
    cross_adjustments,
    harp_adjustment,
    join_predictions,
    training_sets,
)
from leadline.training.model_card import CandidateErrors
from leadline.training.records import Progress
from leadline.uncertainty.conformal import Residuals, calibrate
from leadline.uncertainty.metrics import PINBALL_QUANTILE, POLICIES, choose_model, mae, mape, ov_mape, underprediction

UPPER_BOUND_POLICIES = ("pinball", "cost")
"""Policies that score the upper bound to request instead of the point."""
NEAR = 1.1
"""A preferred kind of candidate wins unless another one is better by more than this factor."""
EXTRAPOLATIONS_COUNT_AS = 5
"""Full-scale runs that all extrapolations together weigh as much as, where few full-scale runs exist."""


class Selection(Frozen):
    """The chosen candidate and the scores of all.

    Attributes:
        scores: best first.
        recipe: how to fit the winner; an ensemble has its remaining members only.
        factor: HARP's adjustment, 1 without one.
        predicted: for each run, by the candidate chosen without that run's fold. So the choice itself cannot make the
            errors look smaller.
        judged_on: the runs that decided, as text.
    """

    policy: str
    scores: tuple[CandidateErrors, ...]
    winner: ModelCandidate
    recipe: CandidateRecipe
    factor: float
    predicted: OutOfFoldPredictions
    judged_on: str

    @property
    def reason(self) -> str:
        """Return the reason why the winner won, as a sentence."""
        best, *worse = [score for score in self.scores if not score.why_not]
        sentence = f"{best.name} has {_SCORE_TEXTS[self.policy](best)} on {self.judged_on}"
        if worse:
            name, text = worse[0].name, _SCORE_TEXTS[self.policy](worse[0])
            better = worse[0].policy < best.policy
            sentence += f"; {name} is hardly better, with {text}" if better else f"; the next, {name}, has {text}"
        return sentence


_SCORE_TEXTS: Mapping[str, Callable[[CandidateErrors], str]] = {
    "mae": lambda score: f"a mean error of {score.mae:.3g}",
    "mape": lambda score: f"a mean error of {score.mape:.1f} %",
    "wtm": lambda score: f"{score.upp:.0f} % under-predicted and a mean over-prediction of {score.ov_mape:.1f} %",
    "pinball": lambda score: f"a pinball loss of {score.policy[0]:.3g} at the 90 % quantile",
    "cost": lambda score: f"an expected cost of {100 * score.policy[0]:.1f} % of the run for kills and waste",
}


def select_candidate(
    splits: Sequence[SampleSplit],
    estimators: Mapping[str, TabularEstimator],
    policy: str,
    *,
    few: bool = False,
    many: bool = False,
    extrapolations: Sequence[SampleSplit] = (),
    scale_features: Sequence[str] = (),
    seed: int = 0,
    run: TaskRunner = run_serially,
    progress: Progress = lambda *_: None,
) -> Selection:
    """Score every candidate and return the one that ``policy`` chooses.

    Full-scale runs decide where there are any, because users ask about those; otherwise all held-out runs do. A
    candidate far behind the best on one fold is not fitted on the next ones. With ``few`` full-scale runs, fewer
    compete, because one of many would win by luck. With ``many`` runs, they are fitted on both scales only.
    ``extrapolations`` are splits by size of the scaled-down runs, judged in addition to the folds.

    Raises:
        InvalidInput: no candidate can be fitted on so few runs.
        UnknownName: no such policy.
    """
    if policy not in POLICIES:
        choose_model(policy, [], {})  # raises the error that lists the known policies
    samples = [sample for split in splits[:1] for sample in (*split.fitted, *split.held_out)]
    sets = training_sets(samples, all_runs=few or many)
    candidates = [ModelCandidate(name, training_set) for name in estimators for training_set in sets]
    fits = len(estimators) * (len(sets) * len(splits) + len(extrapolations))
    race = CandidateRace(candidates, estimators, scale_features, seed, run, progress, fits)
    race.extrapolate(extrapolations)
    race.fold(splits)
    finishers = race.finishers()
    if not finishers:
        why = next(iter(race.why_not.values()), "none is known")
        raise InvalidInput(f"no estimator can be fitted on so few runs: {why}")
    adjustable = {} if few or any(split.blocked for split in splits) else finishers
    competitors = finishers | {
        replace(candidate, adjusted=True): predictions.times(cross_adjustments(predictions.folds))
        for candidate, predictions in adjustable.items()
    }
    dropped = [
        CandidateErrors(candidate.name, race.error_of(candidate), why_not=why)
        for candidate, why in race.why_not.items()
    ]
    dropped.sort(key=lambda errors: math.inf if errors.mape is None else errors.mape)
    ensembles = [name for name, estimator in estimators.items() if isinstance(estimator, Ensemble)]
    return _choose(_Ballot.of(competitors, policy, ensembles), competitors, dropped, race.recipe, policy)


class _Ballot(Frozen):
    """Each candidate's predictions of the judged runs, and how often each run counts; arrays of shape (m,)."""

    measured: Array
    predictions: Mapping[ModelCandidate, Array]
    counts: npt.NDArray[np.int64]
    fold: Array
    preferred: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, competitors: Mapping[ModelCandidate, CandidatePredictions], policy: str, ensembles: Iterable[str]
    ) -> "_Ballot":
        """Return the ballot; full-scale runs count several times where extrapolations would outnumber them."""
        first = next(iter(competitors.values()))
        judged, extrapolated = judged_rows(first.folds), first.extrapolated
        fold = first.folds.fold[judged]
        preferred = frozenset(ensembles if first.folds.blocked or extrapolated is not None else ())
        predictions = {candidate: _judged_values(parts, policy) for candidate, parts in competitors.items()}
        measured = np.zeros(0) if extrapolated is None else extrapolated.measured
        count = len(measured)
        times = max(1, round(count / EXTRAPOLATIONS_COUNT_AS))
        return cls(
            np.concatenate([first.folds.measured[judged], measured]),
            {name: np.concatenate([inside[judged], outside]) for name, (inside, outside) in predictions.items()},
            np.concatenate([np.full(len(fold), times), np.ones(count, np.int64)]),
            np.concatenate([fold, np.full(count, -1)]),
            preferred,
        )

    def best(self, policy: str, *, without: int | None = None) -> ModelCandidate:
        """Return the candidate that the policy chooses, or a preferred one that is hardly worse (``NEAR``).

        ``without`` leaves out a fold.
        """
        rows = np.repeat(np.arange(len(self.measured)), np.where(self.fold == without, 0, self.counts))
        if not len(rows):
            return self.best(policy)
        by_name = {candidate.name: candidate for candidate in self.predictions}
        points = {candidate.name: values[rows].tolist() for candidate, values in self.predictions.items()}
        measured = self.measured[rows].tolist()
        best = by_name[choose_model(policy, measured, points)]
        both_scales = replace(best, training_set=TrainingRuns.BOTH)
        # With few or no full-scale runs the ensembles are preferred: these runs cannot show which functional form holds
        # farther out, and the median of several goes least astray.
        preferred = [
            *(candidate for candidate in self.predictions if candidate.estimator in self.preferred),
            *(self.predictions.keys() & {both_scales}),
        ]
        score = POLICIES[policy]
        near = NEAR * score(measured, points[best.name])[0]
        return next((candidate for candidate in preferred if score(measured, points[candidate.name])[0] <= near), best)

    def score(self, candidate: ModelCandidate, policy: str) -> tuple[float, ...]:
        """Return the values that the policy compares."""
        rows = np.repeat(np.arange(len(self.measured)), self.counts)
        return tuple(POLICIES[policy](self.measured[rows].tolist(), self.predictions[candidate][rows].tolist()))


def _choose(
    ballot: _Ballot,
    competitors: Mapping[ModelCandidate, CandidatePredictions],
    dropped: Sequence[CandidateErrors],
    recipe_of: Callable[[ModelCandidate], CandidateRecipe],
    policy: str,
) -> Selection:
    best = ballot.best(policy)
    folds = competitors[best].folds
    judged = judged_rows(folds)
    measured = folds.measured[judged].tolist()
    scores = []
    for candidate, predictions in competitors.items():
        points = predictions.folds.point[judged].tolist()
        upp, over = underprediction(measured, points), ov_mape(measured, points)
        errors = (mape(measured, points), mae(measured, points), upp, over, ballot.score(candidate, policy))
        scores.append(CandidateErrors(candidate.name, *errors))
    scores.sort(key=lambda score: (score.name != best.name, score.policy))
    factor = 1.0
    if best.adjusted:
        plain = competitors[replace(best, adjusted=False)].folds
        factor = harp_adjustment(plain.measured[judged], plain.point[judged])
    # Each fold is predicted by the candidate chosen without it: see ``Selection.predicted``.
    by_fold = {fold: competitors[ballot.best(policy, without=fold)].folds for fold in np.unique(folds.fold).tolist()}
    honest = join_predictions([predictions.at(predictions.fold == fold) for fold, predictions in by_fold.items()])
    judged_on = _judged_on(folds, competitors[best].extrapolated)
    return Selection(policy, (*scores, *dropped), best, recipe_of(best), factor, honest, judged_on)


def _judged_on(folds: OutOfFoldPredictions, extrapolated: OutOfFoldPredictions | None) -> str:
    count = int(judged_rows(folds).sum())
    if folds.blocked:
        return f"the {count} largest runs, by fits on smaller ones"
    full = Scale.FULL_SCALE.value in folds.scales
    runs = f"{count} held-out {'full-scale ' if full else ''}runs"
    if extrapolated is None:
        return runs
    return f"{runs} and {len(extrapolated.samples)} predictions of larger runs from smaller ones"


def _judged_values(predictions: CandidatePredictions, policy: str) -> tuple[Array, Array]:
    """Return the values that a policy scores, out of fold and extrapolated.

    These are the points, or the upper bounds to request; a fold's bounds come from the residuals of the other folds.
    """
    inside, outside = predictions.folds, predictions.extrapolated
    if policy not in UPPER_BOUND_POLICIES:
        return inside.point, np.zeros(0) if outside is None else outside.point
    residuals = inside.residuals()
    bounds = np.array(inside.point)
    for fold in np.unique(inside.fold):
        in_fold = inside.fold == fold
        if (~in_fold).any():
            bounds[in_fold] = _upper_bounds(inside.at(in_fold), residuals.at(~in_fold))
    return bounds, np.zeros(0) if outside is None else _upper_bounds(outside, residuals)


def _upper_bounds(predictions: OutOfFoldPredictions, residuals: Residuals) -> Array:
    inputs = (predictions.point, predictions.spread, predictions.beyond, predictions.scales)
    return calibrate(residuals).upper(*inputs, 1 - PINBALL_QUANTILE)
