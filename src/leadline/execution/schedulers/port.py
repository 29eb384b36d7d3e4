"""The port of a scheduler, implemented for Slurm, PBS and this machine, and by a simulator of the benchmarks.

An adapter has no state that matters. The caller stores keys and ids in a journal, so that a new adapter can continue
the work of another process. A missing answer proves nothing: a job that a scheduler does not report has not ended.
"""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import DependencyKind
from leadline.core.units import parse_whole
from leadline.execution.transport.port import Transport
from leadline.execution.wrapper.outcome import JobOutcome


class RequestRefused(LeadlineError):
    """The scheduler refused a request and changed nothing."""


class SchedulerBusy(RequestRefused):
    """The scheduler accepts no more jobs for now, of this user or at all."""


class SubmissionUncertain(SchedulerUnreachable):
    """The scheduler did not confirm a request that it may have executed; look up the key before a retry."""


class Submission(Frozen):
    """A job for a scheduler, or an array with one element for each of ``indices``.

    Attributes:
        key: unique name of the submission. Outcomes are reported under ``keys``.
        spec: the job; ``spec.partition`` is its partition.
        indices: indices of the array elements.
        specs: the jobs of the elements, if they differ in command, environment or time limit. The limits are enforced
            by the wrapper, below the one that ``spec`` requests.
        after: scheduler ids of jobs that must end first, as ``after_kind`` says.
        checkpoint_signal: signal to the command before its limit.
        checkpoint_s: seconds between this signal and the limit.
        most: array elements that may run at once (None: the site's limit).
        restarts: attempts of the job that began before this one; its command reads it as LEADLINE_RESTART_COUNT.
        measured: the job runs under the wrapper.
        link: name of the job or array for links to its output, in its own folder (empty: no links). On Slurm they have
            the names that sbatch gives to output files.
        held: the commands wait for ``let_begin``, at most ``gate.RELEASE_TIMEOUT_S`` from their start. Needs
            ``measured``, because the wrapper does the waiting.
    """

    key: str
    spec: JobSpec
    indices: tuple[int, ...] = ()
    specs: tuple[JobSpec, ...] = ()
    after: tuple[str, ...] = ()
    after_kind: DependencyKind = DependencyKind.OK
    checkpoint_signal: str | None = None
    checkpoint_s: float = 120.0
    most: int | None = None
    measured: bool = True
    held: bool = False
    restarts: int = 0
    link: str = ""

    def __post_init__(self) -> None:
        """Check the indices.

        Raises:
            InvalidInput: an index occurs twice.
        """
        if len(set(self.indices)) != len(self.indices):
            raise InvalidInput(f"submission {self.key!r} has an index twice: use each index once")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its jobs: its own, or those of its elements in the order of ``indices``."""
        return tuple(element_key(self.key, index) for index in self.indices) or (self.key,)

    @property
    def restart_variables(self) -> dict[str, str]:
        """The number of earlier attempts as variables, of Slurm's name too; empty at the first, as in Slurm."""
        names = ("LEADLINE_RESTART_COUNT", "SLURM_RESTART_COUNT")
        return dict.fromkeys(names, str(self.restarts)) if self.restarts else {}

    def wrapper_options(self, release_file: str) -> dict[str, float | str | None]:
        """Return the wrapper's options for the signal before the limit, and for the release of a held job."""
        options = {"--warning": self.checkpoint_signal, "--word": release_file if self.held else None}
        return {**options, "--warning-s": self.checkpoint_s if self.checkpoint_signal else None}


class SubmissionText(Frozen):
    """The exact text that a scheduler gets.

    Attributes:
        argv: the command line; empty for this machine's own queue.
        script: the script: the input of sbatch, the file that qsub reads, or the entry in this machine's queue.
        caveat: why the text may differ from the one that ``submit`` sends; empty if it does not.
    """

    argv: tuple[str, ...]
    script: str
    caveat: str = ""


def element_key(key: str, index: int | str) -> str:
    """Return the key of an array element. A job script can build it from the array's key and the index."""
    return f"{key}-{index}"


