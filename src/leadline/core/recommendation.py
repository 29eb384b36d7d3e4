"""Recommendations: the request to make, the reason, and the rejected candidates."""

from msgspec import field

from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Value


class RiskWeights(Frozen):
    """Cost of a wrong request relative to the same amount used.

    With both weights 1, a prediction with a log spread of 0.14 is cheapest at a risk of 5 %, the customary choice.
    """

    kill: float = 1.0  # weight of an hour lost when a run is killed at its limit
    waste: float = 1.0
    """Weight of an hour requested but unused. Most systems charge only used time, but a longer request waits longer
    and blocks other jobs."""


class Constraints(Frozen):
    """The user's limits: deadline in seconds, budget in ``currency``, and accepted risk of a kill.

    The deadline counts from submission if the queue wait is known, else from the start. Within the risk, the request
    minimizes the cost under ``weights``.
    """

    deadline_s: float | None = None
    budget: float | None = None
    currency: str | None = None
    risk: float = 0.05
    weights: RiskWeights = RiskWeights()


class Option(Frozen):
    """A configuration that satisfies the constraints, its request, and the reason."""

    system: str
    partition: str
    node: str
    resources: ResourceSpec  # its walltime and memory per node are exceeded with at most the accepted risk
    estimate: Estimate
    reason: str
    on_front: bool = False  # True if no other option of the same currency is better in both time and cost
    site: str = ""
    device: str | None = None
    gpu_memory_bytes: float | None = None  # quantile of one GPU's memory at that risk
    notes: tuple[str, ...] = ()
    request_reason: str = ""  # True if that risk or the expected cost decided walltime and memory
    parameters: dict[str, Value] = field(default_factory=dict)  # the application's parameters, if they were chosen too
    command: tuple[str, ...] = ()  # the command line with the parameters, if known
    wait_s: Interval | None = None  # queue wait; `None` if unknown
    result_s: Interval | None = None  # time from submission to the result; `None` if the wait is unknown


class Rejection(Frozen):
    """A rejected candidate, and the reason."""

    system: str
    partition: str
    node: str
    reason: str
    kind: str = ""  # class of the reason (`gpu-memory`, `device-unknown` …), used to group rejections
    gpus: int = 0


class Recommendation(Frozen):
    """Options best first, rejections, and the smallest change that would help if nothing fits."""

    constraints: Constraints
    options: tuple[Option, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    smallest_change: str | None = None
    notes: tuple[str, ...] = ()  # sentences that hold for every option
