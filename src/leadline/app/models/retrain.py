"""The verb ``retrain``: what finished runs teach the estimators, kept only where it is better on later runs."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from leadline.app import settings
from leadline.app.composition import toolbox
from leadline.app.models.train import find_device
from leadline.core.documents import from_json, to_json
from leadline.core.errors import InvalidInput, LeadlineError, MissingExtra
from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import JobState
from leadline.core.ports import Catalog
from leadline.core.runs import Run
from leadline.history.sqlite import SqliteHistory
from leadline.training.records import application_name, run_records

if TYPE_CHECKING:
    from leadline.training.application_correction import ApplicationCorrection, FinishedRun
    from leadline.training.model import ApplicationModel
    from leadline.training.refit import RefitDecision

Progress = Callable[[str, int, int], None]
"""Told what is fitted now, its number, and how many there are."""
SCHEMA = "leadline.learned/1"
QUANTITIES = {"elapsed_s": JobState.TIMEOUT, "host_memory_bytes": JobState.OUT_OF_MEMORY}
"""What is corrected where there is no model, and the end of a run that makes its figure a lower bound."""
CORRECTED_TAG = "corrected_"
"""Begins the tag of a run that says by which factor a prediction had been corrected when it was made."""


class RejectedRefits(msgspec.Struct, frozen=True, kw_only=True):
    """For how many new runs each target was reconsidered without being replaced, so that it is not at every run."""

    schema: str = SCHEMA
    runs: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class RetrainingResult:
    """What became of one figure of one application; ``replaced`` tells that something better was kept.

    ``before`` and ``after`` are mean absolute errors of logarithms on the newest ``judged`` runs, where two were
    compared. ``file`` holds what answers from now on, ``older`` what did before.
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
        """Return the lesson for people."""
        what = f"{self.application}, {self.quantity} by {self.estimator}"
        if not self.replaced or self.before is None or self.after is None:
            return f"{what}: kept, {self.reason}"
        return (
            f"{what}: replaced, {self.reason}; off by {self.after:.1%} on the newest {self.judged} runs, "
            f"{self.before:.1%} before"
        )


def retrain(
    *,
    folder: Path | None = None,
    history: Path | None = None,
    application: str | None = None,
    catalog: Catalog | None = None,
    jobs: int | None = 1,
    progress: Progress = lambda *_: None,
) -> tuple[RetrainingResult, ...]:
    """Learn from the finished runs of the history, of one application or of all, and say what was decided.

    A model that was trained is fitted again, or given a factor; an application without one gets a factor on what was
    predicted of it. Each replaces what was before only where it is better on runs that it had not seen, in one step,
    and the older model stays in the folder ``older`` beside it. ``folder`` is the user's data folder.

    Raises:
        MissingExtra: there is a model, and what fits it is not installed.
        LeadlineError: a file cannot be written; what was before still answers.
    """
    home = folder or settings.data_dir()
    runs = [one for one in SqliteHistory(history or home / "history.sqlite").runs() if one.state.final]
    by_application: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_application[application_name(run)].append(run)
    tried = _Memory(home / "learned.json")
    models = _models(home / "models")
    found: list[RetrainingResult] = []
    for name, own in by_application.items():
        if application not in (None, name):
            continue
        if name in models:
            for path in models[name]:
                found += _teach_model(path, own, tried, catalog or toolbox().catalog, jobs, progress)
        else:
            found += _teach_corrections(name, own, tried, home)
    return tuple(found)


def correct_estimate(
    estimate: Estimate, application: str, *, folder: Path | None = None
) -> tuple[Estimate, dict[str, str]]:
    """Return an estimate as the application's own runs correct it, and the tags that its run is to carry.

    Raises:
        InvalidInput: a file of corrections is damaged.
    """
    home = folder or settings.data_dir()
    changed: dict[str, Interval] = {}
    tags: dict[str, str] = {}
    notes = list(estimate.notes)
    for quantity in QUANTITIES:
        told: Interval | None = getattr(estimate, quantity)
        path = _correction_path(home, application, quantity, estimate.estimator)
        if told is None or not path.is_file():
            continue
        from leadline.training.application_correction import read_correction  # noqa: PLC0415 - numpy loads only where it is needed

        known = read_correction(path)
        changed[quantity] = known.apply(told)
        tags[CORRECTED_TAG + quantity] = repr(known.card.factor)
        notes.append(f"{quantity} times {known.card.factor:.3g}, as {known.card.runs} runs of {application} took")
    return replace(estimate, notes=tuple(notes), **changed), tags  # type: ignore[arg-type]


