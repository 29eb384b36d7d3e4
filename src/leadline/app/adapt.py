"""The verb ``adapt``: a few measured steps of one's own device make its estimates better."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from leadline.app import settings
from leadline.app.estimate import Toolbox, Tracer
from leadline.app.kernels import shipped_kernels_of
from leadline.app.measured_steps import MeasuredStep, measured_steps
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.learned.few_runs import LEAST, Adapted, FewRuns, by_factor, by_law
from leadline.estimators.learned.law_kernels import StepLaws, is_channels_last
from leadline.estimators.learned.selection import Group, group_of
from leadline.training.own_steps import SCHEMA, OwnRecord, OwnSteps, own_path, save
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
        jobs = []
        for number, step in enumerate(steps, 1):
            progress(step.where, number, len(steps))
            jobs.append(Tracer(tools, step.workload).job_for(on))
    if len(steps) < LEAST:
        raise InvalidInput(f"{path} has {len(steps)} steps, too few to learn from: measure at least {LEAST}")
    records, laws = [], StepLaws({}, {}, {})
    for (group, last), rows in _by_group(jobs, on).items():
        if len(rows) < LEAST:
            continue
        best = _best(on, [jobs[one] for one in rows], [steps[one] for one in rows])
        if best.error > USEFUL:
            notes.append(f"{len(rows)} steps of {group} are off by {best.error:.0%} still, and are not learned from")
            continue
        records.append(_record(best, group, path.name, channels_last=last))
        laws = _joined(laws, best.laws) if best.laws else laws
    rest = _factor(on, jobs, steps)[1]
    if rest.error <= min(USEFUL, rest.before):
        records.append(_record(rest, None, path.name, channels_last=False))
    if not records:
        raise InvalidInput(
            f"{path} does not help: with a factor the {rest.estimator} would be {rest.error:.0%} off on models left "
            f"out, {rest.before:.0%} without: measure on an idle machine, and more steps of one kind of job"
        )
    own = OwnSteps(schema=SCHEMA, device=on.name, records=tuple(records), laws=laws if laws.laws else None)
    kept = _kept(own, own_path(kept_in, on)) if keep else None
    return AdaptAnswer(on.name, own.records, kept, tuple(notes))


def _device(name: str | None, path: Path, tools: Toolbox) -> Device:
    if name is None:
        raise InvalidInput(f"{path} does not say which device it was measured on: name it with --device")
    own = [one for one in tools.catalog.devices() if one.calibration and one.name.startswith(f"{name} (")]
    try:
        return own[0] if len(own) == 1 else tools.catalog.device(name)
    except UnknownName as error:
        raise InvalidInput(f"{error} Name the device with --device, or run leadline calibrate on it first") from error


def _by_group(jobs: list[TracedJob], device: Device) -> dict[tuple[Group, bool], list[int]]:
    """Return the positions of the jobs of each group and layout."""
    found: dict[tuple[Group, bool], list[int]] = {}
    for number, job in enumerate(jobs):
        found.setdefault((group_of(job.step, device), is_channels_last(job.step)), []).append(number)
    return found


def _best(device: Device, jobs: list[TracedJob], steps: list[MeasuredStep]) -> Adapted:
    """Return what is least off on models left out: the shipped choice by a factor, or the op law adapted."""
    runs, factor = _factor(device, jobs, steps)
    found = [factor]
    if device.kind is DeviceKind.GPU and (device.calibration is None or not device.calibration.timings):
        try:
            law = by_law(shipped_laws(), device, runs)
        except InvalidInput:
            return found[0]  # the law has nothing to say of such graphs
        found.append(replace(law, before=found[0].before))
    return min(found, key=lambda one: one.error)


def _factor(device: Device, jobs: list[TracedJob], steps: list[MeasuredStep]) -> tuple[FewRuns, Adapted]:
    """Return the runs, and the factor that they ask for on what is shipped."""
    runs = FewRuns([job.step for job in jobs], np.array([one.step_s for one in steps]), [one.model for one in steps])
    models = [shipped_kernels_of(device, job) for job in jobs]
    said = np.array([model.step_s(job.step) for model, job in zip(models, jobs, strict=True)])
    names = " or ".join(dict.fromkeys(model.name for model in models))
    return runs, by_factor(names, said, runs)


def _record(best: Adapted, group: Group | None, source: str, *, channels_last: bool) -> OwnRecord:
    return OwnRecord(
        group=group, channels_last=channels_last, estimator=best.estimator, by_law=best.laws is not None,
        factor=best.factor, error=best.error, before=best.before, spread=best.spread, runs=best.runs, source=source,
        made_on=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip


def _joined(one: StepLaws, other: StepLaws) -> StepLaws:
    return StepLaws({**one.laws, **other.laws}, {**one.usual, **other.usual}, {**one.seen, **other.seen})


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
