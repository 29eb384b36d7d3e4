"""Fit every candidate on one parting after another, in one process or several, and give up those without hope."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.runs import Scale
from leadline.estimators.ports import Array, TabularEstimator
from leadline.estimators.tabular.registry import LEAST_MEMBERS, Ensemble
from leadline.training.cross_validation import (
    ModelCandidate,
    OutOfFoldPredictions,
    SampleSplit,
    fit_candidate,
    join_predictions,
    median_out_of_fold,
    predict_held_out,
)
from leadline.uncertainty.metrics import mape

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Told what is done now, its number, and how many there are."""
TaskRunner = Callable[[Sequence[Callable[[], Any]]], Iterable[Any]]
"""Does tasks, in this process or in several, and returns their answers in order."""
HOPELESS = 4.0
"""A candidate whose mean error is so many times that of the best, on the folds so far, is given up."""
LEAST_JUDGED = 8
"""Runs below which none is given up: on one or two, a bad estimator may be right by chance and a good one not."""
TINY = 0.03
"""Mean errors of logarithms below this are told apart by more folds only."""


@dataclass(frozen=True, slots=True)
class CandidatePredictions:
    """What a candidate predicted out of fold, and of the largest runs from smaller ones where that was tried."""

    folds: OutOfFoldPredictions
    extrapolated: OutOfFoldPredictions | None = None

    def times(self, factors: Array) -> "CandidatePredictions":
        """Return the predictions times HARP's adjustment, one for each fold's rows; extrapolations have none."""
        return CandidatePredictions(self.folds.times(factors), self.extrapolated)


class CandidateRace:
    """Candidates fitted on one parting after another; ``why_not`` says of those that were given up why."""

    def __init__(
        self,
        candidates: Sequence[ModelCandidate],
        estimators: Mapping[str, TabularEstimator],
        scale_features: Sequence[str],
        seed: int,
        run: TaskRunner,
        progress: Progress,
        fits: int,
    ) -> None:
        self.estimators, self.scale_features, self.seed = estimators, scale_features, seed
        self.run, self.progress, self.fits, self.done = run, progress, fits, 0
        self.why_not: dict[ModelCandidate, str] = {}
        self.inside: dict[ModelCandidate, list[OutOfFoldPredictions]] = {one: [] for one in candidates}
        self.beyond: dict[ModelCandidate, list[OutOfFoldPredictions]] = {one: [] for one in candidates}

    def fold(self, partings: Sequence[SampleSplit]) -> None:
        """Predict what each parting holds out, and give up those that are far worse than the best."""
        for number, parting in enumerate(partings):
            self._try_all(parting, number, self.inside)
            self._give_up(self.inside)

    def extrapolate(self, partings: Sequence[SampleSplit]) -> None:
        """Predict the largest scaled-down runs from smaller ones."""
        for number, parting in enumerate(partings):
            before = dict(self.why_not)
            if not self._try_all(parting, number, self.beyond):
                self.why_not = before  # too few smaller runs for any
        self._give_up(self.beyond)

    def tried(self) -> dict[ModelCandidate, CandidatePredictions]:
        """Return what every candidate predicted that was not given up."""
        return {
            one: CandidatePredictions(
                join_predictions(parts), join_predictions(self.beyond[one]) if self.beyond.get(one) else None
            )
            for one, parts in self.inside.items()
            if self._counts(one)
        }

    def recipe(self, one: ModelCandidate) -> TabularEstimator:
        """Return how a candidate is fitted: an ensemble of the members that were not given up."""
        plain = replace(one, adjusted=False)
        left = {each.estimator for each in self._members(plain) if each not in self.why_not}
        recipe = self.estimators[one.estimator]
        if not left or not isinstance(recipe, Ensemble):
            return recipe
        return Ensemble(recipe.name, tuple(each for each in recipe.members if each.name in left))

    def error_of(self, one: ModelCandidate) -> float:
        """Return the mean error (percent) of one that was given up, on what was judged so far; NaN of nothing."""
        parts = self.inside[one] or self.beyond[one]
        if not parts:
            return math.nan
        said = join_predictions(parts)
        judged = judged_rows(said)
        return mape(said.measured[judged].tolist(), said.point[judged].tolist())

    def _counts(self, one: ModelCandidate) -> bool:
        return one not in self.why_not and bool(self.inside[one])

    def _give_up(self, parts: Mapping[ModelCandidate, list[OutOfFoldPredictions]]) -> None:
        left = {one: join_predictions(said) for one, said in parts.items() if said and one not in self.why_not}
        self.why_not |= _hopeless(left)

    def _try_all(
        self, parting: SampleSplit, number: int, parts: Mapping[ModelCandidate, list[OutOfFoldPredictions]]
    ) -> bool:
        """Predict what a parting holds out by every candidate that was not given up; whether any could."""
        tried = [one for one in parts if one not in self.why_not] if parting.held_out else []
        fitted = [one for one in tried if not self._members(one)]
        tasks = [
            _Fit(one, self.estimators[one.estimator], parting, number, self.scale_features, self.seed) for one in fitted
        ]
        found = 0
        for one, said in zip(fitted, self.run(tasks), strict=True):
            self.done += 1
            self.progress(one.name, min(self.done, self.fits), self.fits)
            if isinstance(said, str):
                self.why_not[one] = said
            else:
                parts[one].append(said)
                found += 1
        for one in tried:
            members = [each for each in self._members(one) if each not in self.why_not]
            if len(members) >= LEAST_MEMBERS:
                parts[one].append(median_out_of_fold([parts[each][-1] for each in members]))
            elif self._members(one):
                self.why_not[one] = "fewer than two of its members are left"
        return found > 0

    def _members(self, one: ModelCandidate) -> list[ModelCandidate]:
        """Return the compared candidates that make up an ensemble on the same runs; none of another estimator.

        A member that is not compared has no voice; nor is there an ensemble of fewer than two, which is fitted itself.
        """
        recipe = self.estimators[one.estimator]
        mine = [replace(one, estimator=each.name) for each in recipe.members] if isinstance(recipe, Ensemble) else []
        compared = [each for each in mine if each in self.inside]
        return compared if len(compared) >= LEAST_MEMBERS else []


