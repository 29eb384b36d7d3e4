"""The place at which a campaign's runs are started, with its schedulers, and how the plane treats them there.

There are no retries except after lost nodes, and every outcome is kept.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from leadline.campaigns.journal import LOCAL_SYSTEM, CampaignJournal, last_attempt
from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, Job, Place, Policy, Situation
from leadline.core.runs import Measurement
from leadline.core.systems import Partition
from leadline.execution.clock import now_utc
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.execution.plane.advisor import EndedAttempt
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import Scheduler, SchedulerStatus
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.schedulers.slurm.script import directives
from leadline.execution.transport.port import LocalTransport
from leadline.execution.wrapper.outcome import JobOutcome

# Requests of runs never change, so no report is read before the end of a run, and no decision made.
INTERVALS = PollIntervals(first=2.0, last=20.0, reports=float("inf"), decide=float("inf"), lost=600.0)


@dataclass
class RunPlace:
    """The place of a campaign's runs: this machine within ``slots``, or its Slurm as ``system``.

    Runs that were started elsewhere before are managed, too. All files are in ``folder``. This machine and the nodes of
    Slurm must see it.
    """

    folder: Path
    slots: Slots
    system: str = LOCAL_SYSTEM
    partition: str | None = None
    partition_of: Callable[[JobSpec], Partition | None] = lambda _: None
    max_running: int | None = None
    forget_other_hosts: bool = False
    _local: LocalScheduler | None = field(default=None, init=False)

    @property
    def arrays(self) -> bool:
        """True if runs are submitted together, as arrays."""
        return self.system != LOCAL_SYSTEM

    def close(self) -> None:
        """Release what this machine's scheduler holds open; its runs go on."""
        if self._local is not None:
            self._local.close()

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job of a run as it is at this place; a partition of the run itself stays."""
        if not self.arrays:
            return replace(spec, system=None)
        return replace(spec, system=self.system, partition=spec.partition or self.partition)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that this machine can never run, or that the site would refuse."""
        if self.arrays:
            placed = self.place(spec)
            directives(placed, self.partition_of(placed))
        elif never := self.slots.rejection_reason(spec.resources):
            raise InvalidInput(
                f"this machine cannot run {spec.name!r}: {never}; change [resources] of the campaign, or "
                "run it elsewhere with --on"
            )

    def job(self, key: str, spec: JobSpec, limit_s: float | None) -> Job:
        """Return the job that starts a run. The wrapper enforces the shorter of its limit and ``limit_s``."""
        limits = [limit for limit in (spec.resources.walltime_s, limit_s) if limit is not None]
        limited = replace(spec, resources=replace(spec.resources, walltime_s=min(limits, default=None)))
        place = Place(self.system, spec.partition if self.arrays else None)
        policy = Policy((place,), resizes=False, max_running=self.max_running, own_commands=self.arrays)
        # Slurm counts whole minutes, and runs with different limits would be no array.
        plan = AttemptPlan(place, spec.resources if self.arrays else limited.resources)
        return Job(key, limited, policy, created_at=now_utc(), plan=plan)

    def has_room(self, resources: ResourceSpec) -> bool:
        """True if such a run would start at once; Slurm takes any number."""
        return self.arrays or self._local is None or self._local.has_room(resources)

    def wait(self, timeout_s: float) -> bool:
        """Wait; return True before ``timeout_s`` if a run on this machine has ended."""
        return self._local is not None and self._local.wait(timeout_s)

    def scheduler(self, system: str) -> Scheduler:
        """Return the scheduler of a system."""
        if system == LOCAL_SYSTEM:
            if self._local is None:
                self._local = LocalScheduler(self.folder, self.slots, forget_other_hosts=self.forget_other_hosts)
            return self._local
        return SlurmScheduler(
            system, PurePosixPath(self.folder), LocalTransport(), python=sys.executable, partition_of=self.partition_of
        )


MAX_LOSSES = 3  # a run whose wrapper was lost so often in one call has failed
LATE_REPORT_S = 30.0  # longest wait for the report of a completed run: shared file systems show a node's new file late


