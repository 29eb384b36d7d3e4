"""The verb ``adapt``: a few measured steps of one's own device make its estimates better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from leadline.app import settings
from leadline.app.estimate import Toolbox, Tracer
from leadline.app.kernels import shipped_kernels_of
from leadline.app.learned_kernels import learned_on
from leadline.app.measured_steps import MeasuredStep, measured_steps
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.learned.few_runs import LEAST, Adapted, FewRuns, by_factor, by_law
from leadline.estimators.learned.law_kernels import StepLaws, is_channels_last
from leadline.estimators.learned.selection import Group, group_of
from leadline.training.own_steps import SCHEMA, OwnCard, OwnRecord, OwnSteps, own_path, save
from leadline.training.shipped_models import shipped_laws

MOST = 50
"""Steps of a file that are used unless more are asked for: each is traced, which takes some seconds."""

USEFUL = 0.5
"""An estimator that is off by more than this on models left out is not kept: the steps contradict each other."""

Progress = Callable[[str, int, int], None]
"""Told which step is traced, its number and how many there are."""


@dataclass(frozen=True, slots=True)
class AdaptAnswer:
    """What was learned of the device, where it is kept, and sentences on what was left out."""

    device: str
    records: tuple[OwnRecord, ...]
    path: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Traced:
    """A measured step with its graph, and what was estimated of it."""

    step: MeasuredStep
    job: TracedJob
    told_s: float


def adapt(
    path: Path, tools: Toolbox, *, device: str | None = None, most: int = MOST, keep: bool = True,
    folder: Path | None = None, progress: Progress = lambda *_: None,
) -> AdaptAnswer:  # fmt: skip
    """Adapt the estimators of a device to the measured steps of a file, and keep them for ``estimate``.

    Args:
        path: a CSV table of workloads and ``step_s``, or a file of ``leadline measure``.
        tools: the adapters of the verbs.
        device: its name in the catalog; a measured file names its own.
        most: steps of the file that are used.
        keep: write the result to the user's data folder.
        folder: where results are kept; the user's data folder by default.
        progress: told what is traced.

    Raises:
        InvalidInput: the file cannot be used, no device is named, or there are too few steps of every kind of job.
        Untraceable: a model could not be traced.
        LeadlineError: the result cannot be written; said before anything is traced.
    """
    kept_in = folder or settings.adapted_dir()
    if keep:
        settings.require_writable(kept_in)
    if most < LEAST:
        raise InvalidInput(f"--most {most} is too few to learn from: give at least {LEAST}")
    with measured_steps(path, most) as (steps, named):
        on = _device(device or named, path, tools)
        notes = [f"{path.name} was measured on {named}"] if named and device and named != on.name else []
        traced = []
        for number, step in enumerate(steps, 1):
            progress(step.where, number, len(steps))
            traced.append(_traced(step, on, tools))
    if len(steps) < LEAST:
        raise InvalidInput(f"{path} has {len(steps)} steps, too few to learn from: measure at least {LEAST}")
    records, laws = _learned(on, traced, path, notes)
    card = OwnCard(schema=SCHEMA, device=on.name, records=tuple(records))
    own = OwnSteps(card, laws if laws.laws else None)
    kept = _kept(own, own_path(kept_in, on)) if keep else None
    return AdaptAnswer(on.name, card.records, kept, tuple(notes))


def _learned(
    device: Device, traced: Sequence[_Traced], path: Path, notes: list[str]
) -> tuple[list[OwnRecord], StepLaws]:
    """Return what each group of steps taught, and all together, and the laws of those that a law answers for."""
    records: list[OwnRecord] = []
    laws = StepLaws({}, {}, {})
    for (group, last), rows in _by_group(traced, device).items():
        if len(rows) < LEAST:
            continue
        best = _best(device, rows)
        if best.error > min(USEFUL, best.before):
            off = f"{best.error:.0%} off with them, {best.before:.0%} before"
            notes.append(f"{len(rows)} steps of {group} are not learned from: {off}")
            continue
        records.append(_record(best, group, path.name, channels_last=last))
        laws = laws.with_more(best.laws) if best.laws else laws
    rest = _factor(device, traced)
    if rest.error <= min(USEFUL, rest.before):
        records.append(_record(rest, None, path.name, channels_last=False))
    if not records:
        raise InvalidInput(
            f"{path} does not help: with a factor the {rest.estimator} would be {rest.error:.0%} off on models left "
            f"out, {rest.before:.0%} without: measure on an idle machine, and more steps of one kind of job"
        )
    return records, laws


def _device(name: str | None, path: Path, tools: Toolbox) -> Device:
    if name is None:
        raise InvalidInput(f"{path} does not say which device it was measured on: name it with --device")
    own = [one for one in tools.catalog.devices() if one.calibration and one.name.startswith(f"{name} (")]
    try:
        return own[0] if len(own) == 1 else tools.catalog.device(name)
    except UnknownName as error:
        raise InvalidInput(f"{error} Name the device with --device, or run leadline calibrate on it first") from error


def _traced(step: MeasuredStep, device: Device, tools: Toolbox) -> _Traced:
    """Return the step's graph, and what is estimated of it before anything is learned."""
    job = Tracer(tools, step.workload).job_for(device)
    told = tools.estimator.estimate(step.workload, job, device).step_s
    if told is None:
        raise InvalidInput(f"{step.where} cannot be estimated on {device.name}, so nothing can be learned from it")
    return _Traced(step, job, told.point)


