"""Read the files of ``leadline measure``: measured steps of models on one device, to adapt an estimator."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.documents import explain_read_error, from_json
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.runs import Scale, Value
from leadline.training.records import NODE, RunRecord

MEASUREMENTS_SCHEMA = "leadline.measure/1"
MEASUREMENTS_SUFFIX = ".jsonl"


class MeasurementOutcome(StrEnum):
    """Result of measuring a point; only ``OK`` has a measured time."""

    OK = "ok"
    OOM = "oom"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"


STATES = {
    MeasurementOutcome.OK: JobState.COMPLETED,
    MeasurementOutcome.OOM: JobState.OUT_OF_MEMORY,
    MeasurementOutcome.TIMEOUT: JobState.TIMEOUT,
    MeasurementOutcome.ERROR: JobState.FAILED,
    MeasurementOutcome.CRASH: JobState.FAILED,
}


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """The device as torch reports it; ``threads`` is for a CPU."""

    type: str
    name: str
    memory_bytes: int
    compute_units: int | None = None
    capability: str | None = None
    threads: int | None = None
    limits: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PointSettings:
    """The measured workload; ``size`` is an image's side, a sequence's tokens or a vector's features."""

    model: str
    size: int
    phase: str
    precision: str
    batch: int
    optimizer: str = ""
    fused: bool = False
    channels_last: bool = False
    checkpointing: bool = False
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class PointMemory:
    """Peak memory of one point in bytes, or lower bounds if ``censored``; only a CPU has ``peak_host_bytes``."""

    censored: bool
    before_bytes: int = 0
    model_bytes: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    outside_allocator_bytes: int | None = None
    peak_host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PointEnergy:
    """Energy of one step, and the mean power over the window."""

    step_j: float
    mean_w: float
    method: str
    window_s: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """All calls of one op with one set of input shapes in a step, and its longest kernel."""

    op: str
    shapes: list[Any]
    count: int
    device_s: float | None
    host_s: float
    kernel: str | None
    kernels: int


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One line of the file; unmeasured values are ``None``.

    Attributes:
        step_s: median of the samples.
        step_quantiles_s: quantiles of the samples.
        host_step_s: time of the host to launch a step.
        flops: as torch counts them.
    """

    key: str
    point: PointSettings
    outcome: MeasurementOutcome
    measured_at: str
    reason: str | None = None
    step_s: float | None = None
    step_quantiles_s: tuple[float, ...] = ()
    samples: int = 0
    steady: bool = False
    first_step_s: float | None = None
    host_step_s: float | None = None
    device_busy_s: float | None = None
    parameters: int | None = None
    parameter_bytes: int | None = None
    flops: float | None = None
    memory: PointMemory | None = None
    energy: PointEnergy | None = None
    clocks: dict[str, Any] | None = None
    ops: tuple[OpTime, ...] = ()
    ops_share: float | None = None
    ops_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """A whole file; ``truncated`` if its last line was only half written, as after a kill."""

    path: str
    device: MeasuredDevice
    software: dict[str, Any]
    rates: dict[str, float]
    points: tuple[MeasuredPoint, ...]
    measured_at: str = ""
    truncated: bool = False


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements.

    Raises:
        InvalidInput: the file cannot be read, has another schema, or has a wrong line; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error
    lines = text.split("\n")
    cut = bool(lines.pop())
    if not lines:
        raise InvalidInput(f"{path} holds no measurements: make some with leadline measure --out {path}")
    header = _header(lines[0], path)
    points: dict[str, MeasuredPoint] = {}
    for number, line in enumerate(lines[1:], 2):
        point = _point(line, header.op_columns, label=f"line {number} of {path}")
        if point.key in points:
            raise InvalidInput(f"line {number} of {path} has the point {point.key} again: delete one of the two lines")
        points[point.key] = point
    return Measurements(
        str(path), header.device, header.software, header.rates, tuple(points.values()), header.measured_at, cut
    )


def measured_records(measurements: Measurements) -> tuple[RunRecord, ...]:
    """Return a record for each point: its settings are the features, its time and memory the metrics.

    A point that ran out of memory is a record of that state; its memory is a lower bound.
    """
    device = measurements.device
    node: dict[str, Value] = {NODE + "device": device.name, NODE + "memory_bytes": device.memory_bytes}
    return tuple(_record(point, measurements.path, node) for point in measurements.points)


class _Header(msgspec.Struct):
    device: MeasuredDevice
    software: dict[str, Any]
    rates: dict[str, float]
    op_columns: list[str]
    measured_at: str = ""


class _Schema(msgspec.Struct):
    schema: str = ""


def _header(line: str, path: Path) -> _Header:
    label = f"line 1 of {path}"
    schema = from_json(line, _Schema, label=label).schema
    if schema != MEASUREMENTS_SCHEMA:
        raise InvalidInput(
            f"{path} has the schema {schema or 'none'}, not {MEASUREMENTS_SCHEMA}: give a file that leadline measure "
            "wrote"
        )
    return from_json(line, _Header, label=label)


def _point(line: str, columns: list[str], *, label: str) -> MeasuredPoint:
    raw = from_json(line, dict, label=label)
    if raw.get("kind") == "header":
        raise InvalidInput(f"{label} is a second header: read the files one by one, not joined")
    # Ops are rows without keys, for the size of the file.
    raw["ops"] = [
        dict(zip(columns, row, strict=False)) if isinstance(row, list) else row for row in raw.get("ops") or ()
    ]
    try:
        point = msgspec.convert(raw, MeasuredPoint)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{label} cannot be read: {error}; delete the line") from error
    if point.outcome is MeasurementOutcome.OK and not (point.step_s and point.step_s > 0):
        raise InvalidInput(f"{label} is a point that ended well without a step time: delete the line")
    return point


def _record(point: MeasuredPoint, path: str, node: dict[str, Value]) -> RunRecord:
    settings, memory = point.point, point.memory
    parameters: dict[str, Value] = {
        "model": settings.model,
        "size": settings.size,
        "phase": settings.phase,
        "precision": settings.precision,
        "batch": settings.batch,
        "optimizer": settings.optimizer or "none",
        **{name: int(getattr(settings, name)) for name in ("fused", "channels_last", "checkpointing", "compiled")},
    }
    metrics = {
        "step_s": point.step_s,
        "gpu_memory_bytes": memory.peak_allocated_bytes if memory else None,
        "gpu_reserved_bytes": memory.peak_reserved_bytes if memory else None,
        "step_energy_j": point.energy.step_j if point.energy else None,
    }
    return RunRecord(
        id=point.key,
        label=f"the point {point.key} of {Path(path).name}",
        application=Path(path).name.removesuffix(MEASUREMENTS_SUFFIX),
        state=STATES[point.outcome],
        scale=Scale.FULL_SCALE,
        features=node | parameters,
        metrics={name: float(value) for name, value in metrics.items() if value is not None},
        parameters=frozenset(parameters),
        started_at=point.measured_at,
    )
