"""Nouns of the Intelligence Plane, the process that manages jobs: jobs, attempts and decisions."""

from enum import StrEnum

from msgspec import field

from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState, ResourceSpec


class Place(Frozen):
    """A system that the plane has a scheduler for, and one of its partitions."""

    system: str
    partition: str | None = None

    def __str__(self) -> str:
        return f"{self.system}:{self.partition}" if self.partition else self.system


class Policy(Frozen):
    """Permissions and limits of the plane for one job."""

    places: tuple[Place, ...]  # where the job may run, preferred first
    copies: int = 1  # replicas that may wait at once, each elsewhere, until one starts
    attempts: int = 4  # limit on submissions
    segments: int = 50  # limit on continuations from a checkpoint
    node_s: float | None = None  # limit on node-seconds of all attempts
    cost: float | None = None  # limit on the cost of all attempts, in the unit of its places
    resumes: bool = False  # True if the restarted command continues from its own checkpoint
    checkpoint_signal: str | None = None  # signal that makes the command write a checkpoint
    checkpoint_s: float = 120.0  # seconds before a limit at which the signal is sent
    checkpoint_folder: str | None = None
    """Checkpoint folder, relative to the working directory; it is copied when the job moves to another system."""
    deadline_at: str | None = None  # when the user needs the result
    risk: float = 0.05  # accepted probability that a limit is too low
    resizes: bool = True  # True if requests may be changed
    may_restart: bool = False  # True if a prediction may end a running attempt, or shorten a limit
    max_running: int | None = None  # limit on the elements of its array that run at once
    own_commands: bool = False  # True if the elements of its array differ in command, environment or time limit
    links_output: bool = False  # True if the job's own folder gets links to its output
    measured: bool = True  # True if the command runs under the measuring wrapper, the source of its progress


NO_CONSENT = "--may-restart was not given, so it runs on"
"""End of a decision that lacks nothing but the user's consent."""


class AttemptPlan(Frozen):
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

    def allows(self, state: JobState) -> bool:
        """Return whether a job may start after one that ended in this state."""
        return self is DependencyKind.ANY or (state is JobState.COMPLETED) is (self is DependencyKind.OK)


class Attempt(Frozen):
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
    scheduler_id: str | None = None  # None until the scheduler's answer is known
    noted_at: str = ""
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    reason: str = ""  # why the attempt waits, or how it ended
    node: str | None = None
    exit_code: int | None = None
    withdrawn: bool = False  # True if the plane itself cancelled it
    held: bool = False  # True if it is one of several replicas, whose command waits for the plane's release
    begins: bool = False  # True if a held attempt is to be released; at most one of concurrent replicas is
    walltime_s: float | None = None  # current limit at the scheduler; it may be shorter than the submitted one
    refused_extensions: int = 0
    segment: bool = False  # True if it ended with a checkpoint for the next attempt: a part of the job, not a failure
    done_share: float | None = None  # share of the work done in all attempts at its end, as the job counts it
    recorded: bool = False  # True if its end is in the history

    @property
    def began(self) -> bool:
        """True if its command may have begun."""
        return self.started_at is not None and (self.begins or not self.held)

    @property
    def live(self) -> bool:
        """True if it is, or may be, at the scheduler; an untraceable attempt ended with state UNKNOWN."""
        return not self.state.final and self.ended_at is None


class Job(Frozen):
    """A submitted job. Its ``state`` is PENDING until it is ``closed``; ``current_state`` follows its attempts."""

    key: str
    spec: JobSpec
    policy: Policy
    state: JobState = JobState.PENDING
    created_at: str = ""
    group: str | None = None  # key shared by the elements of an array
    index: int | None = None  # number of the element in its array
    after: tuple[str, ...] = ()  # keys of the jobs it depends on, which must end as `after_kind` requires
    after_kind: DependencyKind = DependencyKind.OK
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""
    predicted: Estimate | None = None
    parameters: dict[str, int | float | str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)  # tags of its runs in the history
    plan: AttemptPlan | None = None  # the next attempt, if one is to follow
    cancelled: bool = False  # True if the user cancelled it
    recorded: bool = False  # True if no work is left

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

    def share_before(self, attempt: Attempt) -> float:
        """Return the share of the work that earlier attempts did for one that resumes; 0 if unknown."""
        earlier = [past.done_share or 0.0 for past in self.attempts if past.number < attempt.number]
        return max(earlier, default=0.0) if self.policy.resumes else 0.0

    def checkpoint_source(self, system: str) -> Attempt | None:
        """Return the attempt whose checkpoint must be copied to a system before the job continues there."""
        began = [attempt for attempt in self.attempts if attempt.began]
        last = max(began, key=lambda attempt: attempt.number, default=None)
        return None if last is None or self.policy.checkpoint_folder is None or last.place.system == system else last


