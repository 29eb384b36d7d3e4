"""What the engine asks of the rest of Leadline: where a job goes, what it will take, and what to do when it ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from leadline.core.estimate import Interval
from leadline.core.plane import Alternative, Attempt, AttemptPlan, Decision, Job, Situation
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is expected of an attempt, and what its place allows; ``None`` is not known (see ``Situation``)."""

    total_s: Interval | None = None
    memory_bytes: Interval | None = None
    remaining_wait_s: Interval | None = None
    allowed_s: float | None = None
    node_memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    cost_per_s: float | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that ran and ended, with what its wrapper wrote of it, where it did."""

    job: Job
    attempt: Attempt
    outcome: JobOutcome | None


class Advisor(Protocol):
    """The plane's counsel; the composition root makes one of estimators, catalog, prices and queue waits."""

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return where and with which request a job is first submitted: one plan for each copy that may wait at once.

        Raises:
            LeadlineError: no place would take it; the sentence says why.
        """

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Expectation:
        """Return what is expected of an attempt, given what its wrapper has reported."""

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Take the ends of attempts over; it may be told twice of one, and must not count it twice."""


Diagnose = Callable[[Attempt, SchedulerStatus | None, JobOutcome | None, str], Diagnosis]
"""(attempt, what the scheduler said, what its wrapper wrote, the end of its log) → how it ended, and the evidence."""
Decide = Callable[[Situation], Decision]
