"""Progress of a running job: start-up, loops, iteration times, and the forecast of the whole job."""

from statistics import median

from msgspec import field

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Measurement

REPORTED = "progress file"
"""Source of progress that the job itself reports."""
MAX_SAMPLED_ITERATIONS = 1000  # most durations stored for one loop


class LoopProgress(Frozen):
    """Finished iterations of one loop of a job."""

    name: str
    count: int
    total_s: float  # seconds in all `count` finished iterations
    length: int | None = None  # iterations in one pass; `None` if unknown
    passes: int = 0  # complete passes observed
    inside_s: float = 0.0  # the part of `total_s` spent in the next level
    first_s: tuple[float, ...] = ()  # the first durations, in order
    sampled_s: tuple[float, ...] = ()  # durations evenly spread over all iterations
    where: str = ""  # location of the loop in the source

    @property
    def median_s(self) -> float | None:
        """Median seconds of one iteration."""
        return median(self.sampled_s) if self.sampled_s else None


class Progress(Frozen):
    """All observed progress of a job, from its most detailed ``source``."""

    source: str
    levels: tuple[LoopProgress, ...] = ()  # loops, outermost first; an iteration of the last one is the unit of work
    startup_s: float | None = None  # seconds from the start of the job to its first unit
    last_s: float | None = None
    steps: int | None = None
    epochs: int | None = None
    total: int | None = None  # number of units in the whole job, if the job reports it
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each phase that the job named
    stopped: bool = False  # True if the probe ended the job
    method: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def done(self) -> int | None:
        """Units of work done, in the unit of ``total``: steps if there are any, else epochs."""
        return self.epochs if self.steps is None else self.steps

    @property
    def complete(self) -> bool:
        """True if all units of the whole job are done."""
        return self.total is not None and self.done is not None and self.done >= self.total

    @property
    def reported(self) -> bool:
        """True if the job itself reports it."""
        return self.source == REPORTED

    @property
    def unit(self) -> LoopProgress | None:
        """The innermost level, if any."""
        return self.levels[-1] if self.levels else None


class ProgressLine(Frozen):
    """One line of the progress file; ``t`` as written, ``more`` the metrics."""

    step: int | None = None
    epoch: int | None = None
    total_steps: int | None = None
    total_epochs: int | None = None
    phase: str | None = None
    t: float | None = None
    more: dict[str, str] = field(default_factory=dict)


def parse_progress_line(text: str) -> ProgressLine | None:
    """Parse ``epoch=3 step=120 loss=0.41`` (or with commas); ``None`` for a line of another form."""
    words = text.replace(",", " ").split()
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(name.isidentifier() and joined and value for name, joined, value in pairs):
        return None
    fields = {name: value for name, _, value in pairs}
    counts: dict[str, int | None] = {}
    try:
        for name in ("step", "epoch", "total_steps", "total_epochs"):
            counts[name] = _parse_count(fields.pop(name)) if name in fields else None
        t = float(fields.pop("t")) if "t" in fields else None
    except ValueError:
        return None
    phase = fields.pop("phase", None)
    # Jobs in any language write this file: a time that is not finite must not reach the arithmetic.
    if t is not None and not 0 <= t < float("inf"):
        return None
    return ProgressLine(**counts, phase=phase, t=t, more=fields)


def _parse_count(text: str) -> int:
    """Parse a count, which some languages write as ``1e3`` or ``120.0``; ``ValueError`` if it is not one."""
    value = float(text)
    if value != value or not 0 <= value < 2**63 or value != int(value):  # noqa: PLR0124 - NaN alone differs from itself
        raise ValueError(text)
    return int(value)


class ProbeForecast(Frozen):
    """The whole job, extrapolated from its first units of work.

    Unknown values are ``None``, and ``unknown`` gives the reason.
    """

    elapsed_s: Interval | None = None
    startup_s: float | None = None
    unit: str = ""
    unit_s: Interval | None = None  # steady seconds of one `unit`
    warmup_s: float | None = None  # extra seconds of the first units
    pass_s: float | None = None  # seconds of one iteration of the outermost loop
    between_s: float | None = None  # the part of `pass_s` outside the units (evaluation, checkpoints)
    units: int | None = None
    passes: int | None = None  # counts in the whole job
    unknown: dict[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


class Probe(Frozen):
    """One probe of a command; ``finished`` is true if the job ended by itself."""

    command: tuple[str, ...]
    state: JobState
    finished: bool
    progress: Progress | None
    forecast: ProbeForecast
    measured: dict[str, Measurement] = field(default_factory=dict)
    exit_code: int | None = None
    remarks: tuple[str, ...] = ()
