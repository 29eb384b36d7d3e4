"""Steps that a user measured: rows of a table that name workloads, or points of a file of ``leadline measure``."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from leadline.app import settings
from leadline.app.estimate.estimate import Toolbox, Tracer
from leadline.app.estimate.kernel_models import shipped_device
from leadline.app.estimate.step_estimators import select_shipped_kernels
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Precision, Workload
from leadline.estimators.step_time.adaptation import (
    LEAST_STEPS,
    AdaptedEstimator,
    MeasuredSteps,
    adapt_by_factor,
    adapt_op_utilization,
)
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels, is_channels_last
from leadline.estimators.step_time.selection import StepGroup, find_step_group
from leadline.kit.specs import SPECS
from leadline.training.adapted_steps import (
    ADAPTED_SCHEMA,
    AdaptedCard,
    AdaptedRecord,
    AdaptedSteps,
    adapted_steps_path,
    save_adapted_steps,
)
from leadline.training.measurements import MEASUREMENTS_SUFFIX, MeasuredPoint, MeasurementOutcome, read_measurements
from leadline.training.shipped_models import shipped_op_utilization

SUBJECT, SECONDS = "workload", "step_s"
"""Columns that a table must have; the others are options of ``leadline estimate``."""
ZOO = """\
import torch
from leadline.kit.zoo import build


def model():
    return build({name!r}, {size}){layout}
"""
LAYOUT = ".to(memory_format=torch.channels_last)"


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step: the workload, its seconds, where the row stands, and what steps at other batches share."""

    workload: Workload
    step_s: float
    where: str
    model: str


@contextmanager
def measured_steps(path: Path, most: int) -> Iterator[tuple[list[MeasuredStep], str | None]]:
    """Yield at most ``most`` steps of a file, and the device it names (a table names none).

    The models of a measured file are written as Python files that last as long as the context.

    Raises:
        InvalidInput: the file cannot be read, or a row cannot be used; with its line.
    """
    if not path.name.endswith(MEASUREMENTS_SUFFIX):
        yield _table(path)[:most], None
        return
    found = read_measurements(path)
    points = [one for one in found.points if one.outcome is MeasurementOutcome.OK and _traceable(one)][:most]
    if not points:
        raise InvalidInput(f"{path} holds no eager step of training or inference that ended well: measure longer")
    with TemporaryDirectory(prefix="leadline-adapt-") as folder:
        yield [_of_point(one, Path(folder), path) for one in points], found.device.name


