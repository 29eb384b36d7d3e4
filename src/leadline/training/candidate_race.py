"""Fit all candidates on one split after another, and drop those far behind the best."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.runs import Scale
from leadline.estimators.ports import Array, TabularEstimator
from leadline.estimators.tabular.registry import LEAST_MEMBERS, Ensemble
from leadline.training.cross_validation import (
    CandidateRecipe,
    ModelCandidate,
    OutOfFoldPredictions,
    SampleSplit,
    join_predictions,
    median_out_of_fold,
)
from leadline.training.records import Progress
from leadline.uncertainty.metrics import mape

T = TypeVar("T")
TaskRunner = Callable[[Sequence[Callable[[], Any]]], Iterable[Any]]
"""Runs tasks, in this process or in several, and returns their results in order."""
HOPELESS = 4.0
"""A candidate is dropped when its mean error on the folds so far is this many times the best one's."""
LEAST_JUDGED = 8
"""Predicted runs before any candidate is dropped: on one or two runs, luck decides."""
TINY = 0.03
"""Mean log errors below this count as equal when candidates are dropped."""


class CandidatePredictions(Frozen):
    """A candidate's out-of-fold predictions, and its extrapolations to the largest runs where these were made."""

    folds: OutOfFoldPredictions
    extrapolated: OutOfFoldPredictions | None = None

    def times(self, factors: Array) -> "CandidatePredictions":
        """Return the out-of-fold predictions times HARP's adjustments; extrapolations stay as they are."""
        return CandidatePredictions(self.folds.times(factors), self.extrapolated)


class CandidateRace:
    """Candidates fitted on one split after another; ``why_not`` maps each dropped candidate to the reason."""

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
        self.inside: dict[ModelCandidate, list[OutOfFoldPredictions]] = {candidate: [] for candidate in candidates}
        self.beyond: dict[ModelCandidate, list[OutOfFoldPredictions]] = {candidate: [] for candidate in candidates}

    def fold(self, splits: Sequence[SampleSplit]) -> None:
        """Predict the held-out samples of each split, and drop candidates far behind the best."""
        for number, split in enumerate(splits):
            self._fit_all(split, number, self.inside)
            self._drop_hopeless(self.inside)

    def extrapolate(self, splits: Sequence[SampleSplit]) -> None:
        """Predict the largest scaled-down runs from smaller ones."""
        for number, split in enumerate(splits):
            before = dict(self.why_not)
            if not self._fit_all(split, number, self.beyond):
                self.why_not = before  # no candidate could be fitted on so few small runs: a fault of the split
        self._drop_hopeless(self.beyond)

    def finishers(self) -> dict[ModelCandidate, CandidatePredictions]:
        """Return the predictions of every candidate that was not dropped."""
        return {
            candidate: CandidatePredictions(join_predictions(parts), join_predictions(beyond) if beyond else None)
            for (candidate, parts), beyond in zip(self.inside.items(), self.beyond.values(), strict=True)
            if candidate not in self.why_not and parts
        }

    def recipe(self, candidate: ModelCandidate) -> CandidateRecipe:
        """Return how to fit a candidate; an ensemble keeps the members that were not dropped."""
        members = self._members(replace(candidate, adjusted=False))
        remaining = {member.estimator for member in members if member not in self.why_not}
        estimator = self.estimators[candidate.estimator]
        if remaining and isinstance(estimator, Ensemble):
            kept = tuple(member for member in estimator.members if member.name in remaining)
            estimator = Ensemble(estimator.name, kept)
        return CandidateRecipe(candidate, estimator, self.scale_features, self.seed)

    def error_of(self, candidate: ModelCandidate) -> float | None:
        """Return a dropped candidate's mean error (percent) on the runs judged so far; ``None`` without any."""
        parts = self.inside[candidate] or self.beyond[candidate]
        if not parts:
            return None
        predictions = join_predictions(parts)
        judged = judged_rows(predictions)
        error = mape(predictions.measured[judged].tolist(), predictions.point[judged].tolist())
        return error if math.isfinite(error) else None

    def _drop_hopeless(self, parts: Mapping[ModelCandidate, list[OutOfFoldPredictions]]) -> None:
        """Drop the candidates far behind the best so far."""
        errors = {}
        for candidate, predictions in parts.items():
            if not predictions or candidate in self.why_not:
                continue
            folds = join_predictions(predictions)
            judged = judged_rows(folds)
            if judged.sum() < LEAST_JUDGED:
                return
            errors[candidate] = float(np.mean(np.abs(np.log(folds.point[judged] / folds.measured[judged]))))
        best = max(min(errors.values(), default=0.0), TINY)
        for candidate, error in errors.items():
            if error > HOPELESS * best:
                self.why_not[candidate] = f"dropped: its error is {error / best:.0f} times the best one's"

    def _fit_all(
        self, split: SampleSplit, number: int, parts: Mapping[ModelCandidate, list[OutOfFoldPredictions]]
    ) -> bool:
        """Predict the held-out samples by every remaining candidate; return False if none could be fitted."""
        running = [candidate for candidate in parts if candidate not in self.why_not] if split.held_out else []
        fitted = [candidate for candidate in running if not self._members(candidate)]
        tasks = [partial(_predict, self.recipe(candidate), split, number) for candidate in fitted]
        successes = 0
        for candidate, outcome in zip(fitted, self.run(tasks), strict=True):
            self.done += 1
            self.progress(candidate.name, min(self.done, self.fits), self.fits)
            if isinstance(outcome, str):
                self.why_not[candidate] = outcome
            else:
                parts[candidate].append(outcome)
                successes += 1
        for candidate in running:
            members = [member for member in self._members(candidate) if member not in self.why_not]
            if len(members) >= LEAST_MEMBERS:
                parts[candidate].append(median_out_of_fold([parts[member][-1] for member in members]))
            elif self._members(candidate):
                self.why_not[candidate] = "fewer than two of its members remain"
        return successes > 0

    def _members(self, candidate: ModelCandidate) -> list[ModelCandidate]:
        """Return the compared candidates that make up an ensemble on the same runs; none for another estimator."""
        # An ensemble takes the predictions of its members from their own fits. With fewer than two of them in the
        # race, it is fitted itself.
        recipe = self.estimators[candidate.estimator]
        if not isinstance(recipe, Ensemble):
            return []
        members = [replace(candidate, estimator=member.name) for member in recipe.members]
        compared = [member for member in members if member in self.inside]
        return compared if len(compared) >= LEAST_MEMBERS else []


