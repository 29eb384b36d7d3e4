"""A figure with its interval, and what it rests on."""

from dataclasses import dataclass, field
from enum import StrEnum

NORMAL_90 = 1.645
"""Standard deviations that hold 90 % of a normal distribution on both sides."""


class Tier(StrEnum):
    """What an estimate rests on, weakest first."""

    BLACK_BOX = "black-box"
    """Boosting on a table of features, learned from whole steps."""
    SPECS = "specs"
    """The maker's figures only: wide intervals."""
    CALIBRATED = "calibrated"
    """A micro-benchmark sweep on that device."""
    LEARNED = "learned"
    """A model fitted on measured runs."""


class EstimatorChoice(StrEnum):
    """The estimators that a user may choose among, in place of the one that was least off."""

    OP_UTILIZATION = "law"
    """The op law, learned from whole steps."""
    KERNELS = "kernels"
    """Kernels one by one, learned from other devices and from the sweep of this one, if it was calibrated."""
    NETWORK = "network"
    """The graph neural network, learned from whole steps."""
    BLACK_BOX = "black-box"
    """Boosting on a table of features, learned from whole steps."""
    SPECS = "specs"
    """The maker's figures."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A point and the range that holds the truth with probability ``level``; ``low ≤ point ≤ high``."""

    point: float
    low: float
    high: float
    level: float = 0.9

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of ``factor`` times the quantity (``factor ≥ 0``)."""
        return Interval(self.point * factor, self.low * factor, self.high * factor, self.level)


@dataclass(frozen=True, slots=True)
class Basis:
    """Why an estimate says what it says: its tier, and sentences a user can check."""

    tier: Tier
    reasons: tuple[str, ...] = ()
    breakdown_s: dict[str, float] = field(default_factory=dict)
    memory_breakdown_bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """Where an estimate holds: a device, alone or as ``gpus`` of a partition of a system."""

    device: str
    system: str | None = None
    partition: str | None = None
    node: str | None = None
    gpus: int = 1
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """How fast a language model answers one batch of prompts: prefill, then one decode step for each further token.

    ``time_per_output_token_s`` is the mean decode step, ``first_decode_step_s`` and ``last_decode_step_s`` its ends as
    the KV cache grows; all three are ``None`` where the prefill makes the only token. ``output_tokens_per_s`` counts
    the tokens of all sequences on all GPUs over the whole answer, prefill included. ``kv_cache_bytes`` is what one
    GPU's cache holds at the end. ``replayed_answer_s`` and ``replayed_per_output_token_s`` are the whole answer and the
    mean decode step were captured kernels replayed (CUDA graphs), so that no launch is waited for; ``None`` on a CPU.
    """

    prompt_tokens: int
    generated_tokens: int
    time_to_first_token_s: Interval
    time_per_output_token_s: Interval | None
    first_decode_step_s: Interval | None
    last_decode_step_s: Interval | None
    output_tokens_per_s: Interval
    kv_cache_bytes: int
    replayed_answer_s: Interval | None
    replayed_per_output_token_s: Interval | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a workload takes on one target.

    ``elapsed_s`` is the whole job, ``step_s`` one optimizer step (one forward pass in inference, one batch of whole
    answers where tokens are generated, of which ``token_times`` tells the parts);
    ``device_memory_bytes`` is what the device has for it, to hold ``gpu_memory_bytes`` against. A quantity that is
    not known is ``None``, and ``unknown`` says why.
    """

    target: Target
    estimator: str
    basis: Basis
    elapsed_s: Interval | None = None
    step_s: Interval | None = None
    gpu_memory_bytes: Interval | None = None
    host_memory_bytes: Interval | None = None
    device_memory_bytes: int | None = None
    cost: Interval | None = None
    currency: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    token_times: TokenTimes | None = None
