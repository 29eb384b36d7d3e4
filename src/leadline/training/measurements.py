"""Read the files of ``leadline measure``: measured steps of models on one device, to adapt an estimator."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.documents import from_json, refuse_large
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Scale, Value
from leadline.files.read import read_input_text
from leadline.kit.design import MeasurementPoint
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


class DeviceLimits(Frozen):
    """Limits of the device as NVML reports them."""

    power_limit_w: float | None = None


class MeasuredDevice(Frozen):
    """The device as torch reports it; ``limits`` are absent without NVML."""

    name: str
    memory_bytes: int
    limits: DeviceLimits | None = None

    @property
    def power_limit_w(self) -> float | None:
        """Power limit during the measurement; ``None`` if unknown."""
        return self.limits.power_limit_w if self.limits else None


class PointMemory(Frozen):
    """Peak memory of one point, or lower bounds if it ran out of memory; ``None`` on a CPU."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


class PointEnergy(Frozen):
    """Energy of one step."""

    step_j: float


class MeasuredPoint(Frozen):
    """One line of the file; unmeasured values are ``None``, and ``step_s`` is the median of the samples."""

    # The lines have more fields, such as the times of ops. Only those that a verb reads are here.
    key: str
    point: MeasurementPoint
    outcome: MeasurementOutcome
    measured_at: str
    step_s: float | None = None
    memory: PointMemory | None = None
    energy: PointEnergy | None = None


class Measurements(Frozen):
    """A whole file."""

    path: str
    device: MeasuredDevice
    points: tuple[MeasuredPoint, ...]


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements.

    Raises:
        InvalidInput: the file cannot be read, has another schema, or has a wrong line; the message names the line.
    """
    lines = read_input_text(path).split("\n")
    # A kill may cut off the last line.
    lines.pop()
    if not lines:
        raise InvalidInput(f"{path} holds no measurements: make some with leadline measure --out {path}")
    header = _header(lines[0], path)
    points: dict[str, MeasuredPoint] = {}
    for number, line in enumerate(lines[1:], 2):
        if _object(line, f"line {number} of {path}").get("kind", "").startswith("collective."):
            continue  # times of links, not of a model
        point = _point(line, label=f"line {number} of {path}")
        if point.key in points:
            raise InvalidInput(f"line {number} of {path} has the point {point.key} again: delete one of the two lines")
        points[point.key] = point
    return Measurements(str(path), header.device, tuple(points.values()))


def measured_records(measurements: Measurements) -> tuple[RunRecord, ...]:
    """Return a record for each point: its settings are the features, its time and memory the metrics.

    A point that ran out of memory is a record of that state; its memory is a lower bound.
    """
    device = measurements.device
    node: dict[str, Value] = {NODE + "device": device.name, NODE + "memory_bytes": device.memory_bytes}
    if device.power_limit_w:
        node[NODE + "gpu_power_limit_w"] = device.power_limit_w
    return tuple(_record(point, measurements.path, node) for point in measurements.points)


class _Header(msgspec.Struct):
    device: MeasuredDevice


def _header(line: str, path: Path) -> _Header:
    label = f"line 1 of {path}"
    schema = _object(line, label).get("schema")
    if schema != MEASUREMENTS_SCHEMA:
        raise InvalidInput(
            f"{path} has the schema {schema or 'none'}, not {MEASUREMENTS_SCHEMA}: give a file that leadline measure "
            "wrote"
        )
    return from_json(line, _Header, label=label)


def _object(line: str, label: str) -> dict[str, Any]:
    raw: dict[str, Any] = from_json(line, dict, label=label)
    refuse_large(raw, label)
    return raw


def _point(line: str, *, label: str) -> MeasuredPoint:
    raw = _object(line, label)
    if raw.get("kind") == "header":
        raise InvalidInput(f"{label} is a second header: read the files one by one, not joined")
    try:
        point = msgspec.convert(raw, MeasuredPoint)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{label} cannot be read: {error}; delete the line") from error
    if point.outcome is MeasurementOutcome.OK and not (point.step_s and point.step_s > 0):
        raise InvalidInput(f"{label} is a point that ended well without a step time: delete the line")
    return point


def _record(point: MeasuredPoint, path: str, node: dict[str, Value]) -> RunRecord:
    settings: dict[str, Value] = asdict(point.point)
    parameters = {name: int(value) if isinstance(value, bool) else value for name, value in settings.items()}
    parameters["optimizer"] = parameters["optimizer"] or "none"
    memory = point.memory
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
