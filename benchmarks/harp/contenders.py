"""HARP, plain boosting and Leadline, trained on the same runs and tested on the same held-out runs."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.harp.harp_1_0 import build_harp
from benchmarks.histories import HistorySplit, MeasuredHistory, split_history
from leadline.core.runs import Sample, Scale
from leadline.estimators.tabular.registry import ESTIMATORS
from leadline.training.build import TrainingOrigin, build_model
from leadline.training.records import TrainingOptions
from leadline.uncertainty.metrics import coverage, mae, mape, ov_mape, over_request, underprediction

Array = npt.NDArray[np.float64]

LEVEL = 0.9
RISK = 0.05


@dataclass(frozen=True, slots=True)
class RunPredictions:
    """Measurements and predictions of n runs; every array has shape (n,).

    ``low`` to ``high`` is a 90 % interval, so ``high`` is the request at a risk of 5 %. Both are NaN where a method
    has no interval. ``runs`` names the predicted runs, which several draws share.

    ``own_error`` is the error (MAPE, percent) at full scale that the method measured on its own training runs, before
    any test. It is the same in all rows of one fit, and NaN where a method measures none.
    """

    measured: Array
    point: Array
    low: Array
    high: Array
    runs: npt.NDArray[np.str_]
    own_error: Array

    @property
    def n(self) -> int:
        """Return the number of distinct runs, however often each was predicted."""
        return len(np.unique(self.runs))

    @classmethod
    def pooled(cls, parts: Sequence["RunPredictions"]) -> "RunPredictions":
        """Join several predictions."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def metrics(self) -> dict[str, float | None]:
        """Return every metric by name, in percent; ``MAE`` is in the target's unit, ``over-request`` a ratio."""
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
"""(split, target, seed) → the predictions of its methods, which share one fit, for the held-out runs."""
LEADLINE, BOOSTING, HARP, CUSTOM = "Leadline", "boosting", "HARP as released", "HARP as released, custom"
FIXED, FIXED_CUSTOM = "HARP without faults", "HARP without faults, custom"
"""Methods; HARP and its custom mode use its walltime metric as the policy."""
POLICY_MAE = ", policy MAE"


def predict_with_leadline(split: HistorySplit, target: str, seed: int) -> dict[str, RunPredictions]:
    """Build the model that ``leadline train`` writes, and predict with it."""
    test = split.test(target)
    history = split.history
    options = TrainingOptions(
        (target,), scale_features=history.scale_features, categories=history.categories, seed=seed
    )
    model, (trained,) = build_model(split.learned, ESTIMATORS, TrainingOrigin(history.name, "", ""), options)
    rows = [sample.features for sample in test]
    predicted = model.predict(target, rows, LEVEL)
    point, low, high = np.asarray(predicted.point), np.asarray(predicted.low), model.upper(target, rows, RISK)
    validated = trained.validated.get(Scale.FULL_SCALE.value)
    own_error = validated.mape if validated else float("nan")
    return {LEADLINE: _predictions(test, point, (low, np.asarray(high)), own_error)}


