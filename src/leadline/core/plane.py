"""Nouns of the Intelligence Plane, the process that manages jobs: jobs, attempts and decisions."""

from dataclasses import dataclass, field
from enum import StrEnum

from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import JobSpec, JobState, ResourceSpec


@dataclass(frozen=True, slots=True)
class Place:
    """A system that the plane has a scheduler for, and one of its partitions."""

    system: str
    partition: str | None = None

    def __str__(self) -> str:
        return f"{self.system}:{self.partition}" if self.partition else self.system


@dataclass(frozen=True, slots=True)
class Policy:
    """Permissions and limits of the plane for one job."""

    places: tuple[Place, ...]
    """Where the job may run, preferred first."""
    copies: int = 1
    """Replicas that may wait at once, each elsewhere, until one starts."""
    attempts: int = 4
    """Limit on submissions."""
    segments: int = 50
    """Limit on continuations from a checkpoint."""
    node_s: float | None = None
    """Limit on node-seconds of all attempts."""
    cost: float | None = None
    """Limit on the cost of all attempts, in the unit of its places."""
    resumes: bool = False
    """True if the restarted command continues from its own checkpoint."""
    checkpoint_signal: str | None = None
    """Signal that makes the command write a checkpoint."""
    checkpoint_s: float = 120.0
    """Seconds before a limit at which the signal is sent."""
    checkpoint_folder: str | None = None
    """Checkpoint folder, relative to the working directory; it is copied when the job moves to another system."""
    deadline_at: str | None = None
    """When the user needs the result."""
    risk: float = 0.05
    """Accepted probability that a limit is too low."""
    resizes: bool = True
    """True if requests may be changed."""
    max_running: int | None = None
    """Limit on the elements of its array that run at once."""
    own_commands: bool = False
    """True if the elements of its array differ in command, environment or time limit."""
    measured: bool = True
    """True if the command runs under the measuring wrapper, the source of its progress."""


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The next attempt of a job: place, request, earliest time, and reason."""

    place: Place
    resources: ResourceSpec
    not_before: str | None = None
    reason: str = ""


class DependencyKind(StrEnum):
    """Required outcome of the jobs that a job depends on, in Slurm's terms."""

    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One submission of a job to one scheduler. Times are ISO 8601 in UTC."""

    key: str
    job: str
    number: int
    place: Place
    resources: ResourceSpec
    batch: str = ""
    """Key of the submission, the attempt's own or that of its array, stored before the scheduler is called.

    It is part of the job's name and comment at the scheduler, which makes a lost answer recoverable.
    """
    state: JobState = JobState.PENDING
    scheduler_id: str | None = None
    """None until the scheduler's answer is known."""
    noted_at: str = ""
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    reason: str = ""
    """Why the attempt waits, or how it ended."""
    node: str | None = None
    exit_code: int | None = None
    withdrawn: bool = False
    """True if the plane itself cancelled it."""
    held: bool = False
    """True if it is one of several replicas, whose command waits for the plane's release."""
    begins: bool = False
    """True if a held attempt is to be released; at most one of concurrent replicas is."""
    walltime_s: float | None = None
    """Current limit at the scheduler; it may be shorter than the submitted one."""
    refused_extensions: int = 0
    segment: bool = False
    """True if it ended with a checkpoint for the next attempt: a part of the job, not a failure."""
    recorded: bool = False
    """True if its end is in the history."""

    @property
    def began(self) -> bool:
        """True if its command may have begun."""
        return self.started_at is not None and (self.begins or not self.held)

    @property
    def live(self) -> bool:
        """True if it is, or may be, at the scheduler; an untraceable attempt ended with state UNKNOWN."""
        return not self.state.final and self.ended_at is None


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job. Its ``state`` is PENDING until it is ``closed``; ``current_state`` follows its attempts."""

    key: str
    spec: JobSpec
    policy: Policy
    state: JobState = JobState.PENDING
    created_at: str = ""
    group: str | None = None
    """Key shared by the elements of an array."""
    index: int | None = None
    """Number of the element in its array."""
    after: tuple[str, ...] = ()
    """Keys of the jobs it depends on, which must end as ``after_kind`` requires."""
    after_kind: DependencyKind = DependencyKind.OK
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""
    predicted: Estimate | None = None
    parameters: dict[str, int | float | str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of its runs in the history."""
    plan: AttemptPlan | None = None
    """The next attempt, if one is to follow."""
    cancelled: bool = False
    """True if the user cancelled it."""
    recorded: bool = False
    """True if no work is left."""

    @property
    def closed(self) -> bool:
        """True if the plane is finished with it; UNKNOWN closes an untraceable job."""
        return self.state.final or self.state is JobState.UNKNOWN

    @property
    def current_state(self) -> JobState:
        """The final state if closed, RUNNING while an attempt runs, else PENDING."""
        if self.closed:
            return self.state
        runs = any(attempt.state is JobState.RUNNING for attempt in self.attempts)
        return JobState.RUNNING if runs else JobState.PENDING

    @property
    def live_attempts(self) -> tuple[Attempt, ...]:
        """The attempts that are, or may be, at a scheduler."""
        return tuple(attempt for attempt in self.attempts if attempt.live)

    def checkpoint_source(self, system: str) -> Attempt | None:
        """Return the attempt whose checkpoint must be copied to a system before the job continues there."""
        began = [attempt for attempt in self.attempts if attempt.began]
        last = max(began, key=lambda attempt: attempt.number, default=None)
        return None if last is None or self.policy.checkpoint_folder is None or last.place.system == system else last


