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


Value = int | float | str
"""Of a parameter or another feature: a number, or the name of a category."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run, as an estimator sees it.

    ``features`` are its parameters, resources (``cores``, ``gpus`` …), the node's hardware figures and white-box
    figures; a feature that is not known is absent. ``value`` is the target, above zero, in the dataset's unit; of a
    censored run it is a lower bound. ``startup_s`` is the time before the first unit of work and ``work_s`` that of
    all ``units``, one of which took ``unit_s`` (the median), where they were reported or watched and the target is the
    walltime. ``cost_s`` is what the run took to make.
    """

    features: dict[str, Value]
    value: float
    scale: Scale
    censored: bool = False
    startup_s: float | None = None
    work_s: float | None = None
    units: float | None = None
    unit_s: float | None = None
    cost_s: float = 0.0
    run_id: str = ""

    @property
    def configuration(self) -> str:
        """Return a name that repeats of one configuration share, so that no split parts them."""
        return "\n".join(f"{name}={value}" for name, value in sorted(self.features.items()))


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """The samples of one application and one target (``elapsed_s``, ``host_memory_bytes`` …).

    ``scale_features`` name the features that carry scale: those whose full-scale values lie beyond the scaled-down
    ones (epochs, samples, grid size).
    """

    application: str
    target: str
    samples: tuple[Sample, ...]
    scale_features: tuple[str, ...] = ()
    units: dict[str, str] = field(default_factory=dict)

    def at(self, scale: Scale) -> "tuple[Sample, ...]":
        """Return the samples of one scale."""
        return tuple(sample for sample in self.samples if sample.scale is scale)