def _predict(recipe: CandidateRecipe, split: SampleSplit, number: int) -> OutOfFoldPredictions | str:
    """Return the predictions of the held-out samples, or the reason why the candidate cannot be fitted."""
    try:
        return recipe.predict_split(split, number)
    except (InvalidInput, np.linalg.LinAlgError) as error:
        return str(error)


def run_serially(tasks: Sequence[Callable[[], T]]) -> Iterable[T]:
    """Run tasks in this process."""
    return (task() for task in tasks)


def task_runner(jobs: int | None) -> TaskRunner:
    """Return a runner of tasks in ``jobs`` processes, by default one for each usable core."""
    if jobs == 1:
        return run_serially
    from joblib import Parallel, cpu_count, delayed  # noqa: PLC0415 - comes with scikit-learn; one process needs none

    jobs = jobs or cpu_count()
    workers = Parallel(n_jobs=jobs, return_as="generator")

    def run_in_processes(tasks: Sequence[Callable[[], T]]) -> Iterable[T]:
        with warnings.catch_warnings():
            # loky replaces a worker that has idled or grown by 300 MB, as by loading PyTorch, and warns of it.
            # Where warnings are errors, this one would end the thread that hands out tasks: we would wait forever.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
            yield from workers(delayed(task)() for task in tasks)

    return run_in_processes


def judged_rows(predictions: OutOfFoldPredictions) -> Array:
    """Return a mask of the predictions to score: those of full-scale runs, or all where there are none."""
    full = np.array([sample.scale is Scale.FULL_SCALE for sample in predictions.samples])
    return full if full.any() else np.ones(len(full), bool)
