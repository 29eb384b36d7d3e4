"""Retrain on finished runs, and keep a new model only if it is better on later runs.

``python -m leadline.app.models.retrain`` reads application names as JSON from stdin and prints a
``RetrainingReport``. The plane runs it in a process of its own, because fitting takes memory and time.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from leadline.app import settings
from leadline.app.background import answer_question
from leadline.app.composition import user_catalog
from leadline.app.models.train import FITTING_PACKAGES, find_device, readable_name
from leadline.core.documents import from_json, to_json
from leadline.core.errors import InvalidInput, LeadlineError, MissingExtra
from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Run
from leadline.files.atomic import write_atomically
from leadline.files.read import read_input
from leadline.history.sqlite import SqliteHistory
from leadline.training.records import application_name, run_records

if TYPE_CHECKING:
    from leadline.training.application_correction import ApplicationCorrection, FinishedRun
    from leadline.training.model import ApplicationModel
    from leadline.training.refit import RefitDecision

SCHEMA = "leadline.learned/1"
QUANTITIES = {"elapsed_s": JobState.TIMEOUT, "host_memory_bytes": JobState.OUT_OF_MEMORY}
"""Quantity that is corrected without a model → end of a run whose measurement is a lower bound of it."""
CORRECTED_TAG = "corrected_"
"""Prefix of a run's tag with the factor that had corrected its prediction."""


class RetrainingResult(Frozen):
    """The outcome for one quantity of one application.

    Attributes:
        replaced: a better model or correction was kept.
        judged: number of newest runs on which the two were compared.
        before: mean absolute log error of the old one on those runs; ``after`` is that of the new one.
        file: the model or correction in use; ``older`` is where the old one is kept.
    """

    application: str
    quantity: str
    estimator: str
    new_runs: int
    replaced: bool
    drifted: bool
    reason: str
    judged: int = 0
    before: float | None = None
    after: float | None = None
    p_value: float | None = None
    file: str = ""
    older: str = ""

    @property
    def sentence(self) -> str:
        """Return the outcome in a sentence."""
        subject = f"{self.application}, {self.quantity} by {self.estimator}"
        if not self.replaced or self.before is None or self.after is None:
            return f"{subject}: kept ({self.reason})"
        return (
            f"{subject}: replaced ({self.reason}); error {self.after:.1%} on the newest {self.judged} "
            f"runs, {self.before:.1%} before"
        )


def retrain(*, folder: Path | None = None, application: str | None = None) -> tuple[RetrainingResult, ...]:
    """Retrain on the finished runs of the history, of one application or of all.

    A trained model is fitted again or corrected by a factor. An application without a model gets a factor on its
    predictions. A replacement must be better on runs that it was not fitted to. It is atomic, and the old model stays
    in the folder ``older`` next to it. ``folder`` is the user's data folder.

    Raises:
        MissingExtra: there is a model, but the packages that fit it are not installed.
        LeadlineError: a file cannot be written; the old model stays in use.
    """
    home = folder or settings.data_dir()
    by_application: dict[str, list[Run]] = defaultdict(list)
    for run in SqliteHistory(home / "history.sqlite").runs():
        if run.state.final and application in (None, application_name(run)):
            by_application[application_name(run)].append(run)
    rejected = _RejectedRefits(home / "learned.json")
    models = _models(home / "models")
    results: list[RetrainingResult] = []
    for name, own_runs in by_application.items():
        for path in models.get(name, ()):
            results += _refit_model(path, own_runs, rejected)
        if name not in models:
            results += _fit_corrections(name, own_runs, rejected, home)
    return tuple(results)


def describe_drift(runs: Sequence[Run], quantity: str = "elapsed_s") -> str:
    """Return a sentence on the drift of an application's predictions, newest run first; empty below two predictions."""
    from leadline.uncertainty.drift import find_drift  # noqa: PLC0415 - the command line starts without it

    finished = [outcome for run in reversed(runs) if (outcome := _finished(run, quantity))]
    return find_drift([run.outcome for run in finished]).sentence(quantity) if len(finished) > 1 else ""