class Action(StrEnum):
    """Actions of the plane on a job."""

    KEEP = "keep"  # no action
    SHRINK = "shrink"  # lower the limit of a job that needs less, which lets this and other jobs backfill
    EXTEND = "extend"  # request a longer limit; most schedulers refuse this to the owner of a running job
    CHECKPOINT = "checkpoint"  # write a checkpoint before the limit and continue in another attempt
    RESUBMIT = "resubmit"  # submit it again with a request adapted to how it ended
    MOVE = "move"  # withdraw it and submit it at another place, where it would end sooner
    BEGIN = "begin"  # release the command of this replica, the first to run; the others never begin
    WITHDRAW = "withdraw"  # cancel this replica: another one started, or it is no longer useful
    GIVE_UP = "give-up"  # accept the end of the job; `reason` explains why no further attempt is made
    FINISH = "finish"  # the job is done


class FailureCause(StrEnum):
    """Cause of an attempt's end, which decides the next attempt where the state alone does not."""

    WALLTIME = "walltime"  # it reached its limit
    HOST_MEMORY = "host-memory"  # it needed more memory than requested, or than its node has
    GPU_MEMORY = "gpu-memory"  # it needed more memory than a GPU has, which only another GPU or a smaller batch can fix
    NODE = "node"  # its node, or a device of the node, failed
    CHECKPOINT = "checkpoint"  # it saved its state and ended before its work was done
    PREEMPTION = "preemption"  # a job of higher priority took its place
    TRANSIENT = "transient"  # a possibly temporary fault: a network, a file server, a port
    STORAGE = "storage"  # the file system was full; a retry fails until the user frees space
    PROGRAM = "program"  # an error in the program; a retry would fail the same way
    DEPENDENCY = "dependency"  # a job that it depends on did not end as required
    USER = "user"  # cancelled by its user
    ADMINISTRATOR = "administrator"  # ended by the site's staff
    REQUEUE = "requeue"  # put back into the queue by its scheduler or the site's staff
    PLANE = "plane"  # cancelled by the plane
    UNKNOWN = "unknown"  # no evidence; it is not retried blindly


class Alternative(Frozen):
    """Another place for a job: expected wait, run time and cost there, and the request."""

    place: Place
    resources: ResourceSpec
    wait_s: Interval | None
    elapsed_s: Interval | None
    staging_s: Interval | None = None
    cost: float | None = None  # of the whole run
    currency: str | None = None
    gpu_memory_bytes: int | None = None  # the capacity of one GPU there


class Situation(Frozen):
    """The inputs of a decision about one attempt; unknown values are ``None``."""

    job: Job
    attempt: Attempt
    now_s: float
    elapsed_s: float = 0.0  # run time so far; 0 while it waits
    total_s: Interval | None = None  # expected total run time
    memory_bytes: Interval | None = None  # expected peak on one node
    memory_now_bytes: float | None = None  # measured memory
    remaining_wait_s: Interval | None = None  # expected remaining wait
    allowed_s: float | None = None  # the partition's longest limit
    node_memory_bytes: int | None = None  # memory of its largest node
    spent_node_s: float = 0.0
    spent_cost: float | None = None  # consumption of all attempts so far
    cost_per_s: float | None = None  # price of the attempt's request
    asked_to_extend: int = 0  # number of refused requests for a longer limit
    checkpointed: bool = False
    alternatives: tuple[Alternative, ...] = ()
    evidence: tuple[str, ...] = ()  # sentences on how it ended
    cause: FailureCause | None = None  # cause of its end
    gpu_memory_bytes: int | None = None  # capacity of one of its GPUs


class Decision(Frozen):
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
    NOTED = "noted"  # an attempt is about to be submitted under its key
    STAGED = "staged"  # the checkpoint of an attempt was copied to another system
    SUBMITTED = "submitted"
    STATE = "state"
    PROGRESS = "progress"
    POLL = "poll"
    DECISION = "decision"
    FAULT = "fault"  # a request failed or was refused
    CANCEL = "cancel"  # the user cancelled a job
    APPROVE = "approve"  # the user allowed a prediction to restart a job
    SETTLED = "settled"
    LEARNED = "learned"


class JournalEvent(Frozen):
    """One row of the journal; ``job`` and ``attempt`` are empty for events that concern neither."""

    number: int
    at: str
    kind: EventKind
    job: str = ""
    attempt: str = ""
    details: dict[str, float | int | str | bool | None] = field(default_factory=dict)
