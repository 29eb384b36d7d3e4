"""Correct an estimator's predictions of one application by a factor learned from its finished runs.

An application deviates from the estimator in the same way each time it runs, because of its input pipeline or library.
So one factor removes most of the error where no model of the application exists.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.estimators.ports import State, nest, unnest
from leadline.training.array_files import Card, read_with_card, write_with_card
from leadline.training.refit import (
    LEAST_JUDGED,
    LEAST_NEW,
    RefitDecision,
    is_improvement,
    no_improvement,
    outcome_log_error,
    scale_outcome,
    split_newest,
    too_early,
)
from leadline.uncertainty.conformal import IntervalCalibration, Residuals, calibrate
from leadline.uncertainty.drift import Drift, PredictionOutcome, find_drift, median_ratio
from leadline.uncertainty.metrics import compare_errors

CORRECTION_SCHEMA = "leadline.correction/1"


class CorrectionCard(Card, frozen=True, kw_only=True):
    """Origin and accuracy of a correction of one quantity; ``factor`` multiplies the estimator's predictions."""

    application: str
    quantity: str
    estimator: str
    factor: float
    factor_before: float
    runs: int  # number of runs that the factor was learned from; ``until`` is the start of the last of them
    made_at: str
    until: str
    why: str
    judged: int  # number of runs that the two factors were compared on
    before: float  # mean absolute log error with ``factor_before``, which is 1 at first; ``after``: with ``factor``
    after: float
    p_value: float


class ApplicationCorrection(Frozen):
    """A factor on an estimator's predictions of an application, and the calibration of its errors."""

    card: CorrectionCard
    calibration: IntervalCalibration

    def apply(self, predicted: Interval) -> Interval:
        """Return the corrected interval; it is wider where the estimator's own interval is wider."""
        point = predicted.point * self.card.factor
        low, high = self.calibration.interval([point], [_log_half_width(predicted)], [0.0], "", predicted.level)
        return Interval(point, min(float(low[0]), point), max(float(high[0]), point), predicted.level)


class FinishedRun(Frozen):
    """A run's uncorrected prediction with its measurement, and its start."""

    outcome: PredictionOutcome
    started_at: str


def fit_correction(
    runs: Sequence[FinishedRun],
    about: tuple[str, str, str],
    at: str,
    *,
    older: ApplicationCorrection | None = None,
    previous_runs: int = 0,
) -> tuple[ApplicationCorrection | None, RefitDecision]:
    """Return a new correction if it is better than the older one on runs that it was not learned from.

    ``about`` is the application, the quantity and the estimator; ``at`` the present time, for the card. ``older`` is
    the correction in use, and ``previous_runs`` the number of new runs at the last attempt. The next attempt waits for
    a quarter more.
    """
    application, quantity, estimator = about
    factor = older.card.factor if older else 1.0
    until = older.card.until if older else ""
    new = sorted((run for run in runs if not older or run.started_at > until), key=lambda run: run.started_at)
    drift = find_drift([scale_outcome(run.outcome, factor) for run in new])
    # Runs before the drift do not tell how the application behaves now.
    recent = [run.outcome for run in new[drift.since or 0 :]]
    reason = _too_early(drift, recent, len(new), previous_runs, older)
    if reason:
        return None, RefitDecision(quantity, len(new), drift, replaced=False, reason=reason)
    part, newest = split_newest(recent)
    part_ratio, _ = median_ratio(part)
    comparison = compare_errors(
        [outcome_log_error(scale_outcome(outcome, factor)) for outcome in newest],
        [outcome_log_error(scale_outcome(outcome, part_ratio)) for outcome in newest],
    )
    if not is_improvement(comparison):
        reason = no_improvement("a factor learned from the runs before", comparison)
        return None, RefitDecision(quantity, len(new), drift, replaced=False, reason=reason, comparison=comparison)
    why = drift.sentence(quantity) if drift.detected else f"{len(new)} runs have ended since"
    ratio, _ = median_ratio(recent)
    card = CorrectionCard(
        schema=CORRECTION_SCHEMA, application=application, quantity=quantity, estimator=estimator, factor=ratio,
        factor_before=factor, runs=len(recent), made_at=at, until=new[-1].started_at, why=why, judged=comparison.runs,
        before=comparison.before, after=comparison.after, p_value=comparison.p_value,
    )  # fmt: skip
    decision = RefitDecision(quantity, len(new), drift, replaced=True, reason=why, comparison=comparison)
    return ApplicationCorrection(card, _calibrate(recent, ratio)), decision


def save_correction(correction: ApplicationCorrection, path: Path) -> None:
    """Write a correction whole or not at all.

    Raises:
        LeadlineError: the file cannot be written.
    """
    try:
        write_with_card(path, correction.card, nest("calibration", dict(correction.calibration.dump())))
    except OSError as error:
        raise LeadlineError(f"{path} cannot be written ({error.strerror}): make its folder writable") from error


def read_correction(path: Path) -> ApplicationCorrection:
    """Read a correction that ``save_correction`` wrote.

    Raises:
        InvalidInput: the file is damaged, of another version, or something else.
    """

    def restore(card: CorrectionCard, state: State) -> ApplicationCorrection:
        return ApplicationCorrection(card, IntervalCalibration.load(dict(unnest("calibration", state))))

    return read_with_card(path, CorrectionCard, CORRECTION_SCHEMA, restore, fix="delete it, and it is learned again")


def _too_early(
    drift: Drift, recent: Sequence[PredictionOutcome], new: int, previous_runs: int, older: ApplicationCorrection | None
) -> str:
    """Return why nothing is learned for now; empty if the runs suffice."""
    uncensored = sum(not outcome.censored for outcome in recent)
    if len(recent) >= LEAST_NEW and uncensored < LEAST_JUDGED:
        return f"only {uncensored} of {len(recent)} runs ended by themselves: the need of the others is unknown"
    return too_early(drift, len(recent), new, previous_runs, (older.card.runs if older else 0, "learned from"))


def _calibrate(outcomes: Sequence[PredictionOutcome], factor: float) -> IntervalCalibration:
    uncensored = [outcome for outcome in outcomes if not outcome.censored]
    measured = [outcome.measured for outcome in uncensored]
    predicted = [outcome.predicted.point * factor for outcome in uncensored]
    spread = [_log_half_width(outcome.predicted) for outcome in uncensored]
    return calibrate(Residuals.of(measured, predicted, spread=spread))


def _log_half_width(interval: Interval) -> float:
    """Return the logarithmic half-width of an interval; NaN where it has none."""
    return math.log(interval.high / interval.low) / 2 if 0 < interval.low < interval.high else math.nan
