"""A simulated site as a scheduler, with failures that a test can turn on."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.runs import Measurement
from leadline.execution.clock import iso_utc
from leadline.execution.schedulers.port import RequestRefused, SchedulerStatus, Submission, SubmissionUncertain
from leadline.execution.schedulers.simulated.cluster import NodeRequest
from leadline.execution.schedulers.simulated.site import SimulatedJob, SimulatedSite
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome


@dataclass(slots=True)
class InjectedFailures:
    """What goes wrong between the site and whoever asks it; everything is well until something is set.

    ``refuses`` is the reason for which nothing is taken. ``hangs``: no request is answered, nor carried out.
    ``loses_answers``: what is submitted is taken, ``late_s`` afterwards, but nobody hears of it. ``no_accounting``: the
    accounting is away, and the controller's memory is all there is. ``accounting_late_s`` is how long after its end a
    job appears in the accounting, ``forgets_s`` how long the controller still tells of it. ``fixed_limits``: no limit
    may be changed; else a user may change that of a waiting job and lower that of a running one, as in Slurm.
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
    """Asks a simulated site (implements ``Scheduler``); any number of them may ask the same one."""

    def __init__(
        self, site: SimulatedSite, failures: InjectedFailures | None = None, *, name: str = "simulated"
    ) -> None:
        self.site = site
        self.failures = failures or InjectedFailures()
        self._name = name

    @property
    def name(self) -> str:
        """The system's name."""
        return self._name

    @property
    def abreast(self) -> int:
        """How many submissions it may be handed at once."""
        return 1

    def submit(self, submission: Submission) -> str:
        """Hand it over and return its id; a key that the site knows is not taken twice.

        Raises:
            InvalidInput: there is no command.
            Refused: the site does not want it, or cannot ever run it.
            Unsure: no answer came.
        """
        if not submission.spec.command:
            raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
        if self.failures.hangs:
            raise SubmissionUncertain(
                f"{self.name} did not answer: look for key {submission.key} before it is submitted again"
            )
        self.site.catch_up()
        if self.failures.refuses:
            raise RequestRefused(f"{self.name} takes no job: {self.failures.refuses}")
        self.site.check(submission)
        if not self.failures.loses_answers:
            return self.site.take(submission)
        if self.failures.late_s:
            self.site.take_later(submission, self.failures.late_s)
        else:
            self.site.take(submission)
        raise SubmissionUncertain(
            f"{self.name} did not answer in time: look for key {submission.key} before it is submitted again"
        )

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key → id of the submissions that the controller or the accounting knows."""
        self._ask()
        found = {key: self.site.keys[key] for key in keys if key in self.site.keys}
        return {key: one for key, one in found.items() if any(map(self._known, self.site.of([one])))}

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Say how jobs are that wait, run, or ended a short while ago; an array's id stands for its elements."""
        self._ask()
        return {job.id: self._status(job) for job in self.site.of(ids) if self._remembered(job)}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return what the accounting knows of jobs that ended; without it, what the controller remembers."""
        self._ask()
        ended = [job for job in self.site.of(ids) if job.state.final]
        known = self._remembered if self.failures.no_accounting else self._accounted
        return {job.id: self._status(job) for job in ended if known(job)}

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return what the wrappers wrote; one that was killed, with its node or for its memory, leaves no last word."""
        self._ask()
        wanted, found = set(keys), {}
        for job in self.site.jobs.values():
            if job.key not in wanted or job.started_s is None or not job.submission.measured:
                continue
            if job.begun_s is None and job.exit_code != EXIT_NEVER_BEGAN:
                continue  # it is held back, or was ended while it was
            written_s = self.site.at_s if job.ended_s is None else job.ended_s
            if written_s > since_s:
                found[job.key] = self._outcome(job, written_s)
        return found

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs, waiting or running, as CANCELLED."""
        self._ask()
        self.site.end(self.site.of(ids), JobState.CANCELLED, "cancelled by its user")

    def let_begin(self, keys: Collection[str]) -> None:
        """Give held jobs the word."""
        self._ask()
        self.site.let_begin(keys)

    def home(self, spec: JobSpec) -> None:  # noqa: ARG002 - the port's
        """Return ``None``: nothing that is simulated has files."""
        return

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Ask for another limit.

        Raises:
            InvalidInput: that is no limit.
            Refused: the job is not there any more, or its user may not do that.
        """
        if not 0 < walltime_s < math.inf:
            raise InvalidInput(f"a walltime of {walltime_s} s cannot be asked for: name a finite time above zero")
        self._ask()
        live = [job for job in self.site.of([scheduler_id]) if not job.state.final]
        if not live:
            raise RequestRefused(f"the limit of job {scheduler_id} cannot be changed: it has ended, or never was here")
        for job in live:
            partition = self.site.cluster.partition(job.submission.spec.partition or "")
            longer = job.state is JobState.RUNNING and walltime_s > job.walltime_s
            if self.failures.fixed_limits or longer or walltime_s > (partition.max_s or math.inf):
                raise RequestRefused(
                    f"the limit of job {scheduler_id} cannot be raised to {walltime_s:g} s by its user"
                )
        for job in live:
            self.site.limit(job, walltime_s)

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Return when such a job would start if all before it took their whole limit."""
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

    def _known(self, job: SimulatedJob) -> bool:
        return self._remembered(job) or (not self.failures.no_accounting and self._accounted(job))

    def _remembered(self, job: SimulatedJob) -> bool:
        return job.ended_s is None or self.site.at_s <= job.ended_s + self.failures.forgets_s

    def _accounted(self, job: SimulatedJob) -> bool:
        return job.ended_s is not None and self.site.at_s >= job.ended_s + self.failures.accounting_late_s

    def _status(self, job: SimulatedJob) -> SchedulerStatus:
        promise = next((one for one in self.site.queue.promises.values() if one.key == job.id), None)
        expected_s = promise.at_s if promise is not None and promise.at_s < math.inf else None
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
                JobState.CANCELLED, iso_utc(written_s), job.nodes[0], job.submission.spec.command, ended_at=iso_utc(written_s),
                exit_code=EXIT_NEVER_BEGAN, reason="the word to begin did not come",
            )  # fmt: skip
        spoke = job.state in (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)
        last = spoke and not job.evidence
        started_s = job.begun_s
        measured = {
            "elapsed_s": Measurement(written_s - started_s, "s", "simulated"),
            "host_memory_bytes": Measurement(_seen_bytes(job), "bytes", "simulated"),
        }
        return JobOutcome(
            job.state if last else JobState.RUNNING, iso_utc(started_s), job.nodes[0], job.submission.spec.command,
            ended_at=iso_utc(written_s) if last else None, exit_code=job.exit_code if last and not job.signal else None,
            signal=job.signal if last else None, reason=job.reason, measured=measured,
        )  # fmt: skip


def _seen_bytes(job: SimulatedJob) -> int:
    """Return the most memory that a job was seen to use: no more than it asked for."""
    asked = job.submission.spec.resources.memory_bytes_per_node
    return job.behaviour.memory_bytes if asked is None else min(asked, job.behaviour.memory_bytes)
