"""A scheduler in memory for tests of the engine; tests control its clock and its failures."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from threading import Lock

from leadline.core.documents import to_json
from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.execution.clock import ManualClock, iso_utc
from leadline.execution.schedulers.port import (
    LivingJob,
    RequestRefused,
    SchedulerStatus,
    Submission,
    SubmissionText,
    SubmissionUncertain,
)
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass
class FakeJob:
    """A job in the fake scheduler."""

    submission: Submission
    key: str
    status: SchedulerStatus


@dataclass
class FakeScheduler:
    """Accepts jobs and runs them on command; ``down``, ``lose_answers`` and ``refusal`` are its failures."""

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
    """Attempts whose command began, with repetitions."""
    query_count: int = 0
    down: bool = False
    lose_answers: str = ""
    lose_release_answers: bool = False
    """Release jobs without confirming it."""
    refusal: Exception | None = None
    no_accounting: bool = False
    fixed_limits: bool = False
    next_number: int = 100
    abreast: int = 1
    submits_once: bool = False
    folder: PurePosixPath | None = None
    transport: Transport = field(default_factory=LocalTransport)
    lock: Lock = field(default_factory=Lock)

    def render(self, submission: Submission) -> SubmissionText:
        """Return the submission as JSON."""
        return SubmissionText((), to_json(submission))

    def submit(self, submission: Submission) -> str:
        """Accept a job, unless a failure is on."""
        self._answer()
        if self.refusal is not None:
            raise self.refusal
        if self.lose_answers == "before":
            raise SubmissionUncertain("no answer in time")
        with self.lock:
            number = str(self.next_number)
            self.next_number += 1
        self.submitted.append(submission.key)
        for at, key in enumerate(submission.keys):
            job_id = f"{number}_{submission.indices[at]}" if submission.indices else number
            status = SchedulerStatus(JobState.PENDING, "Priority", submitted_s=self.clock.now_s(), name=submission.key)
            self.jobs[job_id] = FakeJob(submission, key, status)
        if self.lose_answers == "after":
            raise SubmissionUncertain("no answer in time")
        return number

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key -> id of all accepted submissions."""
        self._answer()
        all_jobs = {**self.ended_jobs, **self.jobs}
        ids = {fake_job.submission.key: job_id.partition("_")[0] for job_id, fake_job in all_jobs.items()}
        return {key: number for key, number in ids.items() if key in keys}

    def remembered(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:  # noqa: ARG002
        """Return nothing: the accounting knows all that ended."""
        return {}

    def forgotten(self, keys: Mapping[str, str], ids: Mapping[str, str], killed: Collection[str]) -> Collection[str]:  # noqa: ARG002
        """Return the keys that neither wait nor ever ran here, and have no log unless they were killed."""
        self._answer()
        known_keys = {fake_job.key for fake_job in (*self.jobs.values(), *self.ended_jobs.values())}
        return [key for key in keys if key not in known_keys and (key in killed or key not in self.logs)]

    def living(self) -> Collection[LivingJob]:
        """Return the jobs in the queue."""
        self._answer()
        return [
            LivingJob(fake_job.submission.key, job_id, fake_job.status.state, fake_job.submission.spec)
            for job_id, fake_job in self.jobs.items()
        ]

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return the jobs in the queue."""
        self._answer()
        self.query_count += 1
        return {job_id: self.jobs[job_id].status for job_id in ids if job_id in self.jobs}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return the ended jobs, if there is accounting."""
        self._answer()
        ended_jobs = {} if self.no_accounting else self.ended_jobs
        return {job_id: ended_jobs[job_id].status for job_id in ids if job_id in ended_jobs}

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:  # noqa: ARG002
        """Return the outcomes that a test set."""
        self._answer()
        return {key: self.outcomes[key] for key in keys if key in self.outcomes}

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:  # noqa: ARG002
        """Return the logs that a test set."""
        return {key: self.logs[key] for key in keys if key in self.logs}

    def cancel(self, ids: Collection[str], *, waiting: bool = False) -> None:
        """Cancel jobs."""
        self._answer()
        for job_id in ids:
            if waiting and job_id in self.jobs and self.jobs[job_id].status.state is not JobState.PENDING:
                continue
            self.cancelled.append(job_id)
            if job_id in self.jobs:
                self.end(job_id, JobState.CANCELLED)

    def let_begin(self, keys: Collection[str]) -> None:
        """Release held jobs; running ones begin at once."""
        self._answer()
        for fake_job in self.jobs.values():
            if fake_job.key in keys and fake_job.key not in self.released and fake_job.status.state is JobState.RUNNING:
                self.started_commands.append(fake_job.key)
        self.released |= set(keys)
        if self.lose_release_answers:
            raise SchedulerUnreachable("no answer in time")

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath] | None:  # noqa: ARG002
        """Return the folder that a test set."""
        self._answer()
        return None if self.folder is None else (self.transport, self.folder)

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Change a limit, unless limits are fixed."""
        self._answer()
        if self.fixed_limits:
            raise RequestRefused("Access/permission denied")
        fake_job = self.jobs[scheduler_id]
        fake_job.status = replace(fake_job.status, walltime_s=walltime_s)

    def forecast_start_s(self, submission: Submission) -> float | None:  # noqa: ARG002
        """Return None."""
        return None

    def forget(self, job_id: str) -> None:
        """Forget a job as a killed controller does; its number is reused."""
        del self.jobs[job_id]
        self.next_number = int(job_id)

    def run(self, job_id: str) -> None:
        """Start a job."""
        fake_job = self.jobs[job_id]
        started_s = self.clock.now_s()
        fake_job.status = replace(fake_job.status, state=JobState.RUNNING, reason="", started_s=started_s, node="n1")
        if not fake_job.submission.held or fake_job.key in self.released:
            self.started_commands.append(fake_job.key)

    def end(self, job_id: str, state: JobState, *, reports: bool = False) -> None:
        """End a job, with a report of its wrapper or without."""
        fake_job = self.jobs.pop(job_id)
        fake_job.status = replace(fake_job.status, state=state, ended_s=self.clock.now_s())
        self.ended_jobs[job_id] = fake_job
        if reports:
            self.outcomes[fake_job.key] = outcome(state, self.clock)

    def only(self) -> str:
        """Return the id of the only job in the queue."""
        (job_id,) = self.jobs
        return job_id

    def _answer(self) -> None:
        if self.down:
            raise SchedulerUnreachable("no answer")


def outcome(state: JobState, clock: ManualClock) -> JobOutcome:
    """Return the outcome of a job that ended now."""
    at = iso_utc(clock.now_s())
    return JobOutcome(state, at, "n1", ("true",), ended_at=at, exit_code=0 if state is JobState.COMPLETED else 1)
