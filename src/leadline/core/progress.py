"""What a job has shown of its own progress: its start-up, the loops it runs in, and the time of each iteration."""

from dataclasses import dataclass, field
from statistics import median

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.runs import Measurement

MAX_SAMPLED_ITERATIONS = 1000
"""The most durations that are kept of one loop."""


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """One loop of a job, by its finished iterations.

    ``length`` is how many iterations one pass of it has and ``None`` where that is not known; ``passes`` is how many
    passes were seen whole. ``total_s`` is the time in all ``count`` finished iterations, ``inside_s`` the part of it
    that passed in the next level. ``first_s`` holds the first durations in order, ``sampled_s`` durations evenly
    spread over all of them.
    """

    name: str
    count: int
    total_s: float
    length: int | None = None
    passes: int = 0
    inside_s: float = 0.0
    first_s: tuple[float, ...] = ()
    sampled_s: tuple[float, ...] = ()
    where: str = ""

    @property
    def median_s(self) -> float | None:
        """The median time of one iteration."""
        return median(self.sampled_s) if self.sampled_s else None


@dataclass(frozen=True, slots=True)
class Progress:
    """All that a job has shown, from whichever ``source`` says most.

    ``levels`` stand outermost first, and the last one's iteration is the unit of work. ``startup_s`` is the time from
    the start of the job to its first unit. ``total`` is the number of units in the whole job where the job itself
    says it; ``phases`` the seconds of each phase that the job named. ``stopped`` tells that the probe ended the job.
    """

    source: str
    levels: tuple[LoopProgress, ...] = ()
    startup_s: float | None = None
    last_s: float | None = None
    steps: int | None = None
    epochs: int | None = None
    total: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    method: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def unit(self) -> LoopProgress | None:
        """The innermost level, where any was seen."""
        return self.levels[-1] if self.levels else None


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """One line of the progress file; ``t`` as written, ``more`` the metrics."""

    step: int | None = None
    epoch: int | None = None
    total_steps: int | None = None
    total_epochs: int | None = None
    phase: str | None = None
    t: float | None = None
    more: dict[str, str] = field(default_factory=dict)


def parse_progress_line(text: str) -> ProgressLine | None:
    """Read ``epoch=3 step=120 loss=0.41`` (or with commas); ``None`` for a line that is not of that form."""
    words = text.replace(",", " ").split()
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(name.isidentifier() and joined and value for name, joined, value in pairs):
        return None
    said = {name: value for name, _, value in pairs}
    whole: dict[str, int | None] = {}
    try:
        for name in ("step", "epoch", "total_steps", "total_epochs"):
            whole[name] = _whole(said.pop(name)) if name in said else None
        t = float(said.pop("t")) if "t" in said else None
    except ValueError:
        return None
    phase = said.pop("phase", None)
    if t is not None and not 0 <= t < float("inf"):
        return None
    return ProgressLine(**whole, phase=phase, t=t, more=said)


def _whole(text: str) -> int:
    """Read a count, which some languages write as ``1e3`` or ``120.0``; ``ValueError`` if it is none."""
    value = float(text)
    if value != value or not 0 <= value < 2**63 or value != int(value):  # noqa: PLR0124 - NaN alone differs from itself
        raise ValueError(text)
    return int(value)


@dataclass(frozen=True, slots=True)
class ProbeForecast:
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
    forecast: ProbeForecast
    measured: dict[str, Measurement] = field(default_factory=dict)
    exit_code: int | None = None
    remarks: tuple[str, ...] = ()
