"""Cells of tables that the command line and the Python API share."""

from leadline.core.estimate import Interval
from leadline.core.units import format_bytes, format_duration


def format_place(system: str | None, partition: str | None) -> str:
    """Return a target as it is written after ``--on``."""
    return f"{system}:{partition}" if system and partition else system or ""


def format_device(device: str, gpus: int) -> str:
    """Return a device, with how many of them if there are several."""
    return device if gpus <= 1 else f"{gpus} × {device}"


def format_time(interval: Interval | None) -> str:
    """Return the most likely time."""
    return format_duration(interval.point) if interval else "unknown"


def format_size(interval: Interval | None) -> str:
    """Return the most likely number of bytes."""
    return format_bytes(interval.point) if interval else "unknown"


def format_range(interval: Interval | None) -> str:
    """Return the bounds of a time; empty if it is unknown."""
    return f"{format_duration(interval.low)} – {format_duration(interval.high)}" if interval else ""
