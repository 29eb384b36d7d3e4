"""A simulated site as a scheduler, with failures for tests."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from benchmarks.plane.simulated.cluster import NodeRequest
from benchmarks.plane.simulated.site import SimulatedJob, SimulatedSite
from leadline.core.documents import to_json
from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.runs import Measurement
from leadline.execution.clock import iso_utc
from leadline.execution.launch import check_command, check_walltime
from leadline.execution.schedulers.port import (
    RequestRefused,
    SchedulerStatus,
    Submission,
    SubmissionText,
    SubmissionUncertain,
)
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome


@dataclass(slots=True)
class InjectedFailures:
    """Failures between the site and its adapters; by default there are none.

    Attributes:
        refuses: reason for which every submission is refused.
        hangs: no request is answered or executed.
        loses_answers: submissions are accepted, ``late_s`` afterwards, but not confirmed.
        no_accounting: the accounting is down, so that only the controller's memory is left.
        accounting_late_s: delay of ended jobs in the accounting.
        forgets_s: time for which the controller remembers ended jobs.
        fixed_limits: limits cannot be changed. Otherwise users may change that of a waiting job and lower that of a
            running one, as in Slurm.
    """

    refuses: str = ""
    hangs: bool = False
    loses_answers: bool = False
    late_s: float = 0.0
    no_accounting: bool = False
    accounting_late_s: float = 0.0
    forgets_s: float = 300.0
    fixed_limits: bool = False


class SimulatedScheduler:
    """An adapter of a simulated site (implements ``Scheduler``); several may share one site."""

    abreast = 1
    submits_once = False

    def __init__(
        self, site: SimulatedSite, failures: InjectedFailures | None = None, *, name: str = "simulated"
    ) -> None:
        self.site = site
        self.failures = failures or InjectedFailures()
        self.name = name

    def render(self, submission: Submission) -> SubmissionText:
        """Return the submission as JSON."""
        return SubmissionText((), to_json(submission))

    def submit(self, submission: Submission) -> str:
        """Submit and return the id; a known key is not submitted twice.

        Raises:
            InvalidInput: the command is missing.
            RequestRefused: the site refuses the job, or can never run it.
            SubmissionUncertain: no answer came.
        """
        check_command(submission.spec)
        if self.failures.hangs:
            raise SubmissionUncertain(f"{self.name} did not answer: look up key {submission.key} before a second try")
        self.site.catch_up()
        if self.failures.refuses:
            raise RequestRefused(f"{self.name} accepts no job: {self.failures.refuses}")
        self.site.check(submission)
        if not self.failures.loses_answers:
            return self.site.take(submission)
        if self.failures.late_s:
            self.site.take_later(submission, self.failures.late_s)
        else:
            self.site.take(submission)
        raise SubmissionUncertain(
            f"{self.name} did not answer in time: look up key {submission.key} before a second try"
        )

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key -> id of the submissions that the controller or the accounting knows."""
        self._ask()
        ids = {key: self.site.keys[key] for key in keys if key in self.site.keys}
        return {key: job_id for key, job_id in ids.items() if any(map(self._is_known, self.site.of([job_id])))}

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return the states of jobs that wait, run or ended recently; an array's id means its elements."""
        self._ask()
        return {job.id: self._status(job) for job in self.site.of(ids) if self._remembered(job)}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return ended jobs from the accounting or, without it, from the controller's memory."""
        self._ask()
        ended = [job for job in self.site.of(ids) if job.state.final]
        is_is_known = self._remembered if self.failures.no_accounting else self._accounted
        return {job.id: self._status(job) for job in ended if is_is_known(job)}

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return the wrappers' outcomes; a wrapper killed with its node or for memory leaves no final one."""
        self._ask()
        key_set, outcomes = set(keys), {}
        for job in self.site.jobs.values():
            if job.key not in key_set or job.started_s is None or not job.submission.measured:
                continue
            # A held job, or one that ended while it was held, has written nothing.
            if job.begun_s is None and job.exit_code != EXIT_NEVER_BEGAN:
                continue
            written_s = self.site.at_s if job.ended_s is None else job.ended_s
            if written_s > since_s:
                outcomes[job.key] = self._outcome(job, written_s)
        return outcomes

    def cancel(self, ids: Collection[str], *, waiting: bool = False) -> None:
        """Cancel jobs, waiting or running, or only those waiting."""
        self._ask()
        jobs = [job for job in self.site.of(ids) if not waiting or job.started_s is None]
        self.site.end(jobs, JobState.CANCELLED, "cancelled by its user")

    def let_begin(self, keys: Collection[str]) -> None:
        """Release held jobs."""
        self._ask()
        self.site.let_begin(keys)

    def home(self, spec: JobSpec) -> None:  # noqa: ARG002 - the port's
        """Return None, because simulated jobs have no files."""
        return

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Change a limit.

        Raises:
            InvalidInput: the limit is not positive and finite.
            RequestRefused: the job has ended, or the user may not do that.
        """
        check_walltime(walltime_s)
        self._ask()
        live = [job for job in self.site.of([scheduler_id]) if not job.state.final]
        if not live:
            raise RequestRefused(f"the limit of job {scheduler_id} cannot be changed: it has ended or is unknown")
        for job in live:
            partition = self.site.cluster.partition(job.submission.spec.partition or "")
            is_extension = job.state is JobState.RUNNING and walltime_s > job.walltime_s
            if self.failures.fixed_limits or is_extension or walltime_s > (partition.max_s or math.inf):
                raise RequestRefused(
                    f"the limit of job {scheduler_id} cannot be raised to {walltime_s:g} s by its user"
                )
        for job in live:
            self.site.limit(job, walltime_s)

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return the start of such a job if all before it took their whole limit."""
        self._ask()
        self.site.check(submission)
        spec = submission.spec
        partition = self.site.cluster.partition(spec.partition or "")
        limit_s = spec.resources.walltime_s or partition.default_s or partition.max_s or math.inf
        start_s = self.site.queue.forecast_s(NodeRequest.of(spec.resources, partition.name), limit_s, self.site.at_s)
        return None if start_s == math.inf else start_s

    def _ask(self) -> None:
        if self.failures.hangs:
            raise SchedulerUnreachable(f"{self.name} did not answer: try again in a while")
        self.site.catch_up()

    def _is_known(self, job: SimulatedJob) -> bool:
        return self._remembered(job) or (not self.failures.no_accounting and self._accounted(job))

    def _remembered(self, job: SimulatedJob) -> bool:
        return job.ended_s is None or self.site.at_s <= job.ended_s + self.failures.forgets_s

    def _accounted(self, job: SimulatedJob) -> bool:
        return job.ended_s is not None and self.site.at_s >= job.ended_s + self.failures.accounting_late_s

    def _status(self, job: SimulatedJob) -> SchedulerStatus:
        reservation = next(
            (candidate for candidate in self.site.queue.reservations.values() if candidate.key == job.id), None
        )
        expected_s = reservation.at_s if reservation is not None and reservation.at_s < math.inf else None
        elapsed_s = None if job.started_s is None else (job.ended_s or self.site.at_s) - job.started_s
        return SchedulerStatus(
            job.state, job.reason, submitted_s=job.submitted_s, started_s=job.started_s, ended_s=job.ended_s,
            expected_start_s=expected_s, walltime_s=None if job.walltime_s == math.inf else job.walltime_s,
            elapsed_s=elapsed_s, nodes=len(job.nodes) or None, node=",".join(job.nodes) or None,
            exit_code=job.exit_code, signal=job.signal,
            memory_bytes=_seen_bytes(job) if job.state.final and job.started_s is not None else None,
            evidence=job.evidence,
        )  # fmt: skip

    def _outcome(self, job: SimulatedJob, written_s: float) -> JobOutcome:
        if job.begun_s is None:
            return JobOutcome(
                JobState.CANCELLED, iso_utc(written_s), job.nodes[0], job.submission.spec.command,
                ended_at=iso_utc(written_s), exit_code=EXIT_NEVER_BEGAN, reason="the release did not come",
            )  # fmt: skip
        wrapper_survived = job.state in (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)
        is_final = wrapper_survived and not job.evidence
        started_s = job.begun_s
        measured = {
            "elapsed_s": Measurement(written_s - started_s, "s", "simulated"),
            "host_memory_bytes": Measurement(_seen_bytes(job), "bytes", "simulated"),
        }
        return JobOutcome(
            job.state if is_final else JobState.RUNNING, iso_utc(started_s), job.nodes[0], job.submission.spec.command,
            ended_at=iso_utc(written_s) if is_final else None,
            exit_code=job.exit_code if is_final and not job.signal else None,
            signal=job.signal if is_final else None, reason=job.reason, measured=measured,
        )  # fmt: skip


def _seen_bytes(job: SimulatedJob) -> int:
    """Return the largest measured memory of a job, at most its request."""
    requested_bytes = job.submission.spec.resources.memory_bytes_per_node
    return job.behaviour.memory_bytes if requested_bytes is None else min(requested_bytes, job.behaviour.memory_bytes)