def correct_estimate(
    estimate: Estimate, application: str, *, folder: Path | None = None
) -> tuple[Estimate, dict[str, str]]:
    """Return an estimate corrected by the application's earlier runs, and the tags for its run.

    Raises:
        InvalidInput: a file of corrections is damaged.
    """
    home = folder or settings.data_dir()
    changed: dict[str, Interval] = {}
    tags: dict[str, str] = {}
    notes = list(estimate.notes)
    for quantity in QUANTITIES:
        interval: Interval | None = getattr(estimate, quantity)
        path = _correction_path(home, application, quantity, estimate.estimator)
        if interval is None or not path.is_file():
            continue
        from leadline.training.application_correction import read_correction  # noqa: PLC0415 - numpy loads on use

        correction = read_correction(path)
        changed[quantity] = correction.apply(interval)
        tags[CORRECTED_TAG + quantity] = repr(correction.card.factor)
        notes.append(
            f"{quantity} corrected by a factor of {correction.card.factor:.3g}, fitted to "
            f"{correction.card.runs} runs of {application}"
        )
    return replace(estimate, notes=tuple(notes), **changed), tags  # type: ignore[arg-type]


def _models(folder: Path) -> dict[str, list[Path]]:
    """Return the files of the models by application; unreadable ones are left out."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        return {}
    if any(find_spec(name) is None for name in FITTING_PACKAGES):
        raise MissingExtra("learning from runs", "train")
    from leadline.training.model import load_model  # noqa: PLC0415 - numpy loads on use

    models: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        try:
            models[load_model(path).application].append(path)
        except InvalidInput:  # ``leadline model list`` says what is wrong with it
            continue
    return models


def _refit_model(path: Path, runs: Sequence[Run], rejected: "_RejectedRefits") -> list[RetrainingResult]:
    from leadline.estimators.tabular.registry import ESTIMATORS  # noqa: PLC0415 - numpy loads on use
    from leadline.training.build import TrainingOrigin  # noqa: PLC0415
    from leadline.training.model import load_model  # noqa: PLC0415
    from leadline.training.refit import refit_model  # noqa: PLC0415

    # Kept, to notice whether another training replaces the file meanwhile.
    content = path.read_bytes()
    model = load_model(path)
    records = run_records(runs, device_of=partial(find_device, user_catalog()))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    origin = TrainingOrigin(f"the history of {model.application}", now, "leadline learn", tuple(model.command))
    keys = {target: f"{path.name} {target} {model.card.known_until(target)}" for target in model.targets}
    better, decided = refit_model(
        model, records, ESTIMATORS, origin,
        previous_runs={target: rejected.runs.get(key, 0) for target, key in keys.items()},
    )  # fmt: skip
    older = _replace(path, content, better) if any(decision.replaced for decision in decided) else ""
    rejected.keep({keys[decision.target]: decision for decision in decided})
    names = {card.target: card.estimator for card in model.card.targets}
    return [_to_result(model.application, names[decision.target], decision, path, older) for decision in decided]


def _replace(path: Path, read: bytes, better: "ApplicationModel") -> str:
    """Keep the old file, then replace the model; a crash between the two steps changes no prediction."""
    from leadline.training.model import save_model  # noqa: PLC0415
    from leadline.training.model_card import model_card_markdown  # noqa: PLC0415 - numpy loads on use

    older = path.parent / "older" / f"{path.stem}.{sha256(read).hexdigest()[:12]}{path.suffix}"
    refits = tuple(
        refit if refit.older else replace(refit, older=f"older/{older.name}") for refit in better.card.refits
    )
    better = replace(better, card=replace(better.card, refits=refits))
    with settings.refuse_unwritable(path.parent):
        write_atomically(older, read)
        # Another training may have replaced the model in the meantime.
        if path.read_bytes() != read:
            raise LeadlineError(f"{path} changed during retraining: nothing was replaced; retrain again")
        save_model(better, path)
        write_atomically(path.with_suffix(".md"), model_card_markdown(better.card).encode())
    return str(older)


def _fit_corrections(
    application: str, runs: Sequence[Run], rejected: "_RejectedRefits", home: Path
) -> list[RetrainingResult]:
    """Fit a factor for each predicted quantity and estimator of an application without a model."""
    results: list[RetrainingResult] = []
    for quantity in QUANTITIES:
        outcomes: dict[str, list[FinishedRun]] = defaultdict(list)
        for run in runs:
            if run.predicted is not None and (outcome := _finished(run, quantity)) is not None:
                outcomes[run.predicted.estimator].append(outcome)
        for estimator, finished in outcomes.items():
            results.append(_fit_correction((application, quantity, estimator), finished, rejected, home))
    return results


def _fit_correction(
    about: tuple[str, str, str], finished: "Sequence[FinishedRun]", rejected: "_RejectedRefits", home: Path
) -> RetrainingResult:
    from leadline.training.application_correction import fit_correction, read_correction, save_correction  # noqa: PLC0415

    path = _correction_path(home, *about)
    older: ApplicationCorrection | None = read_correction(path) if path.is_file() else None
    key = f"{path.name} {older.card.until if older else ''}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    better, decided = fit_correction(finished, about, now, older=older, previous_runs=rejected.runs.get(key, 0))
    if better is not None:
        save_correction(better, path)
    rejected.keep({key: decided})
    return _to_result(about[0], about[2], decided, path if better or older else None, "")


def _finished(run: Run, quantity: str) -> "FinishedRun | None":
    """Return a run's uncorrected prediction with its outcome; ``None`` if one is unknown."""
    from leadline.training.application_correction import FinishedRun  # noqa: PLC0415 - numpy loads on use
    from leadline.uncertainty.drift import PredictionOutcome  # noqa: PLC0415

    interval: Interval | None = getattr(run.predicted, quantity, None)
    cut_off = run.state is QUANTITIES[quantity]
    if interval is None or interval.point <= 0 or not (cut_off or run.state is JobState.COMPLETED):
        return None
    request = run.job.resources
    limit = request.walltime_s if quantity == "elapsed_s" else request.memory_bytes_per_node
    figure = run.measured.get(quantity)
    measured = figure.value if figure else limit if cut_off else None
    if not measured or measured <= 0:
        return None
    return FinishedRun(
        PredictionOutcome(interval.scaled(1 / float(run.tags.get(CORRECTED_TAG + quantity, 1.0))), measured, cut_off),
        run.started_at,
    )


