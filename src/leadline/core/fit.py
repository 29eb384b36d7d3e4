"""Whether a job fits into memory, by how much, and what would make it fit."""

from dataclasses import dataclass, field
from enum import StrEnum

from leadline.core.estimate import Estimate, Interval
from leadline.core.units import format_bytes


class ChangeCost(StrEnum):
    """What a change asks of the user beside time, the least first."""

    NOTHING = "nothing"
    """The same numbers come out, in the order of rounding."""
    HARDWARE = "hardware"
    """More devices, or another one."""
    RESULTS = "results"
    """Other numbers come out: another update rule, weights in another format, or fewer of them trained."""


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """One memory that a job needs: of the device or of the host.

    ``needed_bytes`` is exceeded with the accepted risk, ``there_bytes`` is what is there (``None`` where it is not
    known), and ``risk`` the probability that the job needs more than that.
    """

    kind: str
    needed_bytes: float
    there_bytes: float | None
    risk: float | None

    @property
    def fits(self) -> bool | None:
        """Tell whether the job fits at the accepted risk; ``None`` where that is not known."""
        return None if self.there_bytes is None else self.needed_bytes <= self.there_bytes

    @property
    def describe(self) -> str:
        """Return what is needed and what is there."""
        needed = f"{self.kind} memory: needs {format_bytes(self.needed_bytes)}"
        if self.there_bytes is None or self.risk is None:
            return f"{needed}, and how much is there is not known"
        margin = self.there_bytes - self.needed_bytes
        left = f"{format_bytes(margin)} to spare" if margin >= 0 else f"{format_bytes(-margin)} too little"
        return (
            f"{needed} of {format_bytes(self.there_bytes)}, {left}; {format_probability(self.risk)} likely to run out"
        )


@dataclass(frozen=True, slots=True)
class FitChange:
    """Something that the user could change, and what comes of it.

    ``options`` are those of the command line, empty where Leadline has none for it. ``slower`` is the time for the same
    samples over that without the change, and ``dearer`` the GPU hours likewise; ``None`` where they are not known.
    """

    what: str
    options: tuple[str, ...]
    asks: ChangeCost
    check: MemoryCheck
    step_s: Interval | None = None
    slower: float | None = None
    dearer: float | None = None

    @property
    def fits(self) -> bool:
        """Tell whether the job fits with the change."""
        return self.check.fits is True


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """What a device holds at one point of a step, in ``stage`` of it.

    ``share`` says how far the step has come, from 0 to 1 of the times that memory is taken or given back.
    ``held_bytes`` is what tensors hold, by category; ``reserved_bytes`` is what the allocator has taken for them.
    """

    share: float
    stage: str
    held_bytes: dict[str, int]
    reserved_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(self.held_bytes.values())


@dataclass(frozen=True, slots=True)
class ServingCapacity:
    """How many sequences a device answers at once where a paged KV cache fills it.

    An engine takes ``share`` of the device; ``cache_bytes`` of that are left for blocks of ``block`` tokens, and each
    sequence has ``tokens`` at its end.
    """

    share: float
    block: int
    cache_bytes: float
    tokens: int
    sequences: int

    @property
    def describe(self) -> str:
        """Return what fits."""
        return (
            f"paged attention in {self.share:.0%} of the device: {format_bytes(self.cache_bytes)} of blocks of "
            f"{self.block} tokens, {self.sequences:,} sequences of {self.tokens:,} tokens at once"
        )


@dataclass(frozen=True, slots=True)
class FitReport:
    """The answer for one place: its checks, the largest batch that fits, and the changes that were asked about.

    ``largest_batch`` is 0 where not even one sample fits, and ``None`` where it was not asked (``why_no_batch``).
    ``moments`` are those of the step, evenly over it, where they were asked for. ``host_parts_bytes`` is what the host
    holds for each process at its peak, by name. ``serving`` is told of a paged KV cache.
    """

    place: str
    device: str
    estimate: Estimate
    accepted_risk: float
    checks: tuple[MemoryCheck, ...]
    batch: int | None = None
    largest_batch: int | None = None
    why_no_batch: str = ""
    changes: tuple[FitChange, ...] = ()
    notes: tuple[str, ...] = ()
    moments: tuple[MemorySnapshot, ...] = ()
    host_parts_bytes: dict[str, float] = field(default_factory=dict)
    serving: ServingCapacity | None = None

    @property
    def fits(self) -> bool | None:
        """Tell whether all memories suffice; ``None`` where that of one is not known and the others suffice."""
        told = [check.fits for check in self.checks]
        if False in told:
            return False
        return None if None in told or not told else True


def format_probability(risk: float) -> str:
    """Write a probability for people, without a false certainty at the ends."""
    if risk < 0.001:
        return "less than 0.1%"
    if risk > 0.999:
        return "more than 99.9%"
    return f"{risk:.1%}" if risk < 0.1 else f"{risk:.0%}"
