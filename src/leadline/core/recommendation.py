"""What to ask for, why, and why the others lost."""

from dataclasses import dataclass, field

from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Value


@dataclass(frozen=True, slots=True)
class RiskWeights:
    """What a request that misses costs, measured by what the same amount costs when it is used.

    ``kill`` is what is lost when a run is killed at its limit: an hour lost counts as so many hours used. ``waste`` is
    what is asked for and not used: most systems charge what is used, but a longer request waits longer, and what one
    job holds idle nobody else has. At 1 and 1 an hour counts the same in every way, and a prediction whose logarithm is
    spread by 0.14 is cheapest at a risk of 5 %, which is what people take by habit.
    """

    kill: float = 1.0
    waste: float = 1.0


@dataclass(frozen=True, slots=True)
class Constraints:
    """The user's bounds: seconds until the end, an amount of ``currency``, and the accepted risk of a kill.

    The end is counted from submission where the wait in the queue is known, and from the start where it is not. Within
    that risk the request is the one that ``weights`` make cheapest.
    """

    deadline_s: float | None = None
    budget: float | None = None
    currency: str | None = None
    risk: float = 0.05
    weights: RiskWeights = RiskWeights()


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration that satisfies the constraints, with the request to make and the reason for it.

    ``resources.walltime_s`` and ``resources.memory_bytes_per_node`` are exceeded with at most the accepted risk, and
    ``request_reason`` says whether that risk or the expected cost decided them; ``gpu_memory_bytes`` is the quantile of
    the memory of one GPU at that risk. ``on_front`` marks the options that no other option of the same currency beats
    in both time and cost. ``parameters`` are the application's own, where they were chosen too, and ``command`` the
    command line with them, where it is known. ``wait_s`` is how long the request waits in the queue, and ``result_s``
    how long it is from submission until the result is there; both are ``None`` where nothing is known of the wait.
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
    request_reason: str = ""
    parameters: dict[str, Value] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    wait_s: Interval | None = None
    result_s: Interval | None = None


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
    """Options best first, the rejected ones, and, when nothing fits, the smallest change that would make it fit.

    ``notes`` are sentences that hold for every option.
    """

    constraints: Constraints
    options: tuple[Option, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    smallest_change: str | None = None
    notes: tuple[str, ...] = ()
