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
    """A configuration that satisfies the constraints, with the request to make and the reason for it."""

    system: str
    partition: str
    node: str
    resources: ResourceSpec
    estimate: Estimate
    reason: str
    on_front: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that lost, and why."""

    system: str
    partition: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Options best first, the rejected ones, and, when nothing fits, the smallest change that would make it fit."""

    constraints: Constraints
    options: tuple[Option, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    smallest_change: str | None = None
