"""A probe: what was seen of a job that ran for a few steps, and what the whole of it will take by that."""

from dataclasses import dataclass, field

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.progress import Progress
from leadline.core.runs import Measurement


@dataclass(frozen=True, slots=True)
class Forecast:
    """The whole job, scaled from its first units of work.

    ``unit_s`` is the steady time of one ``unit``; ``warmup_s`` what the first ones took beyond that. ``pass_s`` is one
    iteration of the outermost loop, and ``between_s`` the part of it outside the units (evaluation, checkpoints).
    ``units`` and ``passes`` are those of the whole job. What is not known is ``None``, and ``unknown`` says why.
    """

    elapsed_s: Interval | None = None
    startup_s: float | None = None
    unit: str = ""
    unit_s: Interval | None = None
    warmup_s: float | None = None
    pass_s: float | None = None
    between_s: float | None = None
    units: int | None = None
    passes: int | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of a command; ``finished`` tells that the job came to its own end before the probe had to stop it."""

    command: tuple[str, ...]
    state: JobState
    finished: bool
    progress: Progress | None
    forecast: Forecast
    measured: dict[str, Measurement] = field(default_factory=dict)
    exit_code: int | None = None
    remarks: tuple[str, ...] = ()