def diagnose_run(
    _: Attempt,
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    _log: str | None,
    *,
    cancelled: bool = False,  # noqa: ARG001
) -> Diagnosis:
    """Return how a run ended: as its wrapper reports, or else its scheduler; NODE_FAIL if neither knows."""
    reported = status.state if status is not None and status.state.final else JobState.NODE_FAIL
    # Only the scheduler knows why it sent a signal.
    if outcome is not None and outcome.state.final and not (status is not None and reported.censored):
        return Diagnosis(outcome.state, None, (outcome.reason,) if outcome.reason else ())
    reason = status.reason if status is not None and status.reason not in ("", "None") else ""
    return Diagnosis(reported, None, (reason or f"its scheduler ended it: {reported.value}",))


@dataclass(slots=True)
class RunAdvisor:
    """The plane's advisor for a campaign (implements ``Advisor``), and its decisions."""

    journal: CampaignJournal
    scheduler: Callable[[str], Scheduler]  # returns the scheduler of a system
    began_at: str  # start of this call
    outcomes: dict[str, JobOutcome] = field(default_factory=dict)  # by attempt, for those that ended in this call

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return the plan of a run that has none, at its place."""
        return (AttemptPlan(job.policy.places[0], job.spec.resources),)

    def expect(self, job: Job, attempt: Attempt, _: JobOutcome | None, *, now_s: float) -> Situation:
        """Return no predictions: requests of runs never change."""
        return Situation(job, attempt, now_s)

    def decide(self, situation: Situation) -> Decision:
        """Submit a run again if its node or its wrapper was lost; accept every other end."""
        attempt = situation.attempt
        if attempt.live:
            return Decision(Action.KEEP, "a run is never changed")
        # A wrapper that died together with the runner says nothing about the run.
        losses = sum(
            past.state is JobState.NODE_FAIL and past.noted_at >= self.began_at for past in situation.job.attempts
        )
        if attempt.state is JobState.NODE_FAIL and losses < MAX_LOSSES:
            return Decision(Action.RESUBMIT, "its node or its wrapper was lost: resubmitting")
        return Decision(Action.FINISH if attempt.state is JobState.COMPLETED else Action.GIVE_UP, attempt.reason)

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Store the outcomes of attempts that ran."""
        self.store([(end.job, end.attempt, self._reported(end)) for end in ends])

    def store(self, ends: Sequence[tuple[Job, Attempt | None, JobOutcome | None]]) -> None:
        """Store outcomes; one that is missing is made from the attempt, or from a job that was never submitted."""
        outcomes = {
            (job.key, attempt.key if attempt else last_attempt(job)): final_outcome(job, attempt, outcome)
            for job, attempt, outcome in ends
        }
        if outcomes:
            self.journal.add_outcomes(outcomes)
            self.outcomes.update({attempt: outcome for (_, attempt), outcome in outcomes.items()})

    def _reported(self, end: EndedAttempt) -> JobOutcome | None:
        """Return the outcome of an attempt; wait for that of a completed one."""
        outcome, deadline_s = end.outcome, time.monotonic() + LATE_REPORT_S
        while end.attempt.state is JobState.COMPLETED and not (outcome and outcome.state.final):
            try:
                outcome = self.scheduler(end.attempt.place.system).reports([end.attempt.key]).get(end.attempt.key)
            except SchedulerUnreachable:
                break
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.1)
        return outcome


def final_outcome(job: Job, attempt: Attempt | None, outcome: JobOutcome | None) -> JobOutcome:
    """Return the outcome of an ended attempt, as its wrapper measured it, or else its scheduler."""
    if attempt is None:
        return JobOutcome(job.state, job.created_at or now_utc(), "", job.spec.command, reason=job.reason)
    if outcome is None:
        outcome = JobOutcome(
            attempt.state, attempt.started_at or attempt.noted_at, attempt.node or "", job.spec.command,
            exit_code=attempt.exit_code,
        )  # fmt: skip
    if not outcome.state.final or not outcome.ended_at:
        outcome = replace(outcome, ended_at=attempt.ended_at, reason=attempt.reason)
    elapsed = Measurement(attempt_elapsed_s(attempt, 0.0), "s", "start and end at the scheduler")
    if "elapsed_s" not in outcome.measured:
        outcome = replace(outcome, measured={**outcome.measured, "elapsed_s": elapsed})
    if job.closed and attempt.state is JobState.NODE_FAIL:
        return replace(
            outcome, state=JobState.FAILED, reason=f"its wrapper was lost {MAX_LOSSES} times: {attempt.reason}"
        )
    return replace(outcome, state=attempt.state)
