"""A campaign: which runs of an application to make, at which scale, under which budget."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from leadline.core.estimate import Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Scale, Value


class ParameterKind(StrEnum):
    """How a parameter's values are spread; the ``LOG`` kinds evenly over the logarithm."""

    INTEGER = "integer"
    LOG_INTEGER = "log-integer"
    REAL = "real"
    LOG = "log"
    CATEGORICAL = "categorical"

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return self in (ParameterKind.INTEGER, ParameterKind.LOG_INTEGER)

    @property
    def logarithmic(self) -> bool:
        """Whether equal ratios are equal steps."""
        return self in (ParameterKind.LOG, ParameterKind.LOG_INTEGER)


@dataclass(frozen=True, slots=True)
class Range:
    """The values from ``low`` to ``high``, both included; ``low ≤ high``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``{name}`` of the command.

    A numeric parameter has a range at each scale, and carries scale where the two differ; where it has ``values``, only
    those within the range are used. A categorical one has ``choices``, the same at both scales, as
    texts also where they look like numbers: what is learned from them takes them for names.
    """

    name: str
    kind: ParameterKind
    scaled_down: Range | None = None
    full_scale: Range | None = None
    choices: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def carries_scale(self) -> bool:
        """Whether its full-scale values lie elsewhere than the scaled-down ones."""
        return self.scaled_down != self.full_scale

    def range_at(self, scale: Scale) -> Range | None:
        """Return the range at a scale; ``None`` for a categorical parameter."""
        return self.scaled_down if scale is Scale.SCALED_DOWN else self.full_scale


class BudgetUnit(StrEnum):
    """What a campaign's budget counts."""

    SECONDS = "s"
    CORE_HOURS = "core-hours"
    USD = "USD"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that all runs of a campaign together may take."""

    amount: float
    unit: BudgetUnit


class Design(StrEnum):
    """How the runs are chosen."""

    ADAPTIVE = "adaptive"
    """A space-filling start weighted by cost, then the runs that most reduce the full-scale error per second."""
    SPACE_FILLING = "space-filling"
    RANDOM = "random"
    GRID = "grid"


@dataclass(frozen=True, slots=True)
class Campaign:
    """Everything a campaign's file says.

    ``command`` holds the words of the command line with ``{parameters}`` and ``{resources}``. ``cores``, ``gpus``,
    ``memory_bytes`` and ``partitions`` are the values to vary over. ``scaled_down_runs`` and ``full_scale_runs`` bound
    the number of configurations (``None``: as the budget allows), each run ``repeats`` times, none longer than
    ``walltime_s``. ``core_hour`` and ``gpu_hour`` are US dollars. ``first_run_s`` is the user's guess of the cheapest
    run, from which costs are forecast before anything ran. With ``watch`` the loops of Python scripts are timed.
    """

    name: str
    command: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    cores: tuple[int, ...] = (1,)
    gpus: tuple[int, ...] = (0,)
    memory_bytes: tuple[int, ...] = ()
    partitions: tuple[str, ...] = ()
    budget: Budget | None = None
    scaled_down_runs: int | None = None
    full_scale_runs: int | None = None
    repeats: int = 1
    walltime_s: float | None = None
    design: Design = Design.ADAPTIVE
    seed: int = 0
    core_hour: float | None = None
    gpu_hour: float | None = None
    first_run_s: float | None = None
    workdir: str | None = None
    setup: tuple[str, ...] = ()
    watch: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    system: str | None = None
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of a campaign: the parameters' values, and the resources they run with."""

    parameters: dict[str, Value]
    resources: ResourceSpec
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run to be made; ``forecast_s`` is ``None`` where nothing is known yet to forecast it from."""

    campaign: str
    configuration: Configuration
    scale: Scale
    repeat: int = 0
    forecast_s: Interval | None = None

    @property
    def id(self) -> str:
        """Return an id that is the same whenever the same run is planned, so that none is made twice."""
        one = self.configuration
        said = [self.campaign, *sorted(f"{name}={value!r}" for name, value in one.parameters.items())]
        said += [repr(one.resources), str(one.partition), str(self.repeat)]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
