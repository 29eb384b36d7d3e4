"""HARP as published, plain boosting, and Leadline, each asked about the same runs after learning from the same."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.histories import HistorySplit, MeasuredHistory, split_history
from leadline.core.runs import Sample
from leadline.estimators.tabular.registry import ESTIMATORS
from leadline.training.build import TrainingOptions, TrainingOrigin, build_model
from leadline.training.harp import build_harp
from leadline.uncertainty.metrics import coverage, mae, mape, ov_mape, over_request, underprediction

Array = npt.NDArray[np.float64]

LEVEL = 0.9
RISK = 0.05


@dataclass(frozen=True, slots=True)
class RunPredictions:
    """What was measured and predicted for n runs; ``low`` and ``high`` are NaN where a method knows no interval.

    ``low`` to ``high`` is to hold 90 %, so that ``high`` is what is requested at a risk of 5 %.
    """

    measured: Array
    point: Array
    low: Array
    high: Array

    @classmethod
    def pooled(cls, parts: Sequence["RunPredictions"]) -> "RunPredictions":
        """Return several answers as one."""
        return cls(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)))

    def figures(self) -> dict[str, float | None]:
        """Return every figure of merit by name: percent, but for ``MAE`` (the target's unit) and ``over-request``."""
        measured, point = self.measured.tolist(), self.point.tolist()
        low, high = self.low.tolist(), self.high.tolist()
        bounded = not np.isnan(self.high).any()
        return {
            "MAE": mae(measured, point),
            "MAPE": mape(measured, point),
            "UPP": underprediction(measured, point),
            "OV_MAPE": ov_mape(measured, point),
            "coverage": coverage(measured, low, high) if bounded else None,
            "under-predicted at 5 % risk": underprediction(measured, high) if bounded else None,
            "over-request": over_request(measured, high) if bounded else None,
        }


Contender = Callable[[HistorySplit, str, int], dict[str, RunPredictions]]
"""(split, target, seed) → what its methods, which share all that is fitted, answer for the runs asked about."""
LEADLINE, BOOSTING, HARP, CUSTOM = "Leadline", "boosting", "HARP", "HARP, custom"
"""Methods: HARP and its custom mode as it is released, with its walltime metric for a policy."""
POLICY_MAE = ", policy MAE"


def predict_with_leadline(split: HistorySplit, target: str, seed: int) -> dict[str, RunPredictions]:
    """Build the model that ``leadline train`` writes, and ask it."""
    test = split.test(target)
    history = split.history
    options = TrainingOptions(
        (target,), scale_features=history.scale_features, categories=history.categories, seed=seed
    )
    model, _ = build_model(split.learned, ESTIMATORS, TrainingOrigin(history.name, "", ""), options)
    rows = [one.features for one in test]
    said = model.predict(target, rows, LEVEL)
    high = model.upper(target, rows, RISK)
    return {LEADLINE: RunPredictions(_measured(test), np.asarray(said.point), np.asarray(said.low), np.asarray(high))}


def predict_with_boosting(split: HistorySplit, target: str, seed: int) -> dict[str, RunPredictions]:
    """Fit scikit-learn's gradient boosting as it comes, and its quantile loss for the interval."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - heavy, and not at start-up

    test = split.test(target)
    learned = [one for one in split.training(target).dataset.samples if not one.censored]
    rows = _numbers([*learned, *test])
    values = _measured(learned)

    def predict(**loss: object) -> Array:
        fitted = HistGradientBoostingRegressor(random_state=seed, **loss).fit(rows[: len(learned)], values)
        found: Array = fitted.predict(rows[len(learned) :])
        return found

    bounds = [predict(loss="quantile", quantile=one) for one in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    return {BOOSTING: RunPredictions(_measured(test), predict(), *bounds)}


def predict_with_harp(
    split: HistorySplit, target: str, seed: int, *, custom: bool = False
) -> dict[str, RunPredictions]:
    """Build HARP as published, faults included, and pick by its own policy and by the mean absolute error."""
    test = split.test(target)
    work = split.history.work if custom else None
    built = build_harp(split.training(target).dataset.samples, test, work=work, seed=seed)
    name, unknown = CUSTOM if custom else HARP, np.full(len(test), np.nan)
    return {
        said: RunPredictions(_measured(test), built.pick(policy).predicted, unknown, unknown)
        for said, policy in ((name, "wtm-published"), (name + POLICY_MAE, "mae"))
    }


CONTENDERS: dict[str, Contender] = {
    LEADLINE: predict_with_leadline,
    BOOSTING: predict_with_boosting,
    HARP: predict_with_harp,
    CUSTOM: partial(predict_with_harp, custom=True),
}


def _measured(samples: Sequence[Sample]) -> Array:
    return np.asarray([one.value for one in samples])


def _numbers(samples: Sequence[Sample]) -> Array:
    """Return the features as a table; categories are numbered, what is not known is NaN."""
    names = sorted({name for one in samples for name in one.features})
    table = np.full((len(samples), len(names)), np.nan)
    for column, name in enumerate(names):
        known = sorted({str(one.features[name]) for one in samples if isinstance(one.features.get(name), str)})
        for row, one in enumerate(samples):
            value = one.features.get(name)
            if value is not None:
                table[row, column] = known.index(value) if isinstance(value, str) else value
    return table


JOBS = os.cpu_count() or 1
Progress = Callable[[int, int], None]
"""Told how many questions were answered, and how many there are."""


@dataclass(frozen=True, slots=True)
class SplitQuestion:
    """What a contender is to learn from (all scaled-down configurations of a history, or some) and to predict."""

    contender: str
    history: str
    target: str
    full_scale: int
    seed: int
    scaled_down: int | None = None

    def split(self, history: MeasuredHistory) -> HistorySplit:
        """Return the runs to learn from, and those that are asked about."""
        return split_history(history, self.full_scale, self.seed, scaled_down=self.scaled_down)


Answers = Mapping[SplitQuestion, Mapping[str, RunPredictions]]
"""Question → what each method of the contender answered."""


def pooled_predictions(answers: Answers, questions: Sequence[SplitQuestion]) -> dict[str, RunPredictions]:
    """Return what each method of a contender answered, all questions together."""
    said = [answers[one] for one in questions]
    return {method: RunPredictions.pooled([one[method] for one in said]) for method in said[0]}


def answer_questions(
    histories: Iterable[MeasuredHistory], questions: Iterable[SplitQuestion], progress: Progress = lambda *_: None
) -> Answers:
    """Return the answer to each question, asked once however often it is there."""
    from joblib import Parallel, delayed  # noqa: PLC0415 - comes with scikit-learn, which not everyone has

    named = {one.name: one for one in histories}
    wanted = list(dict.fromkeys(questions))
    said: dict[SplitQuestion, Mapping[str, RunPredictions]] = {}
    progress(0, len(wanted))
    told = Parallel(n_jobs=JOBS, return_as="generator")(delayed(_ask)(one, named[one.history]) for one in wanted)
    for question, answer in zip(wanted, told, strict=True):
        said[question] = answer
        progress(len(said), len(wanted))
    return said


def _ask(question: SplitQuestion, history: MeasuredHistory) -> Mapping[str, RunPredictions]:
    return CONTENDERS[question.contender](question.split(history), question.target, question.seed)
