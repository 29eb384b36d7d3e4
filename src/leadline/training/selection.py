"""Score what every candidate predicts for runs that its fits did not see, and choose one by policy."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.runs import Scale
from leadline.estimators.ports import Array, TabularEstimator
from leadline.estimators.tabular.registry import Ensemble
from leadline.training.candidate_race import (
    CandidatePredictions,
    CandidateRace,
    Progress,
    TaskRunner,
    judged_rows,
    run_serially,
)
from leadline.training.cross_validation import (
    ModelCandidate,
    OutOfFoldPredictions,
    SampleSplit,
    TrainingSet,
    cross_adjustments,
    harp_adjustment,
    join_predictions,
    training_sets,
)
from leadline.uncertainty.conformal import Residuals, calibrate
from leadline.uncertainty.metrics import PINBALL_QUANTILE, POLICIES, choose_model, mae, mape, ov_mape, underprediction

UPPER = ("pinball", "cost")
"""Policies that judge what would be asked for, the upper bound, and not the point."""
NEAR = 1.1
"""A candidate that is preferred for what it is, is taken where another is better by no more than this."""
EXTRAPOLATIONS_COUNT_AS = 5
"""As many full-scale runs as all extrapolations that were tried, where few are there to judge by."""


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """How a candidate did on the validation runs, in percent but for ``mae`` (the target's unit) and the policy's own.

    ``why_not`` says why it was not fitted on all folds; its figures are NaN then, but for a ``mape`` on the first ones.
    """

    candidate: ModelCandidate
    mape: float = math.nan
    mae: float = math.nan
    upp: float = math.nan
    ov_mape: float = math.nan
    policy: tuple[float, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The scores, best first, the winner with its ``recipe`` and HARP's ``factor``, and on what it was judged.

    An ensemble's recipe has the members that were not given up.
    ``predicted`` is said of each run by the candidate that is chosen without that run's fold, so that its errors are
    not small because they were chosen to be.
    """

    policy: str
    scores: tuple[CandidateScore, ...]
    winner: ModelCandidate
    recipe: TabularEstimator
    factor: float
    predicted: OutOfFoldPredictions
    judged_on: str

    @property
    def reason(self) -> str:
        """Return why the winner won, as a sentence."""
        fitted = [one for one in self.scores if not one.why_not]
        best = fitted[0]
        said = f"{best.candidate.name} has {_FIGURES[self.policy](best)} on {self.judged_on}"
        if len(fitted) > 1:
            name, figure = fitted[1].candidate.name, _FIGURES[self.policy](fitted[1])
            better = fitted[1].policy < best.policy
            said += f"; {name} is hardly better, with {figure}" if better else f"; the next, {name}, has {figure}"
        return said


_FIGURES: Mapping[str, Callable[[CandidateScore], str]] = {
    "mae": lambda one: f"a mean error of {one.mae:.3g}",
    "mape": lambda one: f"a mean error of {one.mape:.1f} %",
    "wtm": lambda one: f"{one.upp:.0f} % under-predicted and {one.ov_mape:.1f} % over-prediction in the mean",
    "pinball": lambda one: f"a pinball loss of {one.policy[0]:.3g} for what 90 % of runs stay below",
    "cost": lambda one: f"an expected cost of {100 * one.policy[0]:.1f} % of the run for kills and waste",
}


def select_candidate(
    partings: Sequence[SampleSplit],
    estimators: Mapping[str, TabularEstimator],
    policy: str,
    *,
    few: bool = False,
    many: bool = False,
    extrapolations: Sequence[SampleSplit] = (),
    scale_features: Sequence[str] = (),
    seed: int = 0,
    run: TaskRunner | None = None,
    progress: Progress = lambda *_: None,
) -> Selection:
    """Return every candidate's score and the one that ``policy`` chooses.

    Judged are full-scale runs where there are any, for they are what is asked about; else all that was held out. Where
    they are ``few``, ``extrapolations`` are judged besides, and fewer candidates are tried: of many, one is right on a
    few runs by chance. HARP's adjustment is tried where there are enough. One that is far worse than the best on a fold
    is not fitted on the others. Where they are ``many``, candidates learn from both scales only.

    Raises:
        InvalidInput: no candidate can be fitted on so few runs.
        UnknownName: there is no such policy.
    """
    if policy not in POLICIES:
        choose_model(policy, [], {})  # which says what is known
    sets = training_sets(
        [one for parting in partings[:1] for one in (*parting.fitted, *parting.held_out)], all_runs=few or many
    )
    candidates = [ModelCandidate(name, which) for name in estimators for which in sets]
    fits = len(estimators) * (len(sets) * len(partings) + len(extrapolations))
    trial = CandidateRace(candidates, estimators, scale_features, seed, run or run_serially, progress, fits)
    trial.extrapolate(extrapolations)
    trial.fold(partings)
    plain = trial.tried()
    if not plain:
        raise InvalidInput(
            f"no estimator can be fitted on so few runs: {next(iter(trial.why_not.values()), 'none is known')}"
        )
    tried = dict(plain)
    if not few and not any(parting.blocked for parting in partings):
        for one, said in plain.items():
            tried[replace(one, adjusted=True)] = said.times(cross_adjustments(said.folds))
    given_up = [CandidateScore(one, trial.error_of(one), why_not=why) for one, why in trial.why_not.items()]
    ensembles = [name for name, one in estimators.items() if isinstance(one, Ensemble)]
    return _choose(_Ballot.of(tried, policy, ensembles), tried, sorted(given_up, key=_by_error), trial.recipe, policy)


def _by_error(score: CandidateScore) -> float:
    return math.inf if math.isnan(score.mape) else score.mape


@dataclass(frozen=True, slots=True)
class _Ballot:
    """What each candidate said of the judged runs, and how often each of these is counted; arrays of shape (m,)."""

    measured: Array
    said: Mapping[ModelCandidate, Array]
    counts: npt.NDArray[np.int64]
    fold: Array
    preferred: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, tried: Mapping[ModelCandidate, CandidatePredictions], policy: str, ensembles: Iterable[str]
    ) -> "_Ballot":
        """Return the ballot; full-scale runs are counted more than once beside more extrapolations than they weigh."""
        some = next(iter(tried.values()))
        judged, more = judged_rows(some.folds), some.extrapolated
        fold = some.folds.fold[judged]
        preferred = frozenset(ensembles if some.folds.blocked or more is not None else ())
        if more is None:
            said = {one: _asked(each, policy)[0][judged] for one, each in tried.items()}
            return cls(some.folds.measured[judged], said, np.ones(len(fold), np.int64), fold, preferred)
        said = {}
        for one, each in tried.items():
            inside, beyond = _asked(each, policy)
            said[one] = np.concatenate([inside[judged], beyond])
        times = max(1, round(len(more.samples) / EXTRAPOLATIONS_COUNT_AS))
        return cls(
            np.concatenate([some.folds.measured[judged], more.measured]),
            said,
            np.concatenate([np.full(len(fold), times), np.ones(len(more.samples), np.int64)]),
            np.concatenate([fold, np.full(len(more.samples), -1)]),
            preferred,
        )

    def best(self, policy: str, *, without: int | None = None) -> ModelCandidate:
        """Return the candidate that the policy chooses; ``without`` leaves out what was said of a fold.

        It is the one that is fitted on the runs of both scales, where another training set is hardly better; and an
        ensemble, where none or few are judged at full scale and another estimator is hardly better: which form holds
        farther out these do not tell, and the median goes least astray.
        """
        rows = np.repeat(np.arange(len(self.measured)), np.where(self.fold == without, 0, self.counts))
        if not len(rows):
            return self.best(policy)
        by_name = {one.name: one for one in self.said}
        said = {one.name: each[rows].tolist() for one, each in self.said.items()}
        measured = self.measured[rows].tolist()
        best = by_name[choose_model(policy, measured, said)]
        whole = replace(best, training_set=TrainingSet.BOTH)
        instead = [*(one for one in self.said if one.estimator in self.preferred), *(self.said.keys() & {whole})]
        near = NEAR * POLICIES[policy](measured, said[best.name])[0]
        return next((one for one in instead if POLICIES[policy](measured, said[one.name])[0] <= near), best)

    def figure(self, one: ModelCandidate, policy: str) -> tuple[float, ...]:
        """Return what the policy compares."""
        rows = np.repeat(np.arange(len(self.measured)), self.counts)
        return tuple(POLICIES[policy](self.measured[rows].tolist(), self.said[one][rows].tolist()))


