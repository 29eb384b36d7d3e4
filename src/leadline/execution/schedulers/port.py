"""What every scheduler can do for the plane: the port that Slurm, PBS, this machine and the simulated one fill.

An adapter keeps no memory of its own that matters: whoever asks holds the keys and the ids in a journal, so a new
adapter can take up where another process ended. Nothing is ever concluded from silence: a job that a scheduler does
not name has not ended.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import DependencyKind
from leadline.execution.transport.port import Transport
from leadline.execution.wrapper.outcome import JobOutcome


class RequestRefused(LeadlineError):
    """The scheduler said no, with its reason; nothing was changed."""


class SchedulerBusy(RequestRefused):
    """The scheduler takes nothing more for now: too many jobs of this user wait, or of all."""


class SubmissionUncertain(SchedulerUnreachable):
    """The scheduler did not answer a request that it may have carried out: look the key up before a second try."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is handed to a scheduler under ``key``: one job, or an array of one element for each of ``indices``.

    Outcomes are reported under ``keys``. ``after`` are the scheduler's ids that must have ended as ``after_kind`` says.
    ``spec.partition`` is where. A command that listens is sent ``checkpoint_signal`` ``checkpoint_s`` before the limit.
    ``most`` elements run at once (``None``: as many as the site lets). The commands of a ``held`` one begin when
    ``let_begin`` says so, and never where it does not within ``gate.HELD_S`` of their start; only ``measured`` ones can
    be held, for it is the wrapper that waits.
    """

    key: str
    spec: JobSpec
    indices: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    after_kind: DependencyKind = DependencyKind.OK
    checkpoint_signal: str | None = None
    checkpoint_s: float = 120.0
    most: int | None = None
    measured: bool = True
    held: bool = False

    def __post_init__(self) -> None:
        """Refuse an array that names an element twice.

        Raises:
            InvalidInput: it does.
        """
        if len(set(self.indices)) != len(self.indices):
            raise InvalidInput(f"submission {self.key!r} names an index twice: name each element once")

    @property
    def is_array(self) -> bool:
        """Whether it is submitted as an array."""
        return bool(self.indices)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its jobs: its own, or those of its elements in the order of ``indices``."""
        return tuple(element_key(self.key, index) for index in self.indices) or (self.key,)


def element_key(key: str, index: int | str) -> str:
    """Return the key of an array's element: a job can write it itself, from the array's key and its own index."""
    return f"{key}-{index}"


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """What a scheduler says of one job; ``None`` is not told. Times are seconds since the epoch.

    ``state`` UNKNOWN is a word that Leadline does not know, kept in ``reason``. ``expected_start_s`` is the
    scheduler's own forecast. ``evidence`` holds what its steps say beyond the job's own row.
    ``memory_bytes`` is the largest resident memory that its accounting saw of one task. ``name`` is the job's, or the
    key alone: a controller that was killed may forget what it took last, and give the same id again.
    """

    state: JobState
    reason: str = ""
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    expected_start_s: float | None = None
    walltime_s: float | None = None
    elapsed_s: float | None = None
    nodes: int | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    memory_bytes: int | None = None
    evidence: tuple[str, ...] = ()
    name: str | None = None

    def bears(self, key: str) -> bool:
        """Whether this may be said of a submission under ``key``: its name is it, ends in it, or is not told."""
        return self.name is None or self.name == key or self.name.endswith(f"-{key}")


class Scheduler(Protocol):
    """One system's scheduler. Ids are the scheduler's own; of an array's element ``ID_INDEX``.

    Every method may raise ``SchedulerUnreachable``; then nothing is concluded.
    """

    @property
    def name(self) -> str:
        """The system's name."""

    @property
    def abreast(self) -> int:
        """How many submissions it may be handed at once, each in a thread of its own; of one, in the asking thread."""

    def submit(self, submission: Submission) -> str:
        """Hand it over and return the scheduler's id (of an array: the array's).

        Raises:
            InvalidInput: it cannot be written down as the site wants it; nothing was sent.
            Refused: the scheduler took nothing; ``SchedulerBusy`` if it may later.
            Unsure: it may have taken it.
        """

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key → id of those submissions that are in the queue, or were, however long ago.

        Asks the queue and the accounting. What is absent was not there when both answered; a submission that was cut
        off may still arrive some seconds later.
        """

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask the queue once for all of them. Jobs that left it are absent, or there with a final state."""

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask the accounting, steps included, for jobs that left the queue; those it does not know yet are absent.

        Where there is no accounting, the answer is what else is known (the controller's memory), or empty.
        """

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return what the wrappers of these attempts wrote after ``since_s`` (epoch): interim or final outcomes."""

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the last of what these attempts wrote to their streams; of those that wrote nothing, nothing."""

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs, waiting or running; those that ended already are passed over."""

    def let_begin(self, keys: Collection[str]) -> None:
        """Give held attempts, waiting or running, the word upon which their commands begin; giving it twice is well."""

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath] | None:
        """Return how files of a job are reached and the folder that its command runs in; ``None`` where it has none.

        Raises:
            InvalidInput: the folder is not known.
        """

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Ask for another limit.

        Raises:
            Refused: the site does not let its users do that.
        """

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return when the scheduler itself says that such a job would start (epoch), without submitting it."""


@runtime_checkable
class ForgetfulScheduler(Protocol):
    """A scheduler whose controller may forget, when it is killed, jobs that it had taken and given an id."""

    def never_began(self, keys: Mapping[str, str]) -> Collection[str]:
        """Return those of ``keys`` (of attempts → of their submissions) that surely never began and never will.

        The queue names none of them, not even as ended, and nothing at the place shows that one began.

        Raises:
            SchedulerUnreachable: there was no answer.
        """
