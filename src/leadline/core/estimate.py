"""Estimates: a predicted value, its interval, and the evidence behind it."""

import math
import operator
from collections.abc import Callable
from enum import StrEnum

from msgspec import field

from leadline.core.frozen import Frozen

NORMAL_90 = 1.645  # standard deviations on each side of the mean that hold 90 % of a normal distribution


class Tier(StrEnum):
    """Evidence behind an estimate, weakest first."""

    BLACK_BOX = "black-box"  # gradient boosting on a feature table, trained on measured steps
    SPECS = "specs"  # vendor specifications only: wide intervals
    CALIBRATED = "calibrated"  # a micro-benchmark sweep on that device
    LEARNED = "learned"  # a model fitted on measured runs


class EstimatorChoice(StrEnum):
    """Step-time estimators that a user can select instead of the most accurate one."""

    OP_UTILIZATION = "law"  # the model of op utilization, trained on measured steps
    KERNELS = "kernels"
    """One prediction per kernel, trained on other devices and on this device's calibration sweep if there is one."""
    NETWORK = "network"  # the graph neural network, trained on measured steps
    BLACK_BOX = "black-box"  # gradient boosting on a feature table, trained on measured steps
    SPECS = "specs"  # vendor specifications


class Interval(Frozen):
    """A point estimate and the range that holds the true value with probability ``level``; ``low ≤ point ≤ high``."""

    point: float
    low: float
    high: float
    level: float = 0.9

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of ``factor`` times the quantity (``factor ≥ 0``)."""
        return Interval(self.point * factor, self.low * factor, self.high * factor, self.level)

    def joined(self, other: "Interval", join: Callable[[float, float], float] = operator.add) -> "Interval":
        """Return the interval of both quantities together, whose errors have a common cause: ``join`` of each end."""
        ends = (join(self.point, other.point), join(self.low, other.low), join(self.high, other.high))
        return Interval(*ends, self.level)

    def plus(self, other: "Interval") -> "Interval":
        """Return the interval of the sum with another quantity whose error is independent."""
        point = self.point + other.point
        low = point - math.hypot(self.point - self.low, other.point - other.low)
        high = point + math.hypot(self.high - self.point, other.high - other.point)
        return Interval(point, low, high, self.level)

    def widened(self, below: float, above: float) -> "Interval":
        """Return the interval with a further, independent error of 1 ÷ ``below`` to ``above`` times the point."""
        if not 0 < self.low <= self.point:
            return self
        low = math.hypot(math.log(self.point / self.low), math.log(below))
        high = math.hypot(math.log(self.high / self.point), math.log(above))
        return Interval(self.point, self.point / math.exp(low), self.point * math.exp(high), self.level)


class Basis(Frozen):
    """The evidence for an estimate: its tier, and reasons that a user can check."""

    tier: Tier
    reasons: tuple[str, ...] = ()
    breakdown_s: dict[str, float] = field(default_factory=dict)
    memory_breakdown_bytes: dict[str, float] = field(default_factory=dict)


class Target(Frozen):
    """The device of an estimate, alone or as ``gpus`` of a partition of a system."""

    device: str
    system: str | None = None
    partition: str | None = None
    node: str | None = None
    gpus: int = 1
    nodes: int = 1


class TokenTimes(Frozen):
    """Latency and throughput of a language model on one batch of prompts: a prefill, then one decode step a token.

    The decode fields are ``None`` where the prefill makes the only token.
    """

    prompt_tokens: int
    generated_tokens: int
    time_to_first_token_s: Interval
    time_per_output_token_s: Interval | None  # the mean decode step
    first_decode_step_s: Interval | None  # the decode step with the shortest KV cache
    last_decode_step_s: Interval | None  # the decode step with the longest KV cache
    output_tokens_per_s: Interval  # tokens of all sequences on all GPUs over the whole answer, prefill included
    kv_cache_bytes: int  # the final size of one GPU's cache
    replayed_answer_s: Interval | None  # the whole answer with CUDA graphs, without launch overhead; `None` on a CPU
    replayed_per_output_token_s: Interval | None  # the mean decode step with CUDA graphs; `None` on a CPU


class Estimate(Frozen):
    """Predicted time, memory and cost of a workload on one target.

    A quantity that could not be predicted is ``None``, and ``unknown`` gives the reason.
    """

    target: Target
    estimator: str
    basis: Basis
    elapsed_s: Interval | None = None  # the whole job
    step_s: Interval | None = None
    """One optimizer step, one forward pass in inference, or one batch of whole answers in generation."""
    gpu_memory_bytes: Interval | None = None
    host_memory_bytes: Interval | None = None
    device_memory_bytes: int | None = None  # the capacity of the device, to compare `gpu_memory_bytes` with
    cost: Interval | None = None
    currency: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    token_times: TokenTimes | None = None  # the parts of `step_s` in generation
