"""A scheduler in memory for tests of the engine: it honours the port, and a test turns its clock and its failures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, Job, Situation
from leadline.execution.clock import ManualClock, iso_utc
from leadline.execution.plane.advisor import EndedAttempt, Expectation
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.schedulers.port import RequestRefused, SchedulerStatus, Submission, SubmissionUncertain
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass
class FakeJob:
    """A job as the desk holds it."""

    submission: Submission
    key: str
    status: SchedulerStatus


@dataclass
class FakeScheduler:
    """Take jobs, start and end them when told to; ``down``, ``lose_answers`` and ``refusal`` are its failures."""

    name: str
    clock: ManualClock
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    ended_jobs: dict[str, FakeJob] = field(default_factory=dict)
    outcomes: dict[str, JobOutcome] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    released: set[str] = field(default_factory=set)
    started_commands: list[str] = field(default_factory=list)
    """The attempts whose command began, as often as it did."""
    query_count: int = 0
    down: bool = False
    lose_answers: str = ""
    lose_release_answers: bool = False
    """Whether a word is written, but nobody hears that it was."""
    refusal: Exception | None = None
    no_accounting: bool = False
    fixed_limits: bool = False
    next_number: int = 100
    abreast: int = 1
    folder: PurePosixPath | None = None
    transport: Transport = field(default_factory=LocalTransport)

    def submit(self, submission: Submission) -> str:
        """Take a job, unless a failure was turned on."""
        self._answer()
        if self.refusal is not None:
            raise self.refusal
        if self.lose_answers == "before":
            raise SubmissionUncertain("no answer in time")
        number = str(self.next_number)
        self.next_number += 1
        self.submitted.append(submission.key)
        for at, key in enumerate(submission.keys):
            own = f"{number}_{submission.indices[at]}" if submission.is_array else number
            status = SchedulerStatus(JobState.PENDING, "Priority", submitted_s=self.clock.now_s(), name=submission.key)
            held = FakeJob(submission, key, status)
            self.jobs[own] = held
        if self.lose_answers == "after":
            raise SubmissionUncertain("no answer in time")
        return number

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key → id of what was ever taken."""
        self._answer()
        every = {**self.ended_jobs, **self.jobs}
        return {
            held.submission.key: own.partition("_")[0] for own, held in every.items() if held.submission.key in keys
        }

    def never_began(self, keys: Mapping[str, str]) -> Collection[str]:
        """Return what neither waits nor ever ran here."""
        self._answer()
        known = {held.key for held in (*self.jobs.values(), *self.ended_jobs.values())}
        return [key for key in keys if key not in known]

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return what stands in the queue."""
        self._answer()
        self.query_count += 1
        return {own: self.jobs[own].status for own in ids if own in self.jobs}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return what left the queue, where there is accounting."""
        self._answer()
        return {} if self.no_accounting else {own: self.ended_jobs[own].status for own in ids if own in self.ended_jobs}

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:  # noqa: ARG002
        """Return the outcomes that a test put down."""
        self._answer()
        return {key: self.outcomes[key] for key in keys if key in self.outcomes}

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:  # noqa: ARG002
        """Return the logs that a test put down."""
        return {key: self.logs[key] for key in keys if key in self.logs}

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs."""
        self._answer()
        for own in ids:
            self.cancelled.append(own)
            if own in self.jobs:
                self.end(own, JobState.CANCELLED)

    def let_begin(self, keys: Collection[str]) -> None:
        """Let held jobs begin, at once if they run."""
        self._answer()
        for own, held in self.jobs.items():
            if held.key in keys and held.key not in self.released and held.status.state is JobState.RUNNING:
                self._begin(own)
        self.released |= set(keys)
        if self.lose_release_answers:
            raise SchedulerUnreachable("no answer in time")

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath] | None:  # noqa: ARG002
        """Return the folder that a test gave."""
        self._answer()
        return None if self.folder is None else (self.transport, self.folder)

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Change a limit, unless limits are fixed here."""
        self._answer()
        if self.fixed_limits:
            raise RequestRefused("Access/permission denied")
        held = self.jobs[scheduler_id]
        held.status = replace(held.status, walltime_s=walltime_s)

    def forecast_start_s(self, submission: Submission) -> float | None:  # noqa: ARG002
        """Know nothing."""
        return None

    def forget(self, own: str) -> None:
        """Forget a job, as a controller that is killed before it saved it; its number is given again."""
        del self.jobs[own]
        self.next_number = int(own)

    def run(self, own: str) -> None:
        """Let a job start."""
        held = self.jobs[own]
        held.status = replace(held.status, state=JobState.RUNNING, reason="", started_s=self.clock.now_s(), node="n1")
        if not held.submission.held or held.key in self.released:
            self._begin(own)

    def end(self, own: str, state: JobState, *, reports: bool = False) -> None:
        """Let a job end, with a report of its wrapper or without."""
        held = self.jobs.pop(own)
        held.status = replace(held.status, state=state, ended_s=self.clock.now_s())
        self.ended_jobs[own] = held
        if reports:
            self.outcomes[held.key] = outcome(state, self.clock)

    def only(self) -> str:
        """Return the id of the only job in the queue."""
        (own,) = self.jobs
        return own

    def _begin(self, own: str) -> None:
        self.started_commands.append(self.jobs[own].key)

    def _answer(self) -> None:
        if self.down:
            raise SchedulerUnreachable("no answer")


def outcome(state: JobState, clock: ManualClock) -> JobOutcome:
    """Return what a wrapper writes of a job that ended now."""
    at = iso_utc(clock.now_s())
    return JobOutcome(state, at, "n1", ("true",), ended_at=at, exit_code=0 if state is JobState.COMPLETED else 1)


@dataclass
class FakeAdvisor:
    """An advisor that sends jobs where their policy says first, and remembers what ended."""

    copies: int = 1
    recorded: dict[str, tuple[JobState, JobOutcome | None]] = field(default_factory=dict)
    expectation: Expectation = field(default_factory=Expectation)

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Send it to the first places of its policy."""
        return tuple(AttemptPlan(place, job.spec.resources) for place in job.policy.places[: self.copies])

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Expectation:  # noqa: ARG002
        """Return what the test expects."""
        return self.expectation

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Remember them."""
        for one in ends:
            self.recorded[one.attempt.key] = (one.attempt.state, one.outcome)


def diagnose_by_state(
    attempt: Attempt,  # noqa: ARG001 - the port's
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    log: str,
) -> Diagnosis:
    """Diagnose by what is said, the scheduler first."""
    for one in (status, outcome):
        if one is not None and one.state.final:
            return Diagnosis(one.state)
    return Diagnosis(JobState.UNKNOWN, None, (log,))


def retry_node_failures(situation: Situation) -> Decision:
    """Decide as little as the engine needs: finish, try again after a node's failure, else give up."""
    state = situation.attempt.state
    if not state.final:
        return Decision(Action.KEEP, "it is fine")
    if state is JobState.COMPLETED:
        return Decision(Action.FINISH, "it is done")
    if state is JobState.NODE_FAIL and len(situation.job.attempts) < situation.job.policy.attempts:
        return Decision(Action.RESUBMIT, "its node failed", delay_s=30.0)
    return Decision(Action.GIVE_UP, f"it ended {state.value}")
