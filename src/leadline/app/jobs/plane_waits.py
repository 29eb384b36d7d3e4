"""How long the plane's jobs wait, known without waiting: asked beside it, now and then, and kept."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from leadline.app.jobs.background import BackgroundTask, run_in_process
from leadline.app.jobs.predict_wait import WaitForecast, WaitQuestion
from leadline.app.machines.targets import LOCAL
from leadline.core.documents import from_json
from leadline.core.estimate import Interval
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Attempt, Place
from leadline.core.queues import QueueWait, wait_from_plan
from leadline.core.units import MINUTE_S
from leadline.execution.clock import Clock, SystemClock, epoch_s

REPEAT_S = 30 * MINUTE_S
"""The least time between two questions to one system."""
COLLECT_S = 30.0
"""So long further questions are waited for after the first one, as all of a system are answered by one reading."""
VALID_S = 2 * REPEAT_S
"""After so long an answer says nothing any more of a job that would be submitted now."""
MAX_QUESTIONS = 200
"""Questions at once."""
TIMEOUT_S = 20 * MINUTE_S
MODULE = "leadline.app.jobs.predict_wait"

Question = tuple[Place, ResourceSpec]


class WaitSource(Protocol):
    """What the advisor asks of waits; every answer comes at once."""

    def predicted(self, spec: JobSpec, place: Place) -> Interval | None:
        """Return how long a job would wait that is submitted now; ``None`` is not known, or not yet."""

    def remaining(self, attempt: Attempt, spec: JobSpec, now_s: float) -> Interval | None:
        """Return how much longer a waiting attempt waits; ``None`` is not known, or not yet."""

    def forget(self, attempt: str) -> None:
        """Forget an attempt that ended."""


class UnknownWaits:
    """Nothing is known of any wait (implements ``WaitSource``)."""

    def predicted(self, spec: JobSpec, place: Place) -> Interval | None:  # noqa: ARG002 - the port's
        """Return that it is not known."""
        return None

    def remaining(self, attempt: Attempt, spec: JobSpec, now_s: float) -> Interval | None:  # noqa: ARG002 - the port's
        """Return that it is not known."""
        return None

    def forget(self, attempt: str) -> None:
        """Forget nothing."""


def predict_waits_in_process(asked: WaitQuestion) -> WaitForecast:
    """Ask in a process of its own.

    Raises:
        LeadlineError: it failed.
    """
    return from_json(run_in_process(MODULE, asked, timeout_s=TIMEOUT_S), WaitForecast, label=f"what {MODULE} printed")


@dataclass(slots=True)
class WaitAnswer:
    """What was foretold of a job that would have been submitted at ``at_s``, and for whom it was asked last."""

    at_s: float
    learned: QueueWait | None
    planned_s: float | None


@dataclass(slots=True)
class BackgroundWaits:
    """Asks each system that is spoken of now and then, one at a time (implements ``WaitSource``)."""

    predict: Callable[[WaitQuestion], WaitForecast] = predict_waits_in_process
    clock: Clock = field(default_factory=SystemClock)
    report: Callable[[str], None] = lambda _: None
    """Hears, once, why waits at a system cannot be learned."""
    reasons: dict[str, str] = field(default_factory=dict)
    """System → why its waits cannot be learned; empty where they are."""
    _asked: dict[Question, tuple[JobSpec, float]] = field(default_factory=dict)
    """What is wanted, and when (monotonic) it was wanted first since it was asked."""
    _answers: dict[Question, WaitAnswer] = field(default_factory=dict)
    _own: dict[str, QueueWait] = field(default_factory=dict)
    """Attempt → what was foretold of it soonest after it was submitted."""
    _last_s: dict[str, float] = field(default_factory=dict)
    _aside: BackgroundTask[tuple[tuple[Question, ...], WaitForecast]] = field(default_factory=BackgroundTask)
    _at: tuple[str, float] = ("", 0.0)
    """The system that is asked now, and since when (epoch)."""

    def predicted(self, spec: JobSpec, place: Place) -> Interval | None:
        """Return how long a job would wait that is submitted now."""
        answer = self._answer(spec, place)
        if answer is None or self.clock.now_s() - answer.at_s > VALID_S:
            return None
        if answer.learned is not None:
            return answer.learned.wait_s
        return None if answer.planned_s is None else wait_from_plan(answer.planned_s)

    def remaining(self, attempt: Attempt, spec: JobSpec, now_s: float) -> Interval | None:
        """Return how much longer a waiting attempt waits, of the waits that were foretold those that are not over."""
        if attempt.submitted_at is None:
            return None
        if attempt.key not in self._own:
            answer = self._answer(spec, attempt.place)
            if answer is None or answer.learned is None:
                return None
            self._own[attempt.key] = answer.learned
        return self._own[attempt.key].remaining_s(max(0.0, now_s - epoch_s(attempt.submitted_at)))

    def forget(self, attempt: str) -> None:
        """Forget an attempt that ended."""
        self._own.pop(attempt, None)

    def settle(self, timeout_s: float) -> None:
        """Wait for what is asked now."""
        self._aside.wait(timeout_s)

    def _answer(self, spec: JobSpec, place: Place) -> WaitAnswer | None:
        """Return what is known of a question, which is noted to be asked again."""
        if place.system.casefold() == LOCAL or place.partition is None:
            return None
        if self._aside.busy:
            self._take_in()
        question = (place, spec.resources)
        known = self._answers.get(question)
        stale = known is None or self.clock.now_s() - known.at_s > REPEAT_S
        if stale and (question in self._asked or len(self._asked) < MAX_QUESTIONS):
            self._asked.setdefault(question, (spec, self.clock.monotonic_s()))
        if not self._aside.busy:
            self._ask_on()
        return known

    def _ask_on(self) -> None:
        """Ask the system whose turn it is, if any."""
        now_s = self.clock.monotonic_s()
        for system in {place.system: None for place, _ in self._asked}:
            own = [(question, *said) for question, said in self._asked.items() if question[0].system == system]
            due = now_s - min(since_s for *_, since_s in own) >= COLLECT_S
            if due and now_s - self._last_s.get(system, -REPEAT_S) >= REPEAT_S:
                self._begin(system, [(question, spec) for question, spec, _ in own], now_s)
                return

    def _begin(self, system: str, own: list[tuple[Question, JobSpec]], now_s: float) -> None:
        self._last_s[system], self._at = now_s, (system, self.clock.now_s())
        questions = tuple(question for question, _ in own)
        for question in questions:
            del self._asked[question]
        asked = WaitQuestion(system, tuple(spec for _, spec in own))
        self._aside.start(lambda: (questions, self.predict(asked)))

    def _take_in(self) -> None:
        found = self._aside.fetch()
        if found is None:
            return
        system, at_s = self._at
        if isinstance(found, Exception):
            self._explain(system, str(found) or type(found).__name__)
            return
        questions, told = found
        self._explain(system, told.reason)
        self._answers = {one: known for one, known in self._answers.items() if at_s - known.at_s < VALID_S}
        for question, learned, planned_s in zip(questions, told.learned, told.planned_s, strict=True):
            self._answers[question] = WaitAnswer(at_s, learned, planned_s)

    def _explain(self, system: str, why: str) -> None:
        """Keep why waits are not learned, and tell it if that is news."""
        if why and why != self.reasons.get(system):
            self.report(f"how long jobs wait at {system} is not learned: {why}")
        self.reasons[system] = why
