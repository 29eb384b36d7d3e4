"""How the plane treats the runs of a campaign: no retries except after lost nodes, and every outcome is kept."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from leadline.campaigns.journal import CampaignJournal, last_attempt
from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, Job, Situation
from leadline.core.runs import Measurement
from leadline.execution.clock import now_utc
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.execution.plane.advisor import EndedAttempt
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.schedulers.port import Scheduler, SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome

MAX_LOSSES = 3
"""A run whose wrapper was lost so often in one call has failed."""
LATE_REPORT_S = 30.0
"""Longest wait for the report of a completed run. Shared file systems show a node's new file late."""


def diagnose_run(
    _: Attempt,
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    _log: str,
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
    """The plane's advisor for a campaign (implements ``Advisor``), and its decisions.

    Attributes:
        journal: the campaign's journal.
        scheduler: returns the scheduler of a system.
        began_at: start of this call.
        outcomes: attempt -> its outcome, for attempts that ended in this call.
    """

    journal: CampaignJournal
    scheduler: Callable[[str], Scheduler]
    began_at: str
    outcomes: dict[str, JobOutcome] = field(default_factory=dict)

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