def _to_result(
    application: str, estimator: str, decision: "RefitDecision", path: Path | None, older: str
) -> RetrainingResult:
    judged = decision.comparison
    return RetrainingResult(
        application, decision.target, estimator, decision.new_runs, decision.replaced, decision.drift.detected,
        decision.reason, judged.runs if judged else 0, judged.before if judged else None,
        judged.after if judged else None, judged.p_value if judged else None, str(path or ""),
        older if decision.replaced else "",
    )  # fmt: skip


def _correction_path(home: Path, application: str, quantity: str, estimator: str) -> Path:
    """Return the file of a correction: a readable name with a hash of its three keys."""
    readable = readable_name(application)[:40]
    digest = sha256(f"{application}\n{quantity}\n{estimator}".encode()).hexdigest()[:12]
    return home / "corrections" / f"{readable}.{quantity}.{digest}.npz"


class _RefitCounts(msgspec.Struct):
    runs: dict[str, int]


def read_rejected_refits(path: Path) -> dict[str, int]:
    """Return the number of new runs at the last rejected refit, by key.

    Raises:
        InvalidInput: the file is damaged.
    """
    try:
        return from_json(read_input(path), _RefitCounts, label=str(path)).runs
    except InvalidInput as error:
        raise InvalidInput(f"{error}: delete it; it is only a cache") from error


class _RejectedRefits:
    """The file of rejected refits: the number of new runs at the last one, so that it is not repeated at every run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = read_rejected_refits(path) if path.is_file() else {}

    def keep(self, decisions: "Mapping[str, RefitDecision]") -> None:
        """Add the rejected ones of some decisions, and write the file atomically."""
        rejected = {
            key: decision.new_runs
            for key, decision in decisions.items()
            if decision.comparison and not decision.replaced
        }
        if not rejected:
            return
        self.runs |= rejected
        with settings.refuse_unwritable(self.path.parent):
            write_atomically(self.path, to_json({"schema": SCHEMA, "runs": self.runs}, indent=0))


class RetrainingReport(Frozen):
    """The results, and a sentence for each application that failed."""

    results: tuple[RetrainingResult, ...] = ()
    failures: tuple[str, ...] = ()


def retrain_applications(applications: tuple[str, ...]) -> RetrainingReport:
    """Retrain each application; a failure does not stop the others."""
    lessons: list[RetrainingResult] = []
    failures: list[str] = []
    for name in applications:
        try:
            lessons += retrain(application=name)
        except LeadlineError as error:
            failures.append(f"could not retrain {name}: {error}")
    return RetrainingReport(tuple(lessons), tuple(failures))


if __name__ == "__main__":
    sys.exit(answer_question(tuple[str, ...], retrain_applications))
