"""The verb ``adapt``: a few measured steps of a device make its estimates better."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from leadline.app import settings
from leadline.app.estimate.estimate import Toolbox, Tracer
from leadline.app.estimate.kernel_models import shipped_device
from leadline.app.estimate.step_estimators import select_shipped_kernels
from leadline.app.estimate.step_models import LEAST_WHOLE_STEPS, adapt_whole_steps, find_training_step
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.documents import refuse_damaged
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Precision, Recompute, Workload
from leadline.estimators.parallelism.training_step import TrainingStep
from leadline.estimators.step_time.adaptation import (
    LEAST_STEPS,
    AdaptedEstimator,
    MeasuredSteps,
    adapt_by_factor,
    adapt_op_utilization,
)
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels, is_channels_last
from leadline.estimators.step_time.power_limit import describe_power_limit, measured_under
from leadline.estimators.step_time.selection import StepGroup, find_step_group
from leadline.files.read import read_input_text
from leadline.kit.specs import SPECS
from leadline.training.adapted_steps import (
    ADAPTED_SCHEMA,
    AdaptedCard,
    AdaptedRecord,
    AdaptedSteps,
    AdaptedWholeSteps,
    adapted_steps_path,
    save_adapted_steps,
)
from leadline.training.measurements import (
    MEASUREMENTS_SUFFIX,
    MeasuredDevice,
    MeasuredPoint,
    MeasurementOutcome,
    read_measurements,
)
from leadline.training.records import Progress
from leadline.training.shipped_models import shipped_op_utilization

WORKLOAD_COLUMN, SECONDS_COLUMN = "workload", "step_s"
"""Columns that a table must have; the others are options of ``leadline estimate``."""
MODEL_FILE = """\
import torch
from leadline.kit.zoo import build


def model():
    return build({name!r}, {size}){layout}