def _models(folder: Path) -> dict[str, list[Path]]:
    """Return the files of the models by application; one that cannot be read is no model of any."""
    paths = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not paths:
        return {}
    if any(find_spec(name) is None for name in ("numpy", "scipy", "sklearn")):
        raise MissingExtra("learning from runs", "train")
    from leadline.training.model import load_model  # noqa: PLC0415 - numpy loads only where it is needed

    found: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        try:
            found[load_model(path).application].append(path)
        except InvalidInput:  # ``leadline model list`` says what is wrong with it
            continue
    return found


def _teach_model(
    path: Path, runs: Sequence[Run], tried: "_Memory", catalog: Catalog, jobs: int | None, progress: Progress
) -> list[RetrainingResult]:
    """Reconsider a model's targets, and put the better model in its place."""
    from leadline.estimators.tabular.registry import ESTIMATORS  # noqa: PLC0415 - numpy loads only where it is needed
    from leadline.training.build import TrainingOrigin  # noqa: PLC0415
    from leadline.training.model import load_model  # noqa: PLC0415
    from leadline.training.refit import RefitSettings, refit_model  # noqa: PLC0415

    read = path.read_bytes()
    model = load_model(path)
    records = run_records(runs, device_of=lambda name: find_device(catalog, name))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    origin = TrainingOrigin(f"the history of {model.application}", now, "leadline learn", tuple(model.command))
    keys = {target: f"{path.name} {target} {model.card.known_until(target)}" for target in model.targets}
    better, decided = refit_model(
        model, records, RefitSettings(ESTIMATORS, origin, jobs, progress),
        previous_runs={target: tried.runs_of(key) for target, key in keys.items()},
    )  # fmt: skip
    older = ""
    if any(one.replaced for one in decided):
        older = _replace(path, read, better)
    tried.keep({keys[one.target]: one.new_runs for one in decided if one.comparison and not one.replaced})
    names = {one.target: one.estimator for one in model.card.targets}
    return [_lesson(model.application, names[one.target], one, path, older) for one in decided]


def _replace(path: Path, read: bytes, better: "ApplicationModel") -> str:
    """Keep the older file, then put the model in its place; each step is whole, and the first changes no answer."""
    from leadline.training.atomic_write import write_atomically  # noqa: PLC0415
    from leadline.training.model import save_model  # noqa: PLC0415
    from leadline.training.model_card import model_card_markdown  # noqa: PLC0415 - numpy loads only where it is needed

    older = path.parent / "older" / f"{path.stem}.{sha256(read).hexdigest()[:12]}{path.suffix}"
    refits = tuple(one if one.older else replace(one, older=f"older/{older.name}") for one in better.card.refits)
    better = replace(better, card=replace(better.card, refits=refits))
    try:
        write_atomically(older, read)
        if path.read_bytes() != read:
            raise LeadlineError(f"{path} was changed while it was reconsidered: nothing was replaced; learn again")
        save_model(better, path)
        write_atomically(path.with_suffix(".md"), model_card_markdown(better.card).encode())
    except OSError as error:
        raise settings.unwritable(path.parent, error.strerror) from error
    return str(older)


def _teach_corrections(application: str, runs: Sequence[Run], tried: "_Memory", home: Path) -> list[RetrainingResult]:
    """Learn a factor for each quantity that was predicted of an application without a model, by each estimator."""
    found: list[RetrainingResult] = []
    for quantity in QUANTITIES:
        told: dict[str, list[FinishedRun]] = defaultdict(list)
        for run in runs:
            if run.predicted is not None and (one := _finished(run, quantity)) is not None:
                told[run.predicted.estimator].append(one)
        for estimator, finished in told.items():
            found.append(_teach_correction((application, quantity, estimator), finished, tried, home))
    return found


