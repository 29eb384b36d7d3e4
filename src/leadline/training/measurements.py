"""Read what ``leadline measure`` wrote: steps of known models on one device, from which an estimator is adapted."""

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
    """How the measurement of a point ended; all but the first are no measured times."""

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
    """The device, as torch reports it; ``threads`` are those of a CPU."""

    type: str
    name: str
    memory_bytes: int
    compute_units: int | None = None
    capability: str | None = None
    threads: int | None = None
    limits: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PointSettings:
    """What was measured; ``size`` is an image's side, the tokens of a sequence or the features of a vector."""

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
    """Peaks of one point in bytes; ``censored`` ones are lower bounds. A GPU has all but the last, a CPU the last."""

    censored: bool
    before_bytes: int = 0
    model_bytes: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    outside_allocator_bytes: int | None = None
    peak_host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PointEnergy:
    """Energy of one step, and the mean power over ``window_s``."""

    step_j: float
    mean_w: float
    method: str
    window_s: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """One op with one set of input shapes in one step: all its calls, and the kernel that took longest."""

    op: str
    shapes: list[Any]
    count: int
    device_s: float | None
    host_s: float
    kernel: str | None
    kernels: int


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One line of the file. ``step_s`` is the median of ``samples``, of which ``step_quantiles_s`` has the spread.

    A figure that was not measured is ``None``. ``flops`` are those that torch counts, ``host_step_s`` what the host
    took to start a step.
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
    """A whole file. ``truncated`` tells that its last line was only half written, as it is after a kill."""

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
        InvalidInput: it cannot be read, is of another schema, or a line is not what it should be; with the line.
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
        point = _point(line, header.op_columns, what=f"line {number} of {path}")
        if point.key in points:
            raise InvalidInput(f"line {number} of {path} has the point {point.key} again: delete one of the two lines")
        points[point.key] = point
    return Measurements(
        str(path), header.device, header.software, header.rates, tuple(points.values()), header.measured_at, cut
    )


def measured_records(measurements: Measurements) -> tuple[RunRecord, ...]:
    """Turn measurements into records: a point's configuration is what is known, a step's time and memory are learned.

    A point that ran out of memory is a record of that state, whose memory is a lower bound.
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
    what = f"line 1 of {path}"
    found = from_json(line, _Schema, label=what).schema
    if found != MEASUREMENTS_SCHEMA:
        raise InvalidInput(
            f"{path} has the schema {found or 'none'}, not {MEASUREMENTS_SCHEMA}: give a file that leadline measure wrote"
        )
    return from_json(line, _Header, label=what)


def _point(line: str, columns: list[str], *, what: str) -> MeasuredPoint:
    raw = from_json(line, dict, label=what)
    if raw.get("kind") == "header":
        raise InvalidInput(f"{what} is a second header: read the files by themselves, not joined")
    raw["ops"] = [
        dict(zip(columns, row, strict=False)) if isinstance(row, list) else row for row in raw.get("ops") or ()
    ]
    try:
        point = msgspec.convert(raw, MeasuredPoint)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{what} cannot be read: {error}; delete the line") from error
    if point.outcome is MeasurementOutcome.OK and not (point.step_s and point.step_s > 0):
        raise InvalidInput(f"{what} is a point that ended well without the time of a step: delete the line")
    return point


def _record(point: MeasuredPoint, path: str, node: dict[str, Value]) -> RunRecord:
    asked = point.point
    parameters: dict[str, Value] = {
        "model": asked.model,
        "size": asked.size,
        "phase": asked.phase,
        "precision": asked.precision,
        "batch": asked.batch,
        "optimizer": asked.optimizer or "none",
        **{name: int(getattr(asked, name)) for name in ("fused", "channels_last", "checkpointing", "compiled")},
    }
    memory = point.memory
    figures = {
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
        metrics={name: float(value) for name, value in figures.items() if value is not None},
        parameters=frozenset(parameters),
        started_at=point.measured_at,
    )
