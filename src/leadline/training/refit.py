"""Learn from runs that came after a model was trained: what may replace it, and whether that is better on later ones.

A challenger is fitted on all but the newest runs and compared with the model on these, run by run. It replaces the
model only where it is better there by more than chance; then it is made again with those runs, too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.estimate import NORMAL_90, Interval
from leadline.core.jobs import JobState
from leadline.core.trained_model import Feature
from leadline.estimators.ports import TabularEstimator
from leadline.training.build import TrainingOptions, TrainingOrigin, build_model
from leadline.training.candidate_race import Progress
from leadline.training.dataset import is_usable, target_value
from leadline.training.model import ApplicationModel
from leadline.training.model_card import Refit
from leadline.training.records import RunRecord
from leadline.uncertainty.drift import Drift, PredictionOutcome, find_drift, median_ratio
from leadline.uncertainty.metrics import PairedComparison, compare_errors

LEVEL = 0.9
RISK = 0.05
"""Probability at which a challenger that is no better may replace a model."""
LEAST_GAIN = 0.008
"""A smaller gain of the mean error is not worth a change; repeats of a training run differ by as much."""
LEAST_NEW, LEAST_JUDGED = 12, 6
"""Runs since the model, or since it drifted, that are needed; and the newest of them, on which both are judged."""
JUDGED = 1 / 3
MORE = 0.25
"""Without drift, a model is fitted again when so many runs have come, as a share of those it was learned from."""


@dataclass(frozen=True, slots=True)
class RefitDecision:
    """What became of one target: the ``drift`` of its errors, whether it was ``replaced``, and why or why not.

    ``comparison`` compares it with the best challenger, where there was one. ``new_runs`` counts the runs since the model.
    """

    target: str
    new_runs: int
    drift: Drift
    replaced: bool
    reason: str
    comparison: PairedComparison | None = None
    refit: Refit | None = None


@dataclass(frozen=True, slots=True)
class RefitSettings:
    """How to reconsider: the estimators to compare, where the runs come from, and when it is."""

    estimators: Mapping[str, TabularEstimator]
    origin: TrainingOrigin
    jobs: int | None = 1
    progress: Progress = lambda *_: None


class _Make(Protocol):
    def __call__(self, part: Sequence[RunRecord]) -> ApplicationModel: ...


@dataclass(frozen=True, slots=True)
class _Challenger:
    how: str
    make: _Make


def refit_model(
    model: ApplicationModel,
    records: Sequence[RunRecord],
    asked: RefitSettings,
    *,
    previous_runs: Mapping[str, int] | None = None,
) -> tuple[ApplicationModel, tuple[RefitDecision, ...]]:
    """Return the model with every target replaced whose challenger was better on runs that it had not seen.

    ``records`` are all runs of the application, those of the model included. ``previous_runs`` says for how many new runs a
    target was reconsidered before: it is again when there are a quarter more.
    """
    found = []
    ordered = sorted((one for one in records if one.started_at), key=lambda one: (one.started_at, one.id))
    for target in model.targets:
        model, said = _target(model, target, ordered, asked, (previous_runs or {}).get(target, 0))
        found.append(said)
    return model, tuple(found)


def prediction_outcomes(model: ApplicationModel, target: str, records: Sequence[RunRecord]) -> list[PredictionOutcome]:
    """Return what a model says of runs beside what was measured; of those cut off that is a lower bound."""
    if not records:
        return []
    told = model.predict(target, [one.features for one in records], LEVEL)
    return [
        PredictionOutcome(
            Interval(*interval, LEVEL), target_value(one, target) or 0.0, one.state is not JobState.COMPLETED
        )
        for one, interval in zip(records, zip(told.point, told.low, told.high, strict=True), strict=True)
    ]


def outcome_log_error(one: PredictionOutcome) -> float:
    """Return ln(measured ÷ predicted); of a run that was cut off nothing where the prediction lies above its bound."""
    return max(one.log_error, 0.0) if one.censored else one.log_error


def _target(
    model: ApplicationModel, target: str, ordered: Sequence[RunRecord], asked: RefitSettings, tried: int
) -> tuple[ApplicationModel, RefitDecision]:
    usable = [one for one in ordered if is_usable(one, target)]
    since = model.card.known_until(target)
    new = [one for one in usable if one.started_at > since]
    outcomes = prediction_outcomes(model, target, new)
    drift = find_drift(outcomes)
    first = drift.since or 0
    recent = new[first:]
    why_not = _too_early(model, target, drift, len(new), len(recent), tried)
    if why_not:
        return model, RefitDecision(target, len(new), drift, replaced=False, reason=why_not)
    held = max(LEAST_JUDGED, round(JUDGED * len(recent)))
    earlier = [one for one in usable if one not in recent]
    return _judge(
        model, target, _challengers(model, target, earlier, asked, drift), recent, held, drift, len(new), asked
    )


def _too_early(model: ApplicationModel, target: str, drift: Drift, new: int, recent: int, tried: int) -> str:
    """Return why a target is left alone for now, or nothing."""
    card = model.card.of(target)
    learned = card.samples if card else 0
    if recent < LEAST_NEW:
        return f"{recent} runs since are too few to judge by: {LEAST_NEW} are needed"
    if not drift.detected and new < MORE * learned:
        return f"it does not drift, and {new} runs are few beside the {learned} that it was learned from"
    if new < (1 + MORE) * tried:
        return f"it was reconsidered with {tried} of these {new} runs"
    return ""


def _challengers(
    model: ApplicationModel, target: str, earlier: Sequence[RunRecord], asked: RefitSettings, drift: Drift
) -> list[_Challenger]:
    """Return what may replace a target, the simplest first: a factor, or the same learned from other runs."""

    def built(part: Sequence[RunRecord], before: Sequence[RunRecord]) -> ApplicationModel:
        records = [*before, *part]
        made, _ = build_model(records, asked.estimators, asked.origin, _options(model, target, records, asked.jobs),
                        progress=asked.progress)  # fmt: skip
        return made

    def scaled(part: Sequence[RunRecord]) -> ApplicationModel:
        outcomes = prediction_outcomes(model, target, part)
        ratio, _ = median_ratio(outcomes)
        return _times(model, target, ratio, widening_factor(outcomes, ratio))

    found = [
        _Challenger("every prediction times a factor", scaled),
        _Challenger("fitted again on all runs", partial(built, before=earlier)),
    ]
    if drift.detected:
        found.append(_Challenger("fitted again on the runs since it drifted", partial(built, before=())))
    return found


def _judge(
    model: ApplicationModel, target: str, challengers: Sequence[_Challenger], recent: Sequence[RunRecord], held: int, drift: Drift,
    new: int, asked: RefitSettings,
) -> tuple[ApplicationModel, RefitDecision]:  # fmt: skip
    """Compare the challengers with the model on the newest runs, and put one in its place if it is better."""
    part, newest = recent[:-held], recent[-held:]
    before = [outcome_log_error(one) for one in prediction_outcomes(model, target, newest)]
    tried: list[tuple[_Challenger, list[float]]] = []
    for one in challengers:
        try:
            after = [outcome_log_error(each) for each in prediction_outcomes(one.make(part), target, newest)]
        except (InvalidInput, np.linalg.LinAlgError):
            continue  # too few runs, or too few configurations, for an estimator of their own
        tried.append((one, after))
    best, after = tried[0]
    for one, errors in tried[1:]:  # a simpler one stays unless it is beaten: it goes less astray beyond these runs
        if is_improvement(compare_errors(after, errors, tried=len(tried))):
            best, after = one, errors
    judged = compare_errors(before, after, tried=len(tried))
    why = drift.sentence(target) if drift.detected else f"{new} runs have come since it was learned"
    if not is_improvement(judged):
        return model, RefitDecision(
            target, new, drift, replaced=False, reason=_no_better(best, judged), comparison=judged
        )
    made = best.make(recent)
    refit = Refit(
        target, asked.origin.trained_at, why, best.how, _name(model, target), _name(made, target), judged.runs,
        judged.before, judged.after, judged.p_value, recent[-1].started_at,
    )  # fmt: skip
    return _with_target(model, made, refit), RefitDecision(
        target, new, drift, replaced=True, reason=why, comparison=judged, refit=refit
    )


def is_improvement(judged: PairedComparison) -> bool:
    """Whether the challenger is better by more than chance, and by more than repeats of one run differ."""
    return judged.better(RISK) and judged.before - judged.after >= LEAST_GAIN


def _no_better(best: _Challenger, judged: PairedComparison) -> str:
    return (
        f"{best.how} would be off by {judged.after:.1%} on the newest {judged.runs} runs, and it is off by "
        f"{judged.before:.1%}: no better by more than chance and noise (p = {judged.p_value:.2g})"
    )


def _name(model: ApplicationModel, target: str) -> str:
    card = model.card.of(target)
    if card is None:
        raise ValueError(f"the model has no {target}")
    return card.estimator + (f" times {card.factor:.3g}" if card.factor != 1 else "")


def _options(model: ApplicationModel, target: str, records: Sequence[RunRecord], jobs: int | None) -> TrainingOptions:
    """Return how the model was trained, for one target; features that it does not know are left out."""
    known = {one.name: one for one in model.features}
    names = {name for one in records for name in one.features}
    numbers = {name for one in records for name, value in one.features.items() if not isinstance(value, str)}
    card = model.card.of(target)
    return TrainingOptions(
        (target,),
        card.policy if card else "mape",
        tuple(name for name in (card.scale_features if card else ()) if name in names),
        tuple(sorted(names - known.keys())),
        tuple(sorted(name for name in numbers & known.keys() if known[name].categorical)),
        model.card.seed,
        jobs,
    )


def widening_factor(outcomes: Sequence[PredictionOutcome], ratio: float) -> float:
    """Return how many times as wide intervals must be that LEVEL of the runs lie in them once scaled; 1 at least."""
    scaled = [PredictionOutcome(one.predicted.scaled(ratio), one.measured) for one in outcomes if not one.censored]
    scores = sorted(abs(one.score) for one in scaled)
    rank = min(math.ceil(LEVEL * (len(scores) + 1)), len(scores))
    return max(scores[rank - 1] / NORMAL_90, 1.0) if scores else 1.0


def _times(model: ApplicationModel, target: str, ratio: float, wider: float) -> ApplicationModel:
    """Return the model with every prediction of a target times a ratio, and its interval as much wider."""
    targets = tuple(
        replace(one, factor=one.factor * ratio) if one.target == target else one for one in model.card.targets
    )
    calibrations = {**model.calibrations, target: model.calibrations[target].widened(wider)}
    return replace(model, card=replace(model.card, targets=targets), calibrations=calibrations)


def _with_target(model: ApplicationModel, made: ApplicationModel, refit: Refit) -> ApplicationModel:
    """Return the model with one target as another model has it, and a line on its card."""
    target = refit.target
    new = made.card.of(target)
    targets = tuple(new if new and one.target == target else one for one in model.card.targets)
    card = replace(
        model.card,
        targets=targets,
        features=_seen_by_both(model.features, made.features),
        runs=max(model.card.runs, made.card.runs),
        refits=(*model.card.refits, refit),
    )
    return ApplicationModel(
        card,
        {**model.fitted, target: made.fitted[target]},
        {**model.calibrations, target: made.calibrations[target]},
    )


def _seen_by_both(old: Sequence[Feature], new: Sequence[Feature]) -> tuple[Feature, ...]:
    """Return the features with the ranges that the newer model has seen; what it left out is as it was."""
    newer = {one.name: one for one in new}
    return tuple(newer.get(one.name, one) for one in old)