def _choose(
    ballot: _Ballot,
    tried: Mapping[ModelCandidate, CandidatePredictions],
    failed: Sequence[CandidateScore],
    recipe_of: Callable[[ModelCandidate], TabularEstimator],
    policy: str,
) -> Selection:
    best = ballot.best(policy)
    some = tried[best].folds
    judged = judged_rows(some)
    measured = some.measured[judged].tolist()
    points = {one: each.folds.point[judged].tolist() for one, each in tried.items()}
    scores = [
        CandidateScore(
            one,
            mape(measured, points[one]),
            mae(measured, points[one]),
            underprediction(measured, points[one]),
            ov_mape(measured, points[one]),
            ballot.figure(one, policy),
        )
        for one in tried
    ]
    scores.sort(key=lambda score: (score.candidate != best, score.policy))
    factor = 1.0
    if best.adjusted:
        plain = tried[replace(best, adjusted=False)].folds
        factor = harp_adjustment(plain.measured[judged], plain.point[judged])
    honest = _honest({fold: tried[ballot.best(policy, without=fold)].folds for fold in np.unique(some.fold).tolist()})
    judged_on = _judged_on(some, tried[best].extrapolated)
    return Selection(policy, (*scores, *failed), best, recipe_of(best), factor, honest, judged_on)


