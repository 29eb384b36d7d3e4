"""Finished runs, and the training samples made from them."""

from enum import StrEnum

from msgspec import field

from leadline.core.estimate import Estimate
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState


class Scale(StrEnum):
    """HARP's two scales of execution."""

    SCALED_DOWN = "SD"
    FULL_SCALE = "FS"


class Measurement(Frozen):
    """A measured value with its method and, if sampled, the sampling interval."""

    value: float
    unit: str
    method: str
    interval_s: float | None = None


class Run(Frozen):
    """One execution; ``measured`` maps a metric (``elapsed_s``, ``host_memory_bytes``, ``cpu_s`` …) to its measurement.

    The measurements of a run with a censored ``state`` are lower bounds.
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


Value = int | float | str  # a parameter or feature value: a number, or the name of a category


class Sample(Frozen):
    """One run as training data."""

    features: dict[str, Value]
    """Parameters, resources (``cores``, ``gpus`` …), hardware numbers of the node and op-graph numbers; an unknown
    feature is absent."""
    value: float  # the target, positive, in the unit of the training set; a lower bound for a censored run
    scale: Scale
    censored: bool = False
    startup_s: float | None = None  # seconds before the first unit of work, if observed and the target is the walltime
    work_s: float | None = None  # seconds of all `units`, under the same condition
    units: float | None = None
    unit_s: float | None = None  # median seconds of a unit
    cost_s: float = 0.0  # seconds that the run took
    run_id: str = ""

    @property
    def configuration(self) -> str:
        """A key shared by repeats of one configuration, so that no split separates them."""
        return "\n".join(f"{name}={value}" for name, value in sorted(self.features.items()))


class TrainingSet(Frozen):
    """The samples of one application and one target (``elapsed_s``, ``host_memory_bytes`` …)."""

    application: str
    target: str
    samples: tuple[Sample, ...]
    scale_features: tuple[str, ...] = ()  # larger at full scale than scaled down (epochs, samples, grid size)
    units: dict[str, str] = field(default_factory=dict)

    def at(self, scale: Scale) -> "tuple[Sample, ...]":
        """Return the samples of one scale."""
        return tuple(sample for sample in self.samples if sample.scale is scale)
