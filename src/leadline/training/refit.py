"""Refit a model to later runs, and keep the new version only where it predicts the newest runs better.

Challengers are fitted on all but the newest runs and compared with the model on these, run by run. The best one
replaces the model where it is better by more than chance. It is then fitted again with the newest runs too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.estimate import NORMAL_90, Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.estimators.ports import TabularEstimator
from leadline.training.build import TrainingOrigin, build_model
from leadline.training.dataset import usable_value
from leadline.training.model import ApplicationModel
from leadline.training.model_card import Refit
from leadline.training.records import RunRecord, TrainingOptions
from leadline.uncertainty.drift import Drift, PredictionOutcome, find_drift, median_ratio
from leadline.uncertainty.metrics import PairedComparison, compare_errors

RunT = TypeVar("RunT")

LEVEL = 0.9
RISK = 0.05
"""Probability at which a challenger that is no better may replace a model."""
LEAST_GAIN = 0.008
"""Smallest gain of the mean error that justifies a change: repeats of one training run differ by as much."""
LEAST_NEW, LEAST_JUDGED = 12, 6
"""Required runs since the model or since its drift, and the newest of them, on which both are judged."""
JUDGED = 1 / 3
MORE = 0.25
"""Without drift, a model is refitted after so many new runs, as a share of those it was trained on."""


class RefitDecision(Frozen):
    """Whether a challenger replaced the estimator of one target, and why.

    ``new_runs`` have come since the model was trained, and ``drift`` is that of its errors on them. ``comparison`` is
    with the best challenger, where one could be fitted.
    """

    target: str
    new_runs: int
    drift: Drift
    replaced: bool
    reason: str
    comparison: PairedComparison | None = None


_Make = Callable[[Sequence[RunRecord]], ApplicationModel]
"""Fits a challenger on runs."""


class _Question(Frozen):
    """One target of a model, the new runs that can judge it, and the drift of its errors on them."""

    model: ApplicationModel
    target: str
    estimators: Mapping[str, TabularEstimator]
    origin: TrainingOrigin
    usable: Sequence[RunRecord]
    recent: Sequence[RunRecord]
    new_runs: int
    drift: Drift

    def keep(self, reason: str, comparison: PairedComparison | None = None) -> RefitDecision:
        return RefitDecision(self.target, self.new_runs, self.drift, False, reason, comparison)  # noqa: FBT003


def refit_model(
    model: ApplicationModel,
    records: Sequence[RunRecord],
    estimators: Mapping[str, TabularEstimator],
    origin: TrainingOrigin,
    *,
    previous_runs: Mapping[str, int] | None = None,
) -> tuple[ApplicationModel, tuple[RefitDecision, ...]]:
    """Replace every target of a model whose challenger predicts the newest runs better.

    ``records`` are all runs of the application, including those of the model. ``estimators`` are compared, and
    ``origin`` is for the new card. ``previous_runs`` maps a target to the
    number of new runs at the last attempt. The next attempt waits for a quarter more.
    """
    decisions = []
    ordered = sorted((record for record in records if record.started_at), key=lambda run: (run.started_at, run.id))
    for target in model.targets:
        usable = [record for record in ordered if usable_value(record, target) is not None]
        known_until = model.card.known_until(target)
        new = [record for record in usable if record.started_at > known_until]
        drift = find_drift(prediction_outcomes(model, target, new))
        # Runs before the drift do not tell how the application behaves now.
        recent = new[drift.since or 0 :]
        question = _Question(model, target, estimators, origin, usable, recent, len(new), drift)
        base = (model.card.of(target).samples, "trained on")
        reason = too_early(drift, len(recent), len(new), (previous_runs or {}).get(target, 0), base)
        model, decision = (model, question.keep(reason)) if reason else _judge(question)
        decisions.append(decision)
    return model, tuple(decisions)


def prediction_outcomes(model: ApplicationModel, target: str, records: Sequence[RunRecord]) -> list[PredictionOutcome]:
    """Return a model's predictions of runs with the measured values, which are lower bounds of runs cut off."""
    if not records:
        return []
    predicted = model.predict(target, [record.features for record in records], LEVEL)
    intervals = zip(predicted.point, predicted.low, predicted.high, strict=True)
    return [
        PredictionOutcome(
            Interval(*interval, LEVEL), usable_value(record, target) or 0.0, record.state is not JobState.COMPLETED
        )
        for record, interval in zip(records, intervals, strict=True)
    ]


