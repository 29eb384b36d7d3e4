"""The Intelligence Plane's nouns: a job that is followed to its end, its attempts, and what was decided of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import JobSpec, JobState, ResourceSpec


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job may run: a system that the plane has a scheduler for, and one of its partitions."""

    system: str
    partition: str | None = None

    def __str__(self) -> str:
        return f"{self.system}:{self.partition}" if self.partition else self.system


@dataclass(frozen=True, slots=True)
class Policy:
    """What the plane may do for a job.

    ``places`` are where it may go, the preferred one first; ``copies`` of it may wait at once, each elsewhere, until
    one starts. ``attempts`` bounds how often it is submitted, ``segments`` how often it goes on from a checkpoint, and
    ``node_s`` (node-seconds) and ``cost`` (in the unit
    of its places) what all attempts may take together. ``resumes`` says that the command goes on from its own
    checkpoint when it is started again; ``checkpoint_signal`` is sent ``checkpoint_s`` before a limit so that it
    writes one. ``deadline_at`` is when its result is wanted, and ``risk`` the accepted probability of a limit that is
    too low. ``resizes`` says whether requests may be changed at all, and ``measured`` whether the command runs under
    the measuring wrapper, without which nothing is known of its progress.
    """

    places: tuple[Place, ...]
    copies: int = 1
    attempts: int = 4
    segments: int = 50
    node_s: float | None = None
    cost: float | None = None
    resumes: bool = False
    checkpoint_signal: str | None = None
    checkpoint_s: float = 120.0
    checkpoint_folder: str | None = None
    """Where its checkpoints lie in the folder that it runs in; it goes along when the job moves to another system."""
    deadline_at: str | None = None
    risk: float = 0.05
    resizes: bool = True
    measured: bool = True


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The next attempt of a job: where, with which request, not before when, and why."""

    place: Place
    resources: ResourceSpec
    not_before: str | None = None
    reason: str = ""


class DependencyKind(StrEnum):
    """What must have become of the jobs before, Slurm's words."""

    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One submission of a job to one scheduler.

    ``key`` is unique; ``batch`` is that of the submission it is part of (its own, or that of its array), was stored
    before anything was submitted, and stands in the job's name and comment at the scheduler.
    ``scheduler_id`` is ``None`` until the scheduler's answer is known; ``state`` then is that of the scheduler, and
    ``reason`` why it waits or how it ended. ``withdrawn`` says that the plane itself took it back.
    Times are ISO 8601 in UTC. ``node_s`` is what it took, nodes times seconds.
    """

    key: str
    job: str
    number: int
    place: Place
    resources: ResourceSpec
    batch: str = ""
    state: JobState = JobState.PENDING
    scheduler_id: str | None = None
    noted_at: str = ""
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    reason: str = ""
    node: str | None = None
    exit_code: int | None = None
    withdrawn: bool = False
    held: bool = False
    """Whether it is one of several copies, whose command waits for the plane's word before it begins."""
    begins: bool = False
    """Whether a held one is to have that word; of copies that are there at once, one alone ever is."""
    walltime_s: float | None = None
    """The limit as it is now at the scheduler; it may have been shortened since it was submitted."""
    refused_extensions: int = 0
    segment: bool = False
    """Whether it ended with a checkpoint from which the next one goes on: a part of the job, and no failed try."""
    recorded: bool = False
    """Whether its end entered the history."""

    @property
    def began(self) -> bool:
        """Whether its command may have begun."""
        return self.started_at is not None and (self.begins or not self.held)

    @property
    def live(self) -> bool:
        """Whether it is, or may be, at the scheduler; what nothing names any more ended with state UNKNOWN."""
        return not self.state.final and self.ended_at is None