class Action(StrEnum):
    """Actions of the plane on a job."""

    KEEP = "keep"
    """No action."""
    SHRINK = "shrink"
    """Lower the limit of a job that needs less, which lets this and other jobs backfill."""
    EXTEND = "extend"
    """Request a longer limit; most schedulers refuse this to the owner of a running job."""
    CHECKPOINT = "checkpoint"
    """Write a checkpoint before the limit and continue in another attempt."""
    RESUBMIT = "resubmit"
    """Submit it again with a request adapted to how it ended."""
    MOVE = "move"
    """Withdraw it and submit it at another place, where it would end sooner."""
    BEGIN = "begin"
    """Release the command of this replica, the first to run; the others never begin."""
    WITHDRAW = "withdraw"
    """Cancel this replica: another one started, or it is no longer useful."""
    GIVE_UP = "give-up"
    """Accept the end of the job; ``reason`` explains why no further attempt is made."""
    FINISH = "finish"
    """The job is done."""


class FailureCause(StrEnum):
    """Cause of an attempt's end, which decides the next attempt where the state alone does not."""

    WALLTIME = "walltime"
    """It reached its limit."""
    HOST_MEMORY = "host-memory"
    """It needed more memory than requested, or than its node has."""
    GPU_MEMORY = "gpu-memory"
    """It needed more memory than a GPU has, which only another GPU or a smaller batch can fix."""
    NODE = "node"
    """Its node, or a device of the node, failed."""
    PREEMPTION = "preemption"
    """A job of higher priority took its place."""
    TRANSIENT = "transient"
    """A possibly temporary fault: a network, a file server, a port."""
    STORAGE = "storage"
    """The file system was full; a retry fails until the user frees space."""
    PROGRAM = "program"
    """An error in the program; a retry would fail the same way."""
    DEPENDENCY = "dependency"
    """A job that it depends on did not end as required."""
    USER = "user"
    """Cancelled by its user."""
    ADMINISTRATOR = "administrator"
    """Cancelled by the site's staff."""
    PLANE = "plane"
    """Cancelled by the plane."""
    UNKNOWN = "unknown"
    """No evidence; it is not retried blindly."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another place for a job: expected wait, run time and cost there, and the request.

    ``cost`` covers the whole run; ``gpu_memory_bytes`` is the capacity of one GPU there.
    """

    place: Place
    resources: ResourceSpec
    wait_s: Interval | None
    elapsed_s: Interval | None
    staging_s: Interval | None = None
    cost: float | None = None
    currency: str | None = None
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """The inputs of a decision about one attempt; unknown values are ``None``."""

    job: Job
    attempt: Attempt
    now_s: float
    elapsed_s: float = 0.0
    """Run time so far; 0 while it waits."""
    total_s: Interval | None = None
    """Expected total run time."""
    memory_bytes: Interval | None = None
    """Expected peak on one node."""
    memory_now_bytes: float | None = None
    """Measured memory."""
    remaining_wait_s: Interval | None = None
    """Expected remaining wait."""
    allowed_s: float | None = None
    """The partition's longest limit."""
    node_memory_bytes: int | None = None
    """Memory of its largest node."""
    spent_node_s: float = 0.0
    spent_cost: float | None = None
    """Consumption of all attempts so far."""
    cost_per_s: float | None = None
    """Price of the attempt's request."""
    asked_to_extend: int = 0
    """Number of refused requests for a longer limit."""
    checkpointed: bool = False
    alternatives: tuple[Alternative, ...] = ()
    evidence: tuple[str, ...] = ()
    """Sentences on how it ended."""
    cause: FailureCause | None = None
    """Cause of its end."""
    gpu_memory_bytes: int | None = None
    """Capacity of one of its GPUs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The action on an attempt, the reason in one sentence, and the numbers behind the reason.

    ``resources`` and ``place`` belong to the next attempt, or to the changed one (``SHRINK``, ``EXTEND``). ``delay_s``
    is the wait before its submission.
    """

    action: Action
    reason: str
    resources: ResourceSpec | None = None
    place: Place | None = None
    delay_s: float = 0.0
    evidence: dict[str, float | str] = field(default_factory=dict)


class EventKind(StrEnum):
    """Kinds of journal events."""

    HANDED_OVER = "handed over"
    NOTED = "noted"
    """An attempt is about to be submitted under its key."""
    STAGED = "staged"
    """The checkpoint of an attempt was copied to another system."""
    SUBMITTED = "submitted"
    STATE = "state"
    PROGRESS = "progress"
    POLL = "poll"
    DECISION = "decision"
    FAULT = "fault"
    """A request failed or was refused."""
    CANCEL = "cancel"
    """The user cancelled a job."""
    SETTLED = "settled"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One row of the journal; ``job`` and ``attempt`` are empty for events that concern neither."""

    number: int
    at: str
    kind: EventKind
    job: str = ""
    attempt: str = ""
    details: dict[str, float | int | str | bool | None] = field(default_factory=dict)