@dataclass(frozen=True, slots=True)
class _Fit:
    """A candidate to be fitted on a parting, and asked about what it holds out."""

    candidate: ModelCandidate
    recipe: TabularEstimator
    parting: SampleSplit
    number: int
    scale_features: Sequence[str]
    seed: int

    def __call__(self) -> OutOfFoldPredictions | str:
        """Return what is predicted, or why the candidate cannot be fitted."""
        parting, carries = self.parting, self.scale_features
        try:
            fitted = fit_candidate(self.candidate, self.recipe, parting.fitted, scale_features=carries, seed=self.seed)
        except (InvalidInput, np.linalg.LinAlgError) as error:
            return str(error)
        return predict_held_out(fitted, parting.held_out, fold=self.number, blocked=parting.blocked)


def run_serially(tasks: Sequence[Callable[[], T]]) -> Iterable[T]:
    """Do tasks in this process."""
    return (task() for task in tasks)


def task_runner(jobs: int | None) -> TaskRunner:
    """Return what does tasks in ``jobs`` processes, by default in one for each core that may be used."""
    if jobs == 1:
        return run_serially
    from joblib import Parallel, cpu_count, delayed  # noqa: PLC0415 - comes with scikit-learn; one process needs none

    jobs = jobs or cpu_count()
    workers = Parallel(n_jobs=jobs, return_as="generator")
    return lambda tasks: workers(delayed(task)() for task in tasks)


def _hopeless(so_far: Mapping[ModelCandidate, OutOfFoldPredictions]) -> dict[ModelCandidate, str]:
    """Return the candidates that are far worse than the best so far, with a sentence; they are not fitted again."""
    errors = {}
    for one, said in so_far.items():
        judged = judged_rows(said)
        if judged.sum() < LEAST_JUDGED:
            return {}
        errors[one] = float(np.mean(np.abs(np.log(said.point[judged] / said.measured[judged]))))
    best = min(errors.values(), default=0.0)
    return {
        one: f"given up: {error / max(best, TINY):.0f} times as far off as the best"
        for one, error in errors.items()
        if error > HOPELESS * max(best, TINY)
    }


def judged_rows(said: OutOfFoldPredictions) -> Array:
    """Return which predictions count: those of full-scale runs where there are any."""
    full = np.array([one.scale is Scale.FULL_SCALE for one in said.samples])
    return full if full.any() else np.ones(len(full), bool)