class SchedulerStatus(Frozen):
    """A scheduler's report on one job; None is unknown. Times are seconds since the epoch.

    Attributes:
        state: the state; UNKNOWN is a word that Leadline does not know, kept in ``reason``.
        expected_start_s: the scheduler's own prediction.
        memory_bytes: largest resident memory of one task in the accounting.
        evidence: remarks from the job's steps.
        name: name of the job, or its key alone. A killed controller may reuse an id for another job.
        by_owner: True if its own user cancelled it, False if someone else did.
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
    partition: str | None = None
    by_owner: bool | None = None

    def bears(self, key: str) -> bool:
        """True if the status may belong to ``key``: the name is the key, ends with it, or is unknown."""
        return self.name is None or self.name == key or self.name.endswith(f"-{key}")


class Scheduler(Protocol):
    """One system's scheduler. Ids are the scheduler's own; array elements are ``ID_INDEX``.

    Every method may raise ``SchedulerUnreachable``, which proves nothing about the jobs.
    """

    @property
    def name(self) -> str:
        """The system's name."""

    @property
    def abreast(self) -> int:
        """Submissions that may run at once, each in its own thread. With 1, the plane calls every method in its own."""

    @property
    def submits_once(self) -> bool:
        """True if ``submit`` may be repeated: with a known key it submits nothing and returns its id."""

    def render(self, submission: Submission) -> SubmissionText:
        """Return the text that ``submit`` sends, and send nothing; raises ``InvalidInput`` as that does."""

    def submit(self, submission: Submission) -> str:
        """Submit and return the scheduler's id (of an array: the array's).

        Raises:
            InvalidInput: the job cannot be expressed for this site; nothing was sent.
            RequestRefused: nothing was accepted; ``SchedulerBusy`` if a later try may succeed.
            SubmissionUncertain: the job may have been accepted.
        """

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key -> id of the submissions in the queue or in the accounting, however old.

        An absent key was unknown to both. A submission that was cut off may still arrive some seconds later.
        """

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask the queue once for all ids. Jobs that left it are absent or have a final state."""

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask the accounting, with steps, for jobs that left the queue; jobs not yet known are absent.

        Without accounting, the answer is what the controller still knows, or empty.
        """

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return the outcomes, interim or final, that these attempts' wrappers wrote after ``since_s`` (epoch)."""

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the ends of the output of these attempts; those without an output file are absent."""

    def cancel(self, ids: Collection[str], *, waiting: bool = False) -> None:
        """Cancel jobs, or only those ``waiting``; ended jobs are skipped. Another user's job is refused."""

    def let_begin(self, keys: Collection[str]) -> None:
        """Release held attempts, waiting or running, so that their commands begin; repeating it is harmless."""

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath] | None:
        """Return the transport to a job's files and the folder of its command; None if there are no files.

        Raises:
            InvalidInput: the folder is unknown.
        """

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Request another limit.

        Raises:
            InvalidInput: the limit is not positive and finite.
            RequestRefused: the site does not allow this to users, or the job is unknown or has ended.
        """

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return the scheduler's own start prediction for such a job (epoch), without submitting it."""


@runtime_checkable
class ForgetfulScheduler(Protocol):
    """A scheduler that may lose track of accepted jobs, or of ends, when it is killed."""

    def remembered(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return the ended jobs that the controller itself still knows.

        It knows less of them than the accounting, such as who cancelled them.

        Raises:
            SchedulerUnreachable: there was no answer.
        """

    def forgotten(self, keys: Mapping[str, str], ids: Mapping[str, str], killed: Collection[str]) -> Collection[str]:
        """Return the attempts that certainly do not run and never will.

        No answer of the scheduler names them, not even as ended, and no file shows that one began, unless the nodes
        have ``killed`` it by now. An unclear answer proves nothing. ``keys`` is attempt key -> submission key, ``ids``
        is attempt key -> the scheduler's id.

        Raises:
            SchedulerUnreachable: there was no answer.
        """


class LivingJob(Frozen):
    """A waiting or running job that bears a key of Leadline.

    Attributes:
        batch: key of the submission.
        scheduler_id: the scheduler's id.
        state: PENDING or RUNNING.
        spec: the job, as far as the scheduler knows it; the command is empty if it does not.
    """

    batch: str
    scheduler_id: str
    state: JobState
    spec: JobSpec

    @property
    def index(self) -> int | None:
        """The index of an array element, from its id; None for other jobs."""
        return parse_whole(self.scheduler_id.rpartition(":")[2].partition("_")[2])

    @property
    def key(self) -> str:
        """The key of the attempt."""
        return self.batch if self.index is None else element_key(self.batch, self.index)


@runtime_checkable
class ListingScheduler(Protocol):
    """A scheduler that can list the living jobs of this user that Leadline submitted."""

    def living(self) -> Collection[LivingJob]:
        """Return the waiting and running jobs.

        Raises:
            SchedulerUnreachable: there was no answer.
        """
