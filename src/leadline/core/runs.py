"""A finished run: what was predicted, what was asked, what was measured, and how it ended."""

from dataclasses import dataclass, field
from enum import StrEnum

from leadline.core.estimate import Estimate
from leadline.core.jobs import JobSpec, JobState


class Scale(StrEnum):
    """HARP's two scales of execution."""

    SCALED_DOWN = "SD"
    FULL_SCALE = "FS"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured figure with its method and, where it was sampled, the sampling interval."""

    value: float
    unit: str
    method: str
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One execution. ``measured`` maps a quantity (``elapsed_s``, ``host_memory_bytes``, ``cpu_s`` …) to its figure.

    A run whose ``state`` is censored is a lower bound, not a measurement.
    """

    id: str
    job: JobSpec
    state: JobState
    started_at: str
    scale: Scale = Scale.FULL_SCALE
    ended_at: str | None = None
    exit_code: int | None = None
    host: str | None = None
    device: str | None = None
    predicted: Estimate | None = None
    measured: dict[str, Measurement] = field(default_factory=dict)
    parameters: dict[str, int | float | str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
