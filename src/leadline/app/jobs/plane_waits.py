"""Predict the queue waits of the plane's jobs in the background, and cache the answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from leadline.app.background import BackgroundTask, ask_process
from leadline.app.jobs.predict_wait import WaitForecast, WaitQuestion
from leadline.app.machines.targets import LOCAL
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Attempt, Place
from leadline.core.queues import QueueWait, wait_from_plan
from leadline.core.units import MINUTE_S
from leadline.execution.clock import Clock, epoch_s

REPEAT_S = 30 * MINUTE_S
"""Minimum time between two questions to one system."""
COLLECT_S = 30.0
"""How long a question waits for others to the same system: one reading of its accounting answers them all."""
VALID_S = 2 * REPEAT_S
"""Older answers are not used for a job that would be submitted now."""
MAX_QUESTIONS = 200
"""Maximum number of open questions."""

Question = tuple[Place, ResourceSpec]


predict_waits_in_process = partial(ask_process, "leadline.app.jobs.predict_wait", WaitForecast, timeout_s=20 * MINUTE_S)
"""Predict waits in a process of its own; ``LeadlineError`` if it failed."""


class WaitAnswer(Frozen):
    """The wait of a job that would have been submitted at ``at_s``."""

    at_s: float
    learned: QueueWait | None
    planned_s: float | None


@dataclass(slots=True)
class BackgroundWaits:
    """Predicts waits in the background, one system at a time; every method returns at once."""

    predict: Callable[[WaitQuestion], WaitForecast] = predict_waits_in_process
    clock: Clock = field(default_factory=Clock)
    report: Callable[[str], None] = lambda _: None
    """Called once with the reason why waits at a system cannot be predicted."""
    reasons: dict[str, str] = field(
        default_factory=dict
    )  # system → why its waits cannot be predicted; empty if they can
    _open_questions: dict[Question, tuple[JobSpec, float]] = field(default_factory=dict)
    """Open question → (job, monotonic time of the first request)."""
    _answers: dict[Question, WaitAnswer] = field(default_factory=dict)
    _first_predictions: dict[str, QueueWait] = field(default_factory=dict)  # attempt → the first after its submission
    _last_start_s: dict[str, float] = field(default_factory=dict)
    _background: BackgroundTask[WaitForecast] = field(default_factory=BackgroundTask)
    _running: tuple[str, float, tuple[Question, ...]] = ("", 0.0, ())
    """The system of the running prediction, its start (epoch), and its questions."""

    def predicted(self, spec: JobSpec, place: Place) -> Interval | None:
        """Return the wait of a job that is submitted now; ``None`` if unknown so far."""
        answer = self._answer(spec, place)
        if answer is None or self.clock.now_s() - answer.at_s > VALID_S:
            return None
        if answer.learned is not None:
            return answer.learned.wait_s
        return None if answer.planned_s is None else wait_from_plan(answer.planned_s)

    def remaining(self, attempt: Attempt, spec: JobSpec, now_s: float) -> Interval | None:
        """Return the remaining wait of an attempt, conditional on the time that it has waited."""
        if attempt.submitted_at is None:
            return None
        if attempt.key not in self._first_predictions:
            answer = self._answer(spec, attempt.place)
            if answer is None or answer.learned is None:
                return None
            self._first_predictions[attempt.key] = answer.learned
        return self._first_predictions[attempt.key].remaining_s(max(0.0, now_s - epoch_s(attempt.submitted_at)))

    def forget(self, attempt: str) -> None:
        """Forget an attempt that ended."""
        self._first_predictions.pop(attempt, None)

    def _answer(self, spec: JobSpec, place: Place) -> WaitAnswer | None:
        """Return the cached answer, and queue the question again if it is stale."""
        if place.system.casefold() == LOCAL or place.partition is None:
            return None
        if self._background.busy:
            self._fetch()
        question = (place, spec.resources)
        answer = self._answers.get(question)
        # A stale answer is still returned; the question is only asked again.
        stale = answer is None or self.clock.now_s() - answer.at_s > REPEAT_S
        if stale and (question in self._open_questions or len(self._open_questions) < MAX_QUESTIONS):
            self._open_questions.setdefault(question, (spec, self.clock.monotonic_s()))
        if not self._background.busy:
            self._start_next()
        return answer

    def _start_next(self) -> None:
        """Start a prediction for the next system that is due."""
        now_s = self.clock.monotonic_s()
        for system in {place.system: None for place, _ in self._open_questions}:
            pending = {key: value for key, value in self._open_questions.items() if key[0].system == system}
            due = now_s - min(since_s for _, since_s in pending.values()) >= COLLECT_S
            if due and now_s - self._last_start_s.get(system, -REPEAT_S) >= REPEAT_S:
                self._last_start_s[system], self._running = now_s, (system, self.clock.now_s(), tuple(pending))
                for question in pending:
                    del self._open_questions[question]
                specs = tuple(spec for spec, _ in pending.values())
                self._background.start(partial(self.predict, WaitQuestion(system, specs)))
                return

    def _fetch(self) -> None:
        forecast = self._background.fetch()
        if forecast is None:
            return
        system, at_s, questions = self._running
        if isinstance(forecast, Exception):
            self._explain(system, str(forecast) or type(forecast).__name__)
            return
        self._explain(system, forecast.reason)
        self._answers = {question: answer for question, answer in self._answers.items() if at_s - answer.at_s < VALID_S}
        for question, learned, planned_s in zip(questions, forecast.learned, forecast.planned_s, strict=True):
            self._answers[question] = WaitAnswer(at_s, learned, planned_s)

    def _explain(self, system: str, why: str) -> None:
        """Record why waits cannot be predicted, and report it if it is new."""
        if why and why != self.reasons.get(system):
            self.report(f"queue waits at {system} are not predicted: {why}")
        self.reasons[system] = why