def _teach_correction(
    about: tuple[str, str, str], finished: "Sequence[FinishedRun]", tried: "_Memory", home: Path
) -> RetrainingResult:
    from leadline.training.application_correction import fit_correction, read_correction, save_correction  # noqa: PLC0415

    path = _correction_path(home, *about)
    older: ApplicationCorrection | None = read_correction(path) if path.is_file() else None
    key = f"{path.name} {older.card.until if older else ''}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    better, decided = fit_correction(finished, about, now, older=older, previous_runs=tried.runs_of(key))
    if better is not None:
        save_correction(better, path)
    tried.keep({key: decided.new_runs} if decided.comparison and not decided.replaced else {})
    return _lesson(about[0], about[2], decided, path if better or older else None, "")


def _finished(run: Run, quantity: str) -> "FinishedRun | None":
    """Return what was predicted of a run, without any correction, beside what came of it; ``None`` where unknown."""
    from leadline.training.application_correction import FinishedRun  # noqa: PLC0415 - numpy loads only where it is needed
    from leadline.uncertainty.drift import PredictionOutcome  # noqa: PLC0415

    told: Interval | None = getattr(run.predicted, quantity, None)
    cut = run.state is QUANTITIES[quantity]
    if told is None or told.point <= 0 or not (cut or run.state is JobState.COMPLETED):
        return None
    asked = run.job.resources
    limit = asked.walltime_s if quantity == "elapsed_s" else asked.memory_bytes_per_node
    figure = run.measured.get(quantity)
    measured = figure.value if figure else limit if cut else None
    if not measured or measured <= 0:
        return None
    return FinishedRun(
        PredictionOutcome(told.scaled(1 / float(run.tags.get(CORRECTED_TAG + quantity, 1.0))), measured, cut),
        run.started_at,
    )


def _lesson(application: str, estimator: str, one: "RefitDecision", path: Path | None, older: str) -> RetrainingResult:
    judged = one.comparison
    return RetrainingResult(
        application, one.target, estimator, one.new_runs, one.replaced, one.drift.detected, one.reason,
        judged.runs if judged else 0, judged.before if judged else None, judged.after if judged else None,
        judged.p_value if judged else None, str(path or ""), older if one.replaced else "",
    )  # fmt: skip


def _correction_path(home: Path, application: str, quantity: str, estimator: str) -> Path:
    """Return the file of a correction; its name is readable, and differs where any of the three does."""
    told = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in application)[:40]
    same = sha256(f"{application}\n{quantity}\n{estimator}".encode()).hexdigest()[:12]
    return home / "corrections" / f"{told}.{quantity}.{same}.npz"


class _Memory:
    """The file of what was tried in vain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = self._read()

    def runs_of(self, key: str) -> int:
        """Return for how many new runs something was tried; none where it was not."""
        return self.runs.get(key, 0)

    def keep(self, tried: Mapping[str, int]) -> None:
        """Remember more, whole or not at all."""
        if not tried:
            return
        from leadline.training.atomic_write import write_atomically  # noqa: PLC0415 - beside its only use

        self.runs |= tried
        try:
            write_atomically(self.path, msgspec.json.encode(RejectedRefits(runs=self.runs)))
        except OSError as error:
            raise settings.unwritable(self.path.parent, error.strerror) from error

    def _read(self) -> dict[str, int]:
        if not self.path.is_file():
            return {}
        try:
            return dict(msgspec.json.decode(self.path.read_bytes(), type=RejectedRefits).runs)
        except (OSError, msgspec.MsgspecError) as error:
            raise InvalidInput(f"{self.path} cannot be read ({error}): delete it, nothing is lost by that") from error


NICENESS = 10


@dataclass(frozen=True, slots=True)
class RetrainingReport:
    """What was decided, and for each application of which nothing could be learned a sentence that says why."""

    results: tuple[RetrainingResult, ...] = ()
    failures: tuple[str, ...] = ()


def retrain_applications(applications: tuple[str, ...]) -> RetrainingReport:
    """Learn from the runs of each application; one that fails does not keep the others from it."""
    lessons: list[RetrainingResult] = []
    failures: list[str] = []
    for name in applications:
        try:
            lessons += retrain(application=name)
        except LeadlineError as error:
            failures.append(f"nothing could be learned of {name}: {error}")
    return RetrainingReport(tuple(lessons), tuple(failures))


def main() -> int:
    """Answer one question, out of the way of whatever else runs here."""
    os.nice(NICENESS)
    try:
        applications = from_json(sys.stdin.read(), tuple[str, ...], label="the question")
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(to_json(retrain_applications(applications), indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
