"""What an estimator says of one application, corrected by its finished runs: a factor, and the range around it.

An application differs from what the estimator knows in the same way each time it runs (its input pipeline, its
library), so that one factor takes most of the error away where there is no model of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Interval
from leadline.estimators.ports import nest, unnest
from leadline.training.atomic_write import write_atomically
from leadline.training.refit import (
    JUDGED,
    LEAST_JUDGED,
    LEAST_NEW,
    MORE,
    RefitDecision,
    is_improvement,
    outcome_log_error,
)
from leadline.uncertainty.conformal import IntervalCalibration, Residuals, calibrate
from leadline.uncertainty.drift import Drift, PredictionOutcome, find_drift, median_ratio
from leadline.uncertainty.metrics import PairedComparison, compare_errors

CORRECTION_SCHEMA = "leadline.correction/1"


class CorrectionCard(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of an estimator's figures of an application, from how many ``runs``, when and why.

    ``before`` and ``after`` are mean absolute errors of logarithms on ``judged`` runs that the factor was not learned
    from, with the ``factor_before`` (1 at first) and with this one. ``until`` is the start of the last run it knew.
    """

    schema: str
    application: str
    quantity: str
    estimator: str
    factor: float
    factor_before: float
    runs: int
    made_at: str
    until: str
    why: str
    judged: int
    before: float
    after: float
    p_value: float


@dataclass(frozen=True, slots=True)
class ApplicationCorrection:
    """A factor on what an estimator says of an application, and its errors with it."""

    card: CorrectionCard
    calibration: IntervalCalibration

    def apply(self, told: Interval) -> Interval:
        """Return the interval that own runs make of an estimator's; wider where the estimator doubts itself more."""
        point = told.point * self.card.factor
        low, high = self.calibration.interval([point], [_doubt(told)], [0.0], "", told.level)
        return Interval(point, min(float(low[0]), point), max(float(high[0]), point), told.level)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What an estimator said of a run before any correction, what came of it, and when the run began."""

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
    """Return a new correction, if it is better than the ``older`` one (or none) on runs it was not learned from.

    ``about`` names the application, the quantity and the estimator; ``previous_runs`` is for how many new runs this was asked
    before, and it is answered anew when there are a quarter more.
    """
    application, quantity, estimator = about
    factor = older.card.factor if older else 1.0
    new = sorted((one for one in runs if older is None or one.started_at > older.card.until), key=_start)
    drift = find_drift([_times(one.outcome, factor) for one in new])
    recent = [one.outcome for one in new[drift.since or 0 :]]
    why_not = _too_early(drift, recent, len(new), previous_runs, older)
    if why_not:
        return None, RefitDecision(quantity, len(new), drift, replaced=False, reason=why_not)
    held = max(LEAST_JUDGED, round(JUDGED * len(recent)))
    part, newest = recent[:-held], recent[-held:]
    judged = compare_errors(
        [outcome_log_error(_times(one, factor)) for one in newest],
        [outcome_log_error(_times(one, median_ratio(part)[0])) for one in newest],
    )
    if not is_improvement(judged):
        return None, RefitDecision(
            quantity, len(new), drift, replaced=False, reason=_no_better(judged), comparison=judged
        )
    why = drift.sentence(quantity) if drift.detected else f"{len(new)} runs have ended since"
    ratio, _ = median_ratio(recent)
    card = CorrectionCard(
        schema=CORRECTION_SCHEMA, application=application, quantity=quantity, estimator=estimator, factor=ratio,
        factor_before=factor, runs=len(recent), made_at=at, until=new[-1].started_at, why=why, judged=judged.runs,
        before=judged.before, after=judged.after, p_value=judged.p_value,
    )  # fmt: skip
    said = RefitDecision(quantity, len(new), drift, replaced=True, reason=why, comparison=judged)
    return ApplicationCorrection(card, _calibrated(recent, ratio)), said


def save_correction(correction: ApplicationCorrection, path: Path) -> None:
    """Write the file whole or not at all; ``LeadlineError`` where it cannot be."""
    text = np.frombuffer(msgspec.json.encode(correction.card), np.uint8)
    held = BytesIO()
    np.savez_compressed(held, card=text, **nest("calibration", dict(correction.calibration.dump())))  # type: ignore[arg-type]
    try:
        write_atomically(path, held.getvalue())
    except OSError as error:
        raise LeadlineError(f"{path} cannot be written ({error.strerror}): make its folder writable") from error


def read_correction(path: Path) -> ApplicationCorrection:
    """Return what ``save_correction`` wrote.

    Raises:
        InvalidInput: the file is cut short, of another version, or something else.
    """
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            state = dict(arrays)
        card = msgspec.json.decode(state["card"].tobytes(), type=CorrectionCard)
        if card.schema != CORRECTION_SCHEMA:
            raise InvalidInput(
                f"{path} has the schema {card.schema}, not {CORRECTION_SCHEMA}: delete it, and it is learned again"
            )
        return ApplicationCorrection(card, IntervalCalibration.load(dict(unnest("calibration", state))))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): delete it, and it is learned again") from error


def _start(one: FinishedRun) -> str:
    return one.started_at


def _times(one: PredictionOutcome, factor: float) -> PredictionOutcome:
    """Return an outcome as if ``factor`` times as much had been predicted."""
    return PredictionOutcome(one.predicted.scaled(factor), one.measured, one.censored)


def _too_early(
    drift: Drift, recent: Sequence[PredictionOutcome], new: int, tried: int, older: ApplicationCorrection | None
) -> str:
    """Return why nothing is learned for now, or nothing."""
    whole = sum(not one.censored for one in recent)
    if len(recent) < LEAST_NEW:
        return f"{len(recent)} runs since are too few to judge by: {LEAST_NEW} are needed"
    if whole < LEAST_JUDGED:
        return f"only {whole} of {len(recent)} runs ended by themselves: what they take is not known"
    if older is not None and not drift.detected and new < MORE * older.card.runs:
        return f"it does not drift, and {new} runs are few beside the {older.card.runs} that it was learned from"
    return f"it was reconsidered with {tried} of these {new} runs" if new < (1 + MORE) * tried else ""


def _no_better(judged: PairedComparison) -> str:
    return (
        f"with a factor it would be off by {judged.after:.1%} on the newest {judged.runs} runs, and it is off by "
        f"{judged.before:.1%}: no better by more than chance and noise (p = {judged.p_value:.2g})"
    )


def _calibrated(outcomes: Sequence[PredictionOutcome], factor: float) -> IntervalCalibration:
    """Return the errors with the factor, in terms of the estimator's own doubt as far as that tells of them."""
    whole = [one for one in outcomes if not one.censored]
    return calibrate(
        Residuals.of(
            [one.measured for one in whole],
            [one.predicted.point * factor for one in whole],
            spread=[_doubt(one.predicted) for one in whole],
        )
    )


def _doubt(told: Interval) -> float:
    """Return the logarithmic half-width of an interval; NaN where it has none."""
    return math.log(told.high / told.low) / 2 if 0 < told.low < told.high else math.nan