def predict_with_boosting(split: HistorySplit, target: str, seed: int) -> dict[str, RunPredictions]:
    """Fit scikit-learn's gradient boosting with its defaults, and its quantile loss for the interval."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - heavy, and not at start-up

    test = split.test(target)
    learned = [sample for sample in split.training(target).dataset.samples if not sample.censored]
    rows = _numbers([*learned, *test])
    measured = _measured(learned)

    def predict(**loss: object) -> Array:
        fitted = HistGradientBoostingRegressor(random_state=seed, **loss).fit(rows[: len(learned)], measured)
        values: Array = fitted.predict(rows[len(learned) :])
        return values

    bounds = [predict(loss="quantile", quantile=quantile) for quantile in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    return {BOOSTING: _predictions(test, predict(), (bounds[0], bounds[1]))}


def predict_with_harp(
    split: HistorySplit, target: str, seed: int, *, custom: bool = False, faithful: bool = True
) -> dict[str, RunPredictions]:
    """Build HARP; select its model by its own policy and by mean absolute error.

    ``faithful`` keeps the faults of the release. It then scores its models on the test, so it has no error of its own.
    """
    test = split.test(target)
    work = split.history.work if custom else None
    built = build_harp(split.training(target).dataset.samples, test, faithful=faithful, work=work, seed=seed)
    name = (CUSTOM if custom else HARP) if faithful else (FIXED_CUSTOM if custom else FIXED)
    answers = {}
    for method, policy in ((name, "wtm-published" if faithful else "wtm"), (name + POLICY_MAE, "mae")):
        model = built.pick(policy)
        judged = not faithful and bool(split.training(target).dataset.at(Scale.FULL_SCALE))
        own_error = mape(built.judged_by.tolist(), model.scored.tolist()) if judged else float("nan")
        answers[method] = _predictions(test, model.predicted, own_error=own_error)
    return answers


CONTENDERS: dict[str, Contender] = {
    LEADLINE: predict_with_leadline,
    BOOSTING: predict_with_boosting,
    HARP: predict_with_harp,
    CUSTOM: partial(predict_with_harp, custom=True),
    FIXED: partial(predict_with_harp, faithful=False),
    FIXED_CUSTOM: partial(predict_with_harp, custom=True, faithful=False),
}


def _predictions(
    test: Sequence[Sample], point: Array, bounds: tuple[Array, Array] | None = None, own_error: float = float("nan")
) -> RunPredictions:
    """Return predictions of the test runs; without ``bounds`` they have no interval."""
    n = len(test)
    low, high = bounds or (np.full(n, np.nan), np.full(n, np.nan))
    runs = np.array([sample.run_id for sample in test])
    return RunPredictions(_measured(test), point, low, high, runs, np.full(n, own_error))


def _measured(samples: Sequence[Sample]) -> Array:
    return np.asarray([sample.value for sample in samples])


def _numbers(samples: Sequence[Sample]) -> Array:
    """Return the features as a table (samples, features); categories are numbered, unknown features NaN."""
    names = sorted({name for sample in samples for name in sample.features})
    table = np.full((len(samples), len(names)), np.nan)
    for column, name in enumerate(names):
        texts = (sample.features.get(name) for sample in samples)
        categories = sorted({text for text in texts if isinstance(text, str)})
        for row, sample in enumerate(samples):
            value = sample.features.get(name)
            if value is not None:
                table[row, column] = categories.index(value) if isinstance(value, str) else value
    return table


JOBS = os.cpu_count() or 1
Progress = Callable[[int, int], None]
"""Called with the number of answered questions and of all questions."""


@dataclass(frozen=True, slots=True)
class SplitQuestion:
    """A contender, the split of a history that it learns from, and the target that it predicts."""

    contender: str
    history: str
    target: str
    full_scale: int
    seed: int
    scaled_down: int | None = None

    def split(self, history: MeasuredHistory) -> HistorySplit:
        """Return the training runs and the held-out runs."""
        return split_history(history, self.full_scale, self.seed, scaled_down=self.scaled_down)


Answers = Mapping[SplitQuestion, Mapping[str, RunPredictions]]
"""Question → method of the contender → its predictions."""


def pooled_predictions(answers: Answers, questions: Sequence[SplitQuestion]) -> dict[str, RunPredictions]:
    """Return the predictions of each method of a contender, all questions joined."""
    parts = [answers[question] for question in questions]
    return {method: RunPredictions.pooled([part[method] for part in parts]) for method in parts[0]}


def answer_questions(
    histories: Iterable[MeasuredHistory], questions: Iterable[SplitQuestion], progress: Progress = lambda *_: None
) -> Answers:
    """Answer each distinct question once, on all cores."""
    from joblib import Parallel, delayed  # noqa: PLC0415 - comes with scikit-learn, which not everyone has

    by_name = {history.name: history for history in histories}
    distinct = list(dict.fromkeys(questions))
    answers: dict[SplitQuestion, Mapping[str, RunPredictions]] = {}
    progress(0, len(distinct))
    results = Parallel(n_jobs=JOBS, return_as="generator")(
        delayed(_answer)(question, by_name[question.history]) for question in distinct
    )
    for question, answer in zip(distinct, results, strict=True):
        answers[question] = answer
        progress(len(answers), len(distinct))
    return answers


def _answer(question: SplitQuestion, history: MeasuredHistory) -> Mapping[str, RunPredictions]:
    return CONTENDERS[question.contender](question.split(history), question.target, question.seed)
