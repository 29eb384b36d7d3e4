"""The parts of an engine that its tests replace: an advisor without predictions, a diagnosis and a decision."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, Job, Situation
from leadline.execution.plane.advisor import EndedAttempt
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass
class FakeAdvisor:
    """An advisor that follows the job's policy and stores the ended attempts."""

    copies: int = 1
    recorded: dict[str, tuple[JobState, JobOutcome | None]] = field(default_factory=dict)

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return plans for the first places of the policy."""
        return tuple(AttemptPlan(place, job.spec.resources) for place in job.policy.places[: self.copies])

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Situation:  # noqa: ARG002
        """Return a situation without predictions."""
        return Situation(job, attempt, now_s)

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Store the ends."""
        for end in ends:
            self.recorded[end.attempt.key] = (end.attempt.state, end.outcome)


def diagnose_by_state(
    attempt: Attempt,
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    log: str,
    *,
    cancelled: bool,
) -> Diagnosis:
    """Diagnose by the reported state; the scheduler counts first."""
    for report in (status, outcome):
        if report is not None and report.state.final:
            return Diagnosis(report.state)
    return Diagnosis(JobState.UNKNOWN, None, (log,))


def retry_node_failures(situation: Situation) -> Decision:
    """Finish completed jobs, retry after a failed node, and give up otherwise."""
    state = situation.attempt.state
    if not state.final:
        return Decision(Action.KEEP, "it is fine")
    if state is JobState.COMPLETED:
        return Decision(Action.FINISH, "it is done")
    if state is JobState.NODE_FAIL and len(situation.job.attempts) < situation.job.policy.attempts:
        return Decision(Action.RESUBMIT, "its node failed", delay_s=30.0)
    return Decision(Action.GIVE_UP, f"it ended {state.value}")