def _table(path: Path) -> list[MeasuredStep]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or []
            rows = [(f"line {reader.line_num} of {path}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(
            f"{path} cannot be read ({error}): give a CSV table, or what leadline measure wrote"
        ) from error
    if missing := [one for one in (SUBJECT, SECONDS) if one not in columns]:
        raise InvalidInput(
            f"{path} has no column {missing[0]}: give {SUBJECT}, {SECONDS} and options of leadline estimate, such as "
            f"{SUBJECT},batch,precision,{SECONDS}"
        )
    return [_of_row(row, where) for where, row in rows]


def _of_row(row: Mapping[str, str | None], where: str) -> MeasuredStep:
    given = {name: value.strip() for name, value in row.items() if name and value and value.strip()}
    if SUBJECT not in given:
        raise InvalidInput(f"{where} names no {SUBJECT}: give what you would give leadline estimate")
    subject, seconds = given.pop(SUBJECT), _seconds(given.pop(SECONDS, ""), where)
    raw: dict[str, object] = {name.replace("-", "_"): value for name, value in given.items()}
    if "input" in raw:
        raw["input"] = given["input"].split()
    try:
        options = msgspec.convert(raw, WorkloadOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where} cannot be used: {error}") from error
    workload = read_workload([subject], options)
    if workload.gpus != 1:
        raise InvalidInput(f"{where} ran on {workload.gpus} GPUs: an estimator is adapted to steps of one")
    return MeasuredStep(workload, seconds, where, subject)


def _seconds(text: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InvalidInput(f"{where} has the {SECONDS} {text!r}: give the seconds of one step, such as 0.125")
    return found


def _traceable(one: MeasuredPoint) -> bool:
    """Tell whether the point is an eager step that a trace can repeat, of a model that this kit has."""
    return one.point.phase in tuple(Phase) and not one.point.compiled and one.point.model in SPECS


def _of_point(one: MeasuredPoint, folder: Path, path: Path) -> MeasuredStep:
    point = one.point
    name = f"{point.model}-{point.size}{'-last' if point.channels_last else ''}".replace(":", "-").replace(".", "-")
    file = folder / f"{name}.py"
    file.write_text(ZOO.format(name=point.model, size=point.size, layout=LAYOUT if point.channels_last else ""))
    kind = SPECS[point.model].kind
    sizes = {"image": (3, point.size, point.size)}.get(kind, (point.size,))
    workload = Workload(
        ModelSource(ModelKind.FUNCTION, f"{file}:model"),
        phase=Phase(point.phase),
        batch=point.batch,
        inputs=(InputShape((point.batch, *sizes), "int64" if kind == "tokens" else "float32"),),
        precision=Precision(point.precision),
        optimizer=Optimizer(point.optimizer) if point.optimizer else None,
        checkpointing=point.checkpointing,
        name=one.key,
    )
    if one.step_s is None:
        raise InvalidInput(f"the point {one.key} of {path} has no time of a step: delete its line")
    return MeasuredStep(workload, one.step_s, f"the point {one.key} of {path.name}", f"{point.model} {point.size}")


MAX_STEPS = 50
"""Steps of a file that are used unless more are asked for: each is traced, which takes some seconds."""

USEFUL = 0.5
"""An estimator that is off by more than this on models left out is not kept: the steps contradict each other."""

Progress = Callable[[str, int, int], None]
"""Told which step is traced, its number and how many there are."""


@dataclass(frozen=True, slots=True)
class AdaptAnswer:
    """What was learned of the device, where it is kept, and sentences on what was left out."""

    device: str
    records: tuple[AdaptedRecord, ...]
    path: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Traced:
    """A measured step with its graph, and what was estimated of it."""

    step: MeasuredStep
    job: TracedJob
    told_s: float


def adapt(
    path: Path, tools: Toolbox, *, device: str | None = None, most: int = MAX_STEPS, keep: bool = True,
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
    if most < LEAST_STEPS:
        raise InvalidInput(f"--most {most} is too few to learn from: give at least {LEAST_STEPS}")
    with measured_steps(path, most) as (steps, named):
        on = _device(device or named, path, tools)
        notes = [f"{path.name} was measured on {named}"] if named and device and named != on.name else []
        traced = []
        for number, step in enumerate(steps, 1):
            progress(step.where, number, len(steps))
            traced.append(_traced(step, on, tools))
    if len(steps) < LEAST_STEPS:
        raise InvalidInput(f"{path} has {len(steps)} steps, too few to learn from: measure at least {LEAST_STEPS}")
    records, laws = _learned(on, traced, path, notes)
    card = AdaptedCard(schema=ADAPTED_SCHEMA, device=on.name, records=tuple(records))
    own = AdaptedSteps(card, laws if laws.models else None)
    kept = _kept(own, adapted_steps_path(kept_in, on)) if keep else None
    return AdaptAnswer(on.name, card.records, kept, tuple(notes))


def _learned(
    device: Device, traced: Sequence[_Traced], path: Path, notes: list[str]
) -> tuple[list[AdaptedRecord], OpUtilizationModels]:
    """Return what each group of steps taught, and all together, and the laws of those that a law answers for."""
    records: list[AdaptedRecord] = []
    laws = OpUtilizationModels({}, {}, {})
    for (group, last), rows in _by_group(traced, device).items():
        if len(rows) < LEAST_STEPS:
            continue
        best = _best(device, rows)
        if best.error > min(USEFUL, best.error_before):
            off = f"{best.error:.0%} off with them, {best.error_before:.0%} before"
            notes.append(f"{len(rows)} steps of {group} are not learned from: {off}")
            continue
        records.append(_record(best, group, path.name, channels_last=last))
        laws = laws.merge(best.laws) if best.laws else laws
    rest = _factor(device, traced)
    if rest.error <= min(USEFUL, rest.error_before):
        records.append(_record(rest, None, path.name, channels_last=False))
    if not records:
        raise InvalidInput(
            f"{path} does not help: with a factor the {rest.estimator} would be {rest.error:.0%} off on models left "
            f"out, {rest.error_before:.0%} without: measure on an idle machine, and more steps of one kind of job"
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


def _by_group(traced: Sequence[_Traced], device: Device) -> dict[tuple[StepGroup, bool], list[_Traced]]:
    """Return the steps of each group and layout."""
    found: dict[tuple[StepGroup, bool], list[_Traced]] = {}
    for one in traced:
        found.setdefault((find_step_group(one.job.step, device), is_channels_last(one.job.step)), []).append(one)
    return found


def _best(device: Device, traced: Sequence[_Traced]) -> AdaptedEstimator:
    """Return what is least off on models left out: the price list by a factor, or the op law adapted."""
    found = [_factor(device, traced)]
    if device.kind is DeviceKind.GPU:
        try:
            law = adapt_op_utilization(shipped_op_utilization(), device, _runs(traced), shipped_device)
        except InvalidInput:
            return found[0]  # the law has nothing to say of such graphs
        found.append(replace(law, error_before=found[0].error_before))
    return min(found, key=lambda one: one.error)


def _factor(device: Device, traced: Sequence[_Traced]) -> AdaptedEstimator:
    """Return the factor that the steps ask for on the shipped price list."""
    models = [select_shipped_kernels(device, one.job) for one in traced]
    said = np.array([model.step_s(one.job.step) for model, one in zip(models, traced, strict=True)])
    names = " or ".join(dict.fromkeys(model.name for model in models))
    before = [abs(one.told_s / one.step.step_s - 1) for one in traced]
    return replace(adapt_by_factor(names, said, _runs(traced)), error_before=float(np.mean(before)))


def _runs(traced: Sequence[_Traced]) -> MeasuredSteps:
    return MeasuredSteps(
        [one.job.step for one in traced],
        np.array([one.step.step_s for one in traced]),
        [one.step.model for one in traced],
    )


def _record(best: AdaptedEstimator, group: StepGroup | None, source: str, *, channels_last: bool) -> AdaptedRecord:
    return AdaptedRecord(
        group=group, channels_last=channels_last, estimator=best.estimator, by_law=best.laws is not None,
        factor=best.factor, error=best.error, before=best.error_before, spread=best.spread, runs=best.runs, source=source,
        made_on=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip


def _kept(own: AdaptedSteps, path: Path) -> str:
    try:
        save_adapted_steps(own, path)
    except OSError as error:
        raise settings.unwritable(path.parent, error.strerror) from error
    return str(path)


def forget_device(device: str, tools: Toolbox, folder: Path | None = None) -> str:
    """Delete what was learned of a device, and return the file; ``LeadlineError`` if there is none."""
    path = adapted_steps_path(folder or settings.adapted_dir(), tools.catalog.device(device))
    if not path.is_file():
        raise LeadlineError(f"nothing was learned of {device} here: leadline adapt learns from measured steps")
    path.unlink()
    return str(path)
