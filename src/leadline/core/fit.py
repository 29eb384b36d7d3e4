"""Memory fit: whether a job fits, by what margin, and which changes would make it fit."""

from enum import StrEnum

from msgspec import field

from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.units import format_bytes


class ChangeCost(StrEnum):
    """The cost of a change other than time, cheapest first."""

    NOTHING = "nothing"  # the results stay the same up to rounding order
    HARDWARE = "hardware"  # more devices, or a different one
    RESULTS = "results"  # the results change: another optimizer, another weight format, or fewer trained weights


class MemoryCheck(Frozen):
    """A job's need for device or host memory, compared with the capacity."""

    kind: str
    needed_bytes: float  # the memory that the job exceeds only with the accepted risk
    there_bytes: float | None  # the capacity, or `None` if unknown
    risk: float | None  # the probability that the job needs more than the capacity

    @property
    def fits(self) -> bool | None:
        """True if the job fits at the accepted risk; ``None`` if the capacity is unknown."""
        return None if self.there_bytes is None else self.needed_bytes <= self.there_bytes

    @property
    def summary(self) -> str:
        """Return the need, the capacity and the margin in one sentence."""
        needed = f"{self.kind} memory: needs {format_bytes(self.needed_bytes)}"
        if self.there_bytes is None or self.risk is None:
            return f"{needed}; the capacity is unknown"
        margin = self.there_bytes - self.needed_bytes
        spare = f"{format_bytes(margin)} to spare" if margin >= 0 else f"{format_bytes(-margin)} too little"
        return (
            f"{needed} of {format_bytes(self.there_bytes)}, {spare}; {format_probability(self.risk)} likely to run out"
        )


class FitChange(Frozen):
    """A change that the user could make, and its effect."""

    what: str
    options: tuple[str, ...]  # the command-line options for it; empty if Leadline has none
    asks: ChangeCost  # the cost of the change other than time
    check: MemoryCheck
    step_s: Interval | None = None
    slower: float | None = None  # time for the same samples relative to no change; `None` if unknown
    dearer: float | None = None  # GPU hours relative to no change; `None` if unknown

    @property
    def fits(self) -> bool:
        """True if the job fits with the change."""
        return self.check.fits is True


class MemorySnapshot(Frozen):
    """The contents of device memory at one point of a step, in ``stage`` of it."""

    share: float  # progress through the step's allocations and releases, from 0 to 1
    stage: str
    held_bytes: dict[str, int]  # bytes of tensors by category
    reserved_bytes: int  # bytes that the allocator has reserved for them

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.held_bytes.values())


class ServingCapacity(Frozen):
    """Number of sequences that a device serves at once when a paged KV cache fills it."""

    share: float  # fraction of the device that the engine uses
    block: int  # tokens in a cache block
    cache_bytes: float  # bytes left for cache blocks
    tokens: int  # final length of each sequence
    sequences: int

    @property
    def summary(self) -> str:
        """Return the capacity in one sentence."""
        return (
            f"paged attention in {self.share:.0%} of the device: {format_bytes(self.cache_bytes)} of blocks of "
            f"{self.block} tokens, {self.sequences:,} sequences of {self.tokens:,} tokens at once"
        )


class FitReport(Frozen):
    """The memory fit on one target: its checks, the largest batch, and possible changes."""

    place: str
    device: str
    estimate: Estimate
    accepted_risk: float
    checks: tuple[MemoryCheck, ...]
    batch: int | None = None
    largest_batch: int | None = None  # 0 if not even one sample fits; `None` if not computed (see `why_no_batch`)
    why_no_batch: str = ""
    changes: tuple[FitChange, ...] = ()
    notes: tuple[str, ...] = ()
    moments: tuple[MemorySnapshot, ...] = ()  # snapshots evenly spaced over the step, if requested
    host_parts_bytes: dict[str, float] = field(default_factory=dict)  # peak host memory of each process, by name
    serving: ServingCapacity | None = None  # set for a paged KV cache

    @property
    def fits(self) -> bool | None:
        """True if all memories suffice; ``None`` if one capacity is unknown and the others suffice."""
        answers = [check.fits for check in self.checks]
        if False in answers:
            return False
        return None if None in answers or not answers else True


def format_probability(risk: float) -> str:
    """Format a probability for people, without false certainty near 0 or 1."""
    if risk < 0.001:
        return "less than 0.1%"
    if risk > 0.999:
        return "more than 99.9%"
    return f"{risk:.1%}" if risk < 0.1 else f"{risk:.0%}"