def _by_group(traced: Sequence[_Traced], device: Device) -> dict[tuple[Group, bool], list[_Traced]]:
    """Return the steps of each group and layout."""
    found: dict[tuple[Group, bool], list[_Traced]] = {}
    for one in traced:
        found.setdefault((group_of(one.job.step, device), is_channels_last(one.job.step)), []).append(one)
    return found


def _best(device: Device, traced: Sequence[_Traced]) -> Adapted:
    """Return what is least off on models left out: the price list by a factor, or the op law adapted."""
    found = [_factor(device, traced)]
    if device.kind is DeviceKind.GPU:
        try:
            law = by_law(shipped_laws(), device, _runs(traced), learned_on)
        except InvalidInput:
            return found[0]  # the law has nothing to say of such graphs
        found.append(replace(law, before=found[0].before))
    return min(found, key=lambda one: one.error)


def _factor(device: Device, traced: Sequence[_Traced]) -> Adapted:
    """Return the factor that the steps ask for on the shipped price list."""
    models = [shipped_kernels_of(device, one.job) for one in traced]
    said = np.array([model.step_s(one.job.step) for model, one in zip(models, traced, strict=True)])
    names = " or ".join(dict.fromkeys(model.name for model in models))
    before = [abs(one.told_s / one.step.step_s - 1) for one in traced]
    return replace(by_factor(names, said, _runs(traced)), before=float(np.mean(before)))


def _runs(traced: Sequence[_Traced]) -> FewRuns:
    return FewRuns(
        [one.job.step for one in traced],
        np.array([one.step.step_s for one in traced]),
        [one.step.model for one in traced],
    )


def _record(best: Adapted, group: Group | None, source: str, *, channels_last: bool) -> OwnRecord:
    return OwnRecord(
        group=group, channels_last=channels_last, estimator=best.estimator, by_law=best.laws is not None,
        factor=best.factor, error=best.error, before=best.before, spread=best.spread, runs=best.runs, source=source,
        made_on=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip


def _kept(own: OwnSteps, path: Path) -> str:
    try:
        save(own, path)
    except OSError as error:
        raise settings.unwritable(path.parent, error.strerror) from error
    return str(path)


def forget(device: str, tools: Toolbox, folder: Path | None = None) -> str:
    """Delete what was learned of a device, and return the file; ``LeadlineError`` if there is none."""
    path = own_path(folder or settings.adapted_dir(), tools.catalog.device(device))
    if not path.is_file():
        raise LeadlineError(f"nothing was learned of {device} here: leadline adapt learns from measured steps")
    path.unlink()
    return str(path)