@dataclass(frozen=True, slots=True)
class Job:
    """What a user handed over. Its ``state`` is PENDING until it is ``closed``; ``current_state`` says how it stands.

    ``group`` is shared by the elements of an array and ``index`` tells them apart; ``after`` are keys of jobs that
    must have ended so. ``plan`` is there while another attempt is to follow. ``cancelled`` says that the user took it
    back, and ``recorded`` that nothing is left to do.
    """

    key: str
    spec: JobSpec
    policy: Policy
    state: JobState = JobState.PENDING
    created_at: str = ""
    group: str | None = None
    index: int | None = None
    after: tuple[str, ...] = ()
    after_kind: DependencyKind = DependencyKind.OK
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""
    predicted: Estimate | None = None
    parameters: dict[str, int | float | str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """What its runs carry into the history."""
    plan: AttemptPlan | None = None
    cancelled: bool = False
    recorded: bool = False

    @property
    def closed(self) -> bool:
        """Whether the plane will do nothing more for it; UNKNOWN is the end of what nothing names any more."""
        return self.state.final or self.state is JobState.UNKNOWN

    @property
    def current_state(self) -> JobState:
        """How it stands: its end, or RUNNING while an attempt runs, or PENDING."""
        if self.closed:
            return self.state
        runs = any(one.state is JobState.RUNNING for one in self.attempts)
        return JobState.RUNNING if runs else JobState.PENDING

    @property
    def live_attempts(self) -> tuple[Attempt, ...]:
        """The attempts that are, or may be, at a scheduler."""
        return tuple(one for one in self.attempts if one.live)

    def checkpoint_source(self, system: str) -> Attempt | None:
        """Return the attempt whose checkpoint has to be brought to a system before it goes on there."""
        began = [one for one in self.attempts if one.began]
        last = max(began, key=lambda one: one.number, default=None)
        return None if last is None or self.policy.checkpoint_folder is None or last.place.system == system else last


class Action(StrEnum):
    """What the plane does with a job."""

    KEEP = "keep"
    """Leave it alone."""
    SHRINK = "shrink"
    """Lower the limit of a job that will need less, so that others are backfilled and it is itself if it waits."""
    EXTEND = "extend"
    """Ask the scheduler for a longer limit; most refuse a running job's owner."""
    CHECKPOINT = "checkpoint"
    """Let it write a checkpoint before its limit and go on in another attempt."""
    RESUBMIT = "resubmit"
    """Submit it anew, with the request that its end calls for."""
    MOVE = "move"
    """Withdraw it here and submit it at another place, where it would end sooner."""
    BEGIN = "begin"
    """Let the command of this copy begin: it is the first of several that runs; the others never will."""
    WITHDRAW = "withdraw"
    """Cancel this copy: another one started, or it can no longer be of use."""
    GIVE_UP = "give-up"
    """Let the job end as it ended; ``reason`` tells why nothing more is tried."""
    FINISH = "finish"
    """It is done."""


class FailureCause(StrEnum):
    """What ended an attempt; it decides what is tried next, where the state alone does not."""

    WALLTIME = "walltime"
    """It reached its limit."""
    HOST_MEMORY = "host-memory"
    """It needed more memory than it had asked for, or than its node has."""
    GPU_MEMORY = "gpu-memory"
    """It needed more than a GPU has; no larger request cures that, only another GPU or a smaller batch."""
    NODE = "node"
    """Its node, or a device of it, failed under it."""
    PREEMPTION = "preemption"
    """Another job of higher priority took its place."""
    TRANSIENT = "transient"
    """Something that may be gone the next time: a network, a file server, a port."""
    STORAGE = "storage"
    """No room was left for its files; the same again would end the same until its user makes room."""
    PROGRAM = "program"
    """Its own fault; the same again would end the same."""
    DEPENDENCY = "dependency"
    """A job that it depends on did not end as it had to."""
    USER = "user"
    """Its user cancelled it."""
    ADMINISTRATOR = "administrator"
    """Somebody else cancelled it: the site's staff."""
    PLANE = "plane"
    """The plane itself took it back."""
    UNKNOWN = "unknown"
    """Nothing tells; it is not tried again blindly."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another place for a job: what waiting and running there are expected to take, and at which request.

    ``cost`` is of the whole run there; ``gpu_memory_bytes`` is what one GPU there has.
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
    """All that a decision about one attempt rests on; what is not known is ``None``.

    ``elapsed_s`` is how long the attempt has run (0 while it waits), ``total_s`` what it is expected to take in all
    and ``remaining_wait_s`` how long it still waits; ``memory_bytes`` is the expected peak on one node, and
    ``memory_now_bytes`` what was seen. ``allowed_s`` is the partition's longest limit, ``node_memory_bytes`` what its
    largest node has. ``spent_node_s`` and ``spent_cost`` are of all attempts up to now; ``cost_per_s`` is the price of
    the attempt's request. ``asked_to_extend`` counts refused requests for a longer limit. ``cause`` is what ended it
    and ``evidence`` are sentences on how. ``gpu_memory_bytes`` is what one of its GPUs has.
    """

    job: Job
    attempt: Attempt
    now_s: float
    elapsed_s: float = 0.0
    total_s: Interval | None = None
    memory_bytes: Interval | None = None
    memory_now_bytes: float | None = None
    remaining_wait_s: Interval | None = None
    allowed_s: float | None = None
    node_memory_bytes: int | None = None
    spent_node_s: float = 0.0
    spent_cost: float | None = None
    cost_per_s: float | None = None
    asked_to_extend: int = 0
    checkpointed: bool = False
    alternatives: tuple[Alternative, ...] = ()
    evidence: tuple[str, ...] = ()
    cause: FailureCause | None = None
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with an attempt, why in one sentence, and the figures that the sentence rests on.

    ``resources`` and ``place`` are those of the next attempt, or of the changed one (``SHRINK``, ``EXTEND``);
    ``delay_s`` is how long to wait before it is submitted.
    """

    action: Action
    reason: str
    resources: ResourceSpec | None = None
    place: Place | None = None
    delay_s: float = 0.0
    evidence: dict[str, float | str] = field(default_factory=dict)


class EventKind(StrEnum):
    """What an event of the journal tells."""

    HANDED_OVER = "handed over"
    NOTED = "noted"
    """An attempt is about to be submitted under its key."""
    STAGED = "staged"
    """The checkpoint of an attempt was brought to another system."""
    SUBMITTED = "submitted"
    STATE = "state"
    PROGRESS = "progress"
    POLL = "poll"
    DECISION = "decision"
    FAULT = "fault"
    """Something did not answer or was refused."""
    CANCEL = "cancel"
    """The user took a job back."""
    SETTLED = "settled"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One row of the journal: when, of which job and attempt (empty: of none), what, and its figures."""

    number: int
    at: str
    kind: EventKind
    job: str = ""
    attempt: str = ""
    details: dict[str, float | int | str | bool | None] = field(default_factory=dict)
