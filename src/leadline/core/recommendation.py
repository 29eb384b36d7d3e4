"""What to ask for, why, and why the others lost."""

from dataclasses import dataclass

from leadline.core.estimate import Estimate
from leadline.core.jobs import ResourceSpec


@dataclass(frozen=True, slots=True)
class Constraints:
    """The user's bounds: seconds until the end, an amount of ``currency``, and the accepted risk of a kill."""

    deadline_s: float | None = None
    budget: float | None = None
    currency: str | None = None
    risk: float = 0.05


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration that satisfies the constraints, with the request to make and the reason for it.

    ``resources.walltime_s`` and ``resources.memory_bytes_per_node`` are upper quantiles at the accepted risk;
    ``gpu_memory_bytes`` is the same quantile of the memory of one GPU. ``on_front`` marks the options that no other
    option of the same currency beats in both time and cost.
    """

    system: str
    partition: str
    node: str
    resources: ResourceSpec
    estimate: Estimate
    reason: str
    on_front: bool = False
    site: str = ""
    device: str | None = None
    gpu_memory_bytes: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that lost, and why.

    ``kind`` is the class of the reason (``gpu-memory``, ``device-unknown``, ``over-budget`` …), by which many
    rejections are counted together; ``gpus`` is how many the candidate would have used.
    """

    system: str
    partition: str
    node: str
    reason: str
    kind: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Options best first, the rejected ones, and, when nothing fits, the smallest change that would make it fit."""

    constraints: Constraints
    options: tuple[Option, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    smallest_change: str | None = None
