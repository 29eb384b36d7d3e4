"""Campaigns: which runs of an application to make, at which scale, under which budget."""

import hashlib
from enum import StrEnum

from msgspec import field

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Scale, Value


class ParameterKind(StrEnum):
    """Type and spacing of a parameter's values; the ``LOG`` kinds are evenly spaced in the logarithm."""

    INTEGER = "integer"
    LOG_INTEGER = "log-integer"
    REAL = "real"
    LOG = "log"
    CATEGORICAL = "categorical"

    @property
    def whole(self) -> bool:
        """True if the values are integers."""
        return self in (ParameterKind.INTEGER, ParameterKind.LOG_INTEGER)

    @property
    def logarithmic(self) -> bool:
        """True if equal ratios are equal steps."""
        return self in (ParameterKind.LOG, ParameterKind.LOG_INTEGER)


class Range(Frozen):
    """The values from ``low`` to ``high``, both included; ``low ≤ high``."""

    low: float
    high: float


class Parameter(Frozen):
    """One ``{name}`` of the command.

    A numeric parameter has a range at each scale and carries scale if the ranges differ. Its explicit ``values``, if
    any, apply within each range. A categorical parameter has the same ``choices`` at both scales. They stay text even
    if they look like numbers, because models treat them as names.
    """

    name: str
    kind: ParameterKind
    scaled_down: Range | None = None
    full_scale: Range | None = None
    choices: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def carries_scale(self) -> bool:
        """True if the full-scale values differ from the scaled-down ones."""
        return self.scaled_down != self.full_scale

    def range_at(self, scale: Scale) -> Range | None:
        """Return the range at a scale; ``None`` for a categorical parameter."""
        return self.scaled_down if scale is Scale.SCALED_DOWN else self.full_scale


class BudgetUnit(StrEnum):
    """Unit of a campaign's budget."""

    SECONDS = "s"
    CORE_HOURS = "core-hours"
    USD = "USD"


class Budget(Frozen):
    """Limit on the total consumption of a campaign."""

    amount: float
    unit: BudgetUnit


class Design(StrEnum):
    """Strategy that chooses the runs."""

    ADAPTIVE = "adaptive"
    """A space-filling start weighted by cost, then the runs with the largest reduction of full-scale error per second.
    """
    SPACE_FILLING = "space-filling"
    RANDOM = "random"
    GRID = "grid"


class Campaign(Frozen):
    """The contents of a campaign file."""

    name: str
    command: tuple[str, ...]  # words of the command line, with `{parameters}` and `{resources}`
    parameters: tuple[Parameter, ...]
    cores: tuple[int, ...] = (1,)
    gpus: tuple[int, ...] = (0,)
    memory_bytes: tuple[int, ...] = ()
    partitions: tuple[str, ...] = ()  # values to vary
    budget: Budget | None = None
    scaled_down_runs: int | None = None
    full_scale_runs: int | None = None  # limits on the number of configurations; `None` leaves it to the budget
    repeats: int = 1  # runs of each configuration
    walltime_s: float | None = None  # limit of each run
    design: Design = Design.ADAPTIVE
    seed: int = 0
    core_hour: float | None = None
    gpu_hour: float | None = None  # prices in US dollars
    first_run_s: float | None = None  # the user's guess for the cheapest run, used for forecasts before the first run
    workdir: str | None = None
    setup: tuple[str, ...] = ()
    watch: bool = True  # True if to time the loops of Python scripts
    environment: dict[str, str] = field(default_factory=dict)
    system: str | None = None
    account: str | None = None


class Configuration(Frozen):
    """One point of a campaign: parameter values and resources."""

    parameters: dict[str, Value]
    resources: ResourceSpec
    partition: str | None = None


class PlannedRun(Frozen):
    """A run to make; ``forecast_s`` is ``None`` while there is nothing to forecast from."""

    campaign: str
    configuration: Configuration
    scale: Scale
    repeat: int = 0
    forecast_s: Interval | None = None

    @property
    def id(self) -> str:
        """A stable hash of the run, so that no run is made twice."""
        configuration = self.configuration
        parts = [self.campaign, *sorted(f"{name}={value!r}" for name, value in configuration.parameters.items())]
        # The journals of running campaigns store this hash: a change of its text repeats all their runs.
        parts += [repr(configuration.resources), str(configuration.partition), str(self.repeat)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