"""
CHANNELS_LAST = ".to(memory_format=torch.channels_last)"


class MeasuredStep(Frozen):
    """One measured step; ``model`` is shared by the steps of one model at different batches."""

    workload: Workload
    step_s: float
    where: str
    model: str


@contextmanager
def measured_steps(path: Path, most: int) -> Iterator[tuple[list[MeasuredStep], MeasuredDevice | None]]:
    """Yield at most ``most`` steps of a file, and the device that it describes (a CSV table describes none).

    The models of a measured file are written as Python files that exist as long as the context.

    Raises:
        InvalidInput: the file cannot be read, or a row (named by its line) cannot be used.
    """
    if not path.name.endswith(MEASUREMENTS_SUFFIX):
        yield _read_table(path)[:most], None
        return
    measurements = read_measurements(path)
    points = [measured for measured in measurements.points if _is_traceable(measured)][:most]
    if not points:
        raise InvalidInput(f"{path} has no completed eager step of training or inference: measure longer")
    with TemporaryDirectory(prefix="leadline-adapt-") as folder:
        with refuse_damaged(f"{path} has a point that cannot be used: delete its line"):
            steps = [_step_of_point(point, Path(folder), path) for point in points]
        yield steps, measurements.device


def _read_table(path: Path) -> list[MeasuredStep]:
    fix = "give a CSV table, or a file of leadline measure"
    text = read_input_text(path, fix=f", and {fix}")
    try:
        reader = csv.DictReader(io.StringIO(text))
        columns = reader.fieldnames or []
        rows = [(f"line {reader.line_num} of {path}", row) for row in reader]
    except csv.Error as error:
        raise InvalidInput(f"{path} cannot be read ({error}): {fix}") from error
    if missing := [column for column in (WORKLOAD_COLUMN, SECONDS_COLUMN) if column not in columns]:
        raise InvalidInput(
            f"{path} has no column {missing[0]}: it needs {WORKLOAD_COLUMN} and {SECONDS_COLUMN}, and may have "
            f"options of leadline estimate, such as {WORKLOAD_COLUMN},batch,precision,{SECONDS_COLUMN}"
        )
    return [_read_row(row, where) for where, row in rows]


def _read_row(row: Mapping[str, str | None], where: str) -> MeasuredStep:
    cells = {name: value.strip() for name, value in row.items() if name and value and value.strip()}
    if WORKLOAD_COLUMN not in cells:
        raise InvalidInput(f"{where} has no {WORKLOAD_COLUMN}: write one as for leadline estimate")
    subject, seconds = cells.pop(WORKLOAD_COLUMN), _seconds(cells.pop(SECONDS_COLUMN, ""), where)
    raw: dict[str, object] = {name.replace("-", "_"): value for name, value in cells.items()}
    if "input" in raw:
        raw["input"] = cells["input"].split()
    try:
        options = msgspec.convert(raw, WorkloadOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where} cannot be used: {error}") from error
    workload = read_workload([subject], options)
    return MeasuredStep(workload, seconds, where, subject)


def _seconds(text: str, where: str) -> float:
    try:
        step_s = float(text)
    except ValueError:
        step_s = 0.0
    if not 0 < step_s < float("inf"):
        raise InvalidInput(f"{where} has {SECONDS_COLUMN} {text!r}: write the seconds of one step, such as 0.125")
    return step_s


def _is_traceable(measured: MeasuredPoint) -> bool:
    """Return whether the point is a completed eager step, which a trace can repeat, of a model that this kit has."""
    point, completed = measured.point, measured.outcome is MeasurementOutcome.OK
    return completed and point.phase in tuple(Phase) and not point.compiled and point.model in SPECS


def _step_of_point(measured: MeasuredPoint, folder: Path, path: Path) -> MeasuredStep:
    point = measured.point
    name = f"{point.model}-{point.size}{'-last' if point.channels_last else ''}".replace(":", "-").replace(".", "-")
    file = folder / f"{name}.py"
    layout = CHANNELS_LAST if point.channels_last else ""
    file.write_text(MODEL_FILE.format(name=point.model, size=point.size, layout=layout))
    kind = SPECS[point.model].kind
    sizes = {"image": (3, point.size, point.size)}.get(kind, (point.size,))
    workload = Workload(
        ModelSource(ModelKind.FUNCTION, f"{file}:model"),
        phase=Phase(point.phase),
        batch=point.batch,
        inputs=(InputShape((point.batch, *sizes), "int64" if kind == "tokens" else "float32"),),
        precision=Precision(point.precision),
        optimizer=Optimizer(point.optimizer) if point.optimizer else None,
        recompute=Recompute.FULL if point.checkpointing else Recompute.NONE,
        name=measured.key,
    )
    where = f"the point {measured.key} of {path.name}"
    return MeasuredStep(workload, measured.step_s or 0.0, where, f"{point.model} {point.size}")


MAX_ERROR = 0.5
"""An estimator with a larger error on left-out models is not kept: the steps contradict each other."""


class AdaptAnswer(Frozen):
    """Result of an adaptation: the records of the device, the file, and notes on steps that were not used."""

    device: str
    records: tuple[AdaptedRecord, ...]
    whole_steps: AdaptedWholeSteps | None
    path: str | None
    notes: tuple[str, ...]


class _TracedStep(Frozen):
    """A measured step with its graph, its estimate before adaptation, and what the training-step model needs."""

    step: MeasuredStep
    job: TracedJob
    estimate_s: float
    whole: TrainingStep | None


def adapt(
    path: Path, tools: Toolbox, *, device: str | None = None, most: int = 50, keep: bool = True,
    progress: Progress = lambda *_: None,
) -> AdaptAnswer:  # fmt: skip
    """Adapt the estimators of a device to the measured steps of a file, and keep the result for ``estimate``.

    Args:
        path: CSV table of workloads and ``step_s``, or a file of ``leadline measure``.
        tools: the adapters of the verbs.
        device: device name in the catalog; a measured file names its own.
        most: maximum number of steps to use; each is traced, which takes seconds.
        keep: write the result to the user's data folder.
        progress: called with each step that is traced.

    Raises:
        InvalidInput: the file cannot be used, no device is named, or there are too few steps of every kind of job.
        Untraceable: a model could not be traced.
        LeadlineError: the result cannot be written; raised before tracing starts.
    """
    folder = settings.adapted_dir()
    if keep:
        settings.require_writable(folder)
    if most < LEAST_WHOLE_STEPS:
        raise InvalidInput(f"--most is {most}, but it must be at least {LEAST_WHOLE_STEPS}")
    with measured_steps(path, most) as (steps, measured):
        named = measured.name if measured else None
        target = _device(device or named, path, tools)
        if measured:
            target = measured_under(target, measured.power_limit_w)
        notes = [f"{path.name} was measured on {named}"] if named and device and named != target.name else []
        notes += describe_power_limit(target)
        traced = []
        for number, step in enumerate(steps, 1):
            progress(step.where, number, len(steps))
            job = Tracer(tools, step.workload).job_for(target)
            estimate_s = tools.estimator.estimate(step.workload, job, target).step_s
            if estimate_s is None:
                raise InvalidInput(f"{step.where} cannot be estimated on {target.name}: delete it")
            whole = find_training_step(step.workload, job, target)
            if step.workload.gpus != 1 and whole is None:
                raise InvalidInput(
                    f"{step.where} ran on {step.workload.gpus} GPUs, but only training steps of language models in 16 "
                    "bits may: delete it"
                )
            traced.append(_TracedStep(step, job, estimate_s.point, whole))
    adapted = _adapt(target, traced, path, notes)
    file = adapted_steps_path(folder, target)
    if keep:
        with settings.refuse_unwritable(folder):
            save_adapted_steps(adapted, file)
    card = adapted.card
    return AdaptAnswer(target.name, card.records, card.whole_steps, str(file) if keep else None, tuple(notes))


def _adapt(device: Device, traced: Sequence[_TracedStep], path: Path, notes: list[str]) -> AdaptedSteps:
    """Return the adaptation of whole training steps, and that of kernels in the host that these show."""
    whole, record, coefficients = [step for step in traced if step.whole], None, None
    if len(whole) >= LEAST_WHOLE_STEPS:
        steps = [step.whole for step in whole if step.whole]
        runs = _runs(whole)
        record, coefficients = adapt_whole_steps(steps, runs.step_s, runs.model, path.name)
        # Priors keep it near the shipped model, so only steps that contradict each other do harm.
        if record.error > MAX_ERROR:
            off = f"error {record.error:.0%} with them, {record.before:.0%} without"
            notes.append(f"{record.runs} whole training steps not used: {off}")
            record = coefficients = None
    if record and not device.launch_s:
        device = device.with_launch(record.launch_s)
    alone = [step for step in traced if step.step.workload.gpus == 1 and not (record and step.whole)]
    if len(alone) < LEAST_STEPS and record is None:
        raise InvalidInput(
            f"{path} has {len(traced)} steps, but at least {LEAST_STEPS} on one GPU are needed, or {LEAST_WHOLE_STEPS} "
            "training steps of language models in 16 bits"
        )
    records, laws = _adapt_groups(device, alone, path, notes)
    if not records and record is None:
        raise InvalidInput(_describe_failure(_fit_factor(device, alone), path))
    card = AdaptedCard(
        schema=ADAPTED_SCHEMA, device=device.name, records=tuple(records), whole_steps=record,
        power_limit_w=device.power_limit_w,
    )  # fmt: skip
    return AdaptedSteps(card, laws if laws.models else None, coefficients)


def _adapt_groups(
    device: Device, traced: Sequence[_TracedStep], path: Path, notes: list[str]
) -> tuple[list[AdaptedRecord], OpUtilizationModels]:
    """Return the records of each group and of all steps, and the refitted op-utilization models."""
    records: list[AdaptedRecord] = []
    models = OpUtilizationModels({})
    groups: dict[tuple[StepGroup, bool], list[_TracedStep]] = defaultdict(list)
    for step in traced:
        groups[find_step_group(step.job.step, device), is_channels_last(step.job.step)].append(step)
    for (group, channels_last), rows in groups.items():
        if len(rows) < LEAST_STEPS:
            continue
        best = _best(device, rows)
        if best.error > min(MAX_ERROR, best.error_before):
            off = f"error {best.error:.0%} with them, {best.error_before:.0%} without"
            notes.append(f"{len(rows)} steps of {group} not used: {off}")
            continue
        records.append(_to_record(best, group, path.name, channels_last=channels_last))
        models = models.merge(best.laws) if best.laws else models
    if len(traced) >= LEAST_STEPS:
        overall = _fit_factor(device, traced)
        if overall.error <= min(MAX_ERROR, overall.error_before):
            records.append(_to_record(overall, None, path.name, channels_last=False))
    return records, models


def _describe_failure(overall: AdaptedEstimator, path: Path) -> str:
    return (
        f"{path} does not improve the estimates: on left-out models, the {overall.estimator} has an error of "
        f"{overall.error:.0%} with a factor, {overall.error_before:.0%} without; measure more steps of one kind of "
        "job, on an idle machine"
    )


def _device(name: str | None, path: Path, tools: Toolbox) -> Device:
    if name is None:
        raise InvalidInput(f"{path} does not name its device: add --device")
    calibrated = [
        device for device in tools.catalog.devices() if device.calibration and device.name.startswith(f"{name} (")
    ]
    try:
        return calibrated[0] if len(calibrated) == 1 else tools.catalog.device(name)
    except UnknownName as error:
        raise InvalidInput(f"{error} Name the device with --device, or run leadline calibrate on it first") from error


def _best(device: Device, traced: Sequence[_TracedStep]) -> AdaptedEstimator:
    """Return the adaptation with the smaller error on left-out models: a factor, or a refitted op-utilization model."""
    candidates = [_fit_factor(device, traced)]
    if device.kind is DeviceKind.GPU:
        with suppress(InvalidInput):  # the model does not cover such graphs
            refitted = adapt_op_utilization(shipped_op_utilization(), device, _runs(traced), shipped_device)
            candidates.append(replace(refitted, error_before=candidates[0].error_before))
    return min(candidates, key=lambda adapted: adapted.error)


def _fit_factor(device: Device, traced: Sequence[_TracedStep]) -> AdaptedEstimator:
    """Return the factor between the shipped estimates and the measured steps."""
    models = [select_shipped_kernels(device, step.job) for step in traced]
    estimates_s = np.array([model.step_s(step.job.step) for model, step in zip(models, traced, strict=True)])
    names = " or ".join(dict.fromkeys(model.name for model in models))
    before = [abs(step.estimate_s / step.step.step_s - 1) for step in traced]
    return replace(adapt_by_factor(names, estimates_s, _runs(traced)), error_before=float(np.mean(before)))


def _runs(traced: Sequence[_TracedStep]) -> MeasuredSteps:
    return MeasuredSteps(
        [step.job.step for step in traced],
        np.array([step.step.step_s for step in traced]),
        [step.step.model for step in traced],
    )


def _to_record(best: AdaptedEstimator, group: StepGroup | None, source: str, *, channels_last: bool) -> AdaptedRecord:
    return AdaptedRecord(
        group=group, channels_last=channels_last, estimator=best.estimator, by_law=best.laws is not None,
        factor=best.factor, error=best.error, before=best.error_before, spread=best.spread, runs=best.runs,
        source=source, made_on=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip


def forget_device(device: str, tools: Toolbox) -> str:
    """Delete the adaptation of a device and return its file; ``LeadlineError`` if there is none."""
    path = adapted_steps_path(settings.adapted_dir(), tools.catalog.device(device))
    if not path.is_file():
        raise LeadlineError(f"{device} is not adapted on this machine: run leadline adapt")
    path.unlink()
    return str(path)
