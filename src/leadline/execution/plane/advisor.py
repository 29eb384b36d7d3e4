"""The port through which the engine asks for plans, predictions and decisions."""

from collections.abc import Callable, Sequence
from typing import Protocol

from leadline.core.frozen import Frozen
from leadline.core.plane import Attempt, AttemptPlan, Decision, Job, Situation
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome


class EndedAttempt(Frozen):
    """An attempt that ran and ended, with its wrapper's outcome if there is one."""

    job: Job
    attempt: Attempt
    outcome: JobOutcome | None


class Advisor(Protocol):
    """Plans and predicts for the plane. The composition root builds it from estimators, catalog, prices and waits."""

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return the place and request of a job's first submission, one for each parallel copy.

        Raises:
            LeadlineError: no place accepts the job; the message says why.
        """

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Situation:
        """Return the predictions for an attempt and the limits of its place, given its wrapper's last report."""

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Record ended attempts. It may be called twice for one attempt, which must count once."""


class Diagnose(Protocol):
    """Finds out why an attempt ended."""

    def __call__(
        self,
        attempt: Attempt,
        status: SchedulerStatus | None,
        outcome: JobOutcome | None,
        log: str | None,
        /,
        *,
        cancelled: bool,
    ) -> Diagnosis:
        """Return the diagnosis; ``cancelled`` is true if the user cancelled the job."""


Decide = Callable[[Situation], Decision]
