"""Cells of tables that the command line and the Python API share."""

from collections.abc import Mapping, Sequence

from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Value
from leadline.core.units import format_bytes, format_clock, format_duration

FIT_VERDICTS = {True: "fits", False: "does not fit", None: "unknown"}


def expected_s(estimate: Estimate) -> float:
    """Return the most likely seconds of a job, or of a step where the length of the job is unknown."""
    interval = estimate.elapsed_s or estimate.step_s
    return interval.point if interval else float("inf")


def varying_names(parameters: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the names of parameters with different values."""
    names = dict.fromkeys(name for parameter in parameters for name in parameter)
    return [name for name in names if len({parameter.get(name) for parameter in parameters}) > 1]


def format_place(system: str | None, partition: str | None) -> str:
    """Return a target as it is written after ``--on``."""
    return f"{system}:{partition}" if system and partition else system or ""


def format_device(device: str, gpus: int) -> str:
    """Return a device, with how many of them if there are several."""
    return device if gpus <= 1 else f"{gpus} × {device}"


def format_limits(request: ResourceSpec) -> tuple[str, str]:
    """Return the walltime and the memory of a node of a request; empty if the site chooses them."""
    walltime = format_clock(request.walltime_s) if request.walltime_s else ""
    return walltime, format_bytes(request.memory_bytes_per_node) if request.memory_bytes_per_node else ""


def format_time(interval: Interval | None) -> str:
    """Return the most likely time."""
    return format_duration(interval.point) if interval else "unknown"


def format_size(interval: Interval | None) -> str:
    """Return the most likely number of bytes."""
    return format_bytes(interval.point) if interval else "unknown"


def format_range(interval: Interval | None) -> str:
    """Return the bounds of a time; empty if it is unknown."""
    return f"{format_duration(interval.low)} – {format_duration(interval.high)}" if interval else ""