def _honest(said: Mapping[int, OutOfFoldPredictions]) -> OutOfFoldPredictions:
    """Return of each fold what the candidate says that was chosen without it."""
    return join_predictions([one.at(one.fold == fold) for fold, one in said.items()])


def _judged_on(folds: OutOfFoldPredictions, extrapolated: OutOfFoldPredictions | None) -> str:
    full = np.array([one.scale is Scale.FULL_SCALE for one in folds.samples])
    count = int(judged_rows(folds).sum())
    if folds.blocked:
        return f"the {count} largest runs, by fits on smaller ones"
    what = f"{count} {'full-scale ' if full.any() else ''}runs that its fits did not see"
    if extrapolated is None:
        return what
    return f"{what} and {len(extrapolated.samples)} predictions of larger runs from smaller ones"


def _asked(tried: CandidatePredictions, policy: str) -> tuple[Array, Array]:
    """Return what a policy judges, inside and beyond: points, or bounds that would be asked for, of other folds."""
    inside = tried.folds
    beyond = tried.extrapolated
    none = np.zeros(0)
    if policy not in UPPER:
        return inside.point, none if beyond is None else beyond.point
    residuals = inside.residuals()
    bounds = np.array(inside.point)
    for fold in np.unique(inside.fold):
        mine = inside.fold == fold
        if (~mine).any():
            bounds[mine] = _bounds(inside.at(mine), residuals.at(~mine))
    return bounds, none if beyond is None else _bounds(beyond, residuals)


def _bounds(said: OutOfFoldPredictions, residuals: Residuals) -> Array:
    scales = [one.scale.value for one in said.samples]
    return calibrate(residuals).upper(said.point, said.spread, said.beyond, scales, 1 - PINBALL_QUANTILE)