def scale_outcome(outcome: PredictionOutcome, factor: float) -> PredictionOutcome:
    """Return the outcome of a prediction times a factor."""
    return replace(outcome, predicted=outcome.predicted.scaled(factor))


def outcome_log_error(outcome: PredictionOutcome) -> float:
    """Return ln(measured ÷ predicted); 0 for a prediction above the lower bound of a run that was cut off."""
    return max(outcome.log_error, 0.0) if outcome.censored else outcome.log_error


def too_early(drift: Drift, recent: int, new: int, previous_runs: int, base: tuple[int, str]) -> str:
    """Return why an estimator is left alone for now; empty if it is not.

    The counts are of the runs since the drift, since the last fit, and at the last attempt. ``base`` has the number of
    runs of the last fit, and a word for it.
    """
    if recent < LEAST_NEW:
        return f"{recent} runs since are too few to judge by: {LEAST_NEW} are needed"
    if not drift.detected and new < MORE * base[0]:
        return f"it does not drift, and {new} runs are few compared with the {base[0]} that it was {base[1]}"
    return f"it was reconsidered with {previous_runs} of these {new} runs" if new < (1 + MORE) * previous_runs else ""


def _challengers(question: _Question) -> list[tuple[str, _Make]]:
    """Return the possible replacements by name, the simplest first: a factor, or a fit on other runs."""
    model, target = question.model, question.target
    earlier = [record for record in question.usable if record not in question.recent]

    def built(part: Sequence[RunRecord], before: Sequence[RunRecord]) -> ApplicationModel:
        records = [*before, *part]
        return build_model(records, question.estimators, question.origin, _options(model, target, records))[0]

    def scaled(part: Sequence[RunRecord]) -> ApplicationModel:
        outcomes = prediction_outcomes(model, target, part)
        ratio, _ = median_ratio(outcomes)
        return _times(model, target, ratio, widening_factor(outcomes, ratio))

    challengers: list[tuple[str, _Make]] = [
        ("every prediction times a factor", scaled),
        ("fitted again on all runs", partial(built, before=earlier)),
    ]
    if question.drift.detected:
        challengers.append(("fitted again on the runs since it drifted", partial(built, before=())))
    return challengers


def _judge(question: _Question) -> tuple[ApplicationModel, RefitDecision]:
    """Compare the challengers with the model on the newest runs, and install the best one if it is better."""
    model, target, drift = question.model, question.target, question.drift
    part, newest = split_newest(question.recent)
    before = [outcome_log_error(outcome) for outcome in prediction_outcomes(model, target, newest)]
    tried: list[tuple[str, _Make, list[float]]] = []
    for name, make in _challengers(question):
        try:
            outcomes = prediction_outcomes(make(part), target, newest)
        except (InvalidInput, np.linalg.LinAlgError):
            continue  # too few runs, or too few configurations, for an estimator of their own
        tried.append((name, make, [outcome_log_error(outcome) for outcome in outcomes]))
    how, best, after = tried[0]
    # A simpler challenger stays unless it is beaten: it extrapolates more safely.
    for name, make, errors in tried[1:]:
        if is_improvement(compare_errors(after, errors, tried=len(tried))):
            how, best, after = name, make, errors
    comparison = compare_errors(before, after, tried=len(tried))
    if not is_improvement(comparison):
        return model, question.keep(no_improvement(how, comparison), comparison)
    why = drift.sentence(target) if drift.detected else f"{question.new_runs} runs have come since it was trained"
    refitted = best(question.recent)
    refit = Refit(
        target, question.origin.trained_at, why, how, _name(model, target), _name(refitted, target),
        comparison.runs, comparison.before, comparison.after, comparison.p_value, question.recent[-1].started_at,
    )  # fmt: skip
    decision = RefitDecision(target, question.new_runs, drift, True, why, comparison)  # noqa: FBT003
    return _with_target(model, refitted, refit), decision


def split_newest(recent: Sequence[RunT]) -> tuple[Sequence[RunT], Sequence[RunT]]:
    """Return the runs to fit on, and the newest ones to judge by."""
    count = max(LEAST_JUDGED, round(JUDGED * len(recent)))
    return recent[:-count], recent[-count:]


def is_improvement(comparison: PairedComparison) -> bool:
    """Return whether the challenger is better by more than chance and than repeats of one run differ."""
    return comparison.better(RISK) and comparison.before - comparison.after >= LEAST_GAIN


def no_improvement(how: str, comparison: PairedComparison) -> str:
    """Return why a challenger does not replace the present estimator."""
    return (
        f"{how}: the error on the newest {comparison.runs} runs would be {comparison.after:.1%}, and is "
        f"{comparison.before:.1%} now: no better by more than chance and noise (p = {comparison.p_value:.2g})"
    )


def _name(model: ApplicationModel, target: str) -> str:
    card = model.card.of(target)
    return card.estimator + (f" times {card.factor:.3g}" if card.factor != 1 else "")


def _options(model: ApplicationModel, target: str, records: Sequence[RunRecord]) -> TrainingOptions:
    """Return the model's training options for one target, without the features that the model does not have."""
    features = {feature.name: feature for feature in model.features}
    names = {name for record in records for name in record.features}
    numbers = {name for record in records for name, value in record.features.items() if not isinstance(value, str)}
    categories = sorted(name for name in numbers & features.keys() if features[name].categorical)
    card, unknown = model.card.of(target), sorted(names - features.keys())
    scale = tuple(name for name in card.scale_features if name in names)
    return TrainingOptions((target,), card.policy, scale, tuple(unknown), tuple(categories), model.card.seed)


def widening_factor(outcomes: Sequence[PredictionOutcome], ratio: float) -> float:
    """Return the factor on the intervals, at least 1, with which they hold LEVEL of the scaled predictions."""
    uncensored = [outcome for outcome in outcomes if not outcome.censored]
    scores = sorted(abs(scale_outcome(outcome, ratio).score) for outcome in uncensored)
    rank = min(math.ceil(LEVEL * (len(scores) + 1)), len(scores))
    return max(scores[rank - 1] / NORMAL_90, 1.0) if scores else 1.0


def _times(model: ApplicationModel, target: str, ratio: float, wider: float) -> ApplicationModel:
    targets = tuple(
        replace(card, factor=card.factor * ratio) if card.target == target else card for card in model.card.targets
    )
    calibrations = {**model.calibrations, target: model.calibrations[target].widened(wider)}
    return replace(model, card=replace(model.card, targets=targets), calibrations=calibrations)


def _with_target(model: ApplicationModel, refitted: ApplicationModel, refit: Refit) -> ApplicationModel:
    """Return the model with one target of the refitted model, and the refit on its card."""
    target = refit.target
    new = refitted.card.of(target)
    ranges = {feature.name: feature for feature in refitted.features}
    card = replace(
        model.card,
        targets=tuple(new if card.target == target else card for card in model.card.targets),
        # A feature that the refitted model left out keeps its range.
        features=tuple(ranges.get(feature.name, feature) for feature in model.features),
        runs=max(model.card.runs, refitted.card.runs),
        refits=(*model.card.refits, refit),
    )
    return ApplicationModel(
        card,
        {**model.fitted, target: refitted.fitted[target]},
        {**model.calibrations, target: refitted.calibrations[target]},
    )
