"""Let what predicts jobs learn from those that the plane saw end, beside the plane, and tell what it learned."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leadline.app.jobs.background import BackgroundTask, run_in_process
from leadline.app.models.retrain import RetrainingReport, RetrainingResult
from leadline.core.documents import from_json
from leadline.core.jobs import JobState
from leadline.core.plane import EventKind
from leadline.core.runs import Run
from leadline.core.units import HOUR_S, MINUTE_S
from leadline.execution.clock import Clock, SystemClock
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.training.records import application_name

REPEAT_S = 10 * MINUTE_S
"""The least time between two lessons."""
MIN_NEW_RUNS = 3
"""New runs of an application from which on it is worth a look; what they are enough for, ``learn`` knows."""
TIMEOUT_S = float(HOUR_S)
MODULE = "leadline.app.models.retrain"
INFORMATIVE_STATES = (JobState.COMPLETED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY)
"""Ends that tell something of what a job takes."""


def retrain_in_process(applications: tuple[str, ...]) -> RetrainingReport:
    """Learn in a process of its own.

    Raises:
        LeadlineError: it failed.
    """
    return from_json(
        run_in_process(MODULE, applications, timeout_s=TIMEOUT_S), RetrainingReport, label=f"what {MODULE} printed"
    )


@dataclass(slots=True)
class BackgroundRetraining:
    """Counts new runs, and learns from them when there are some and the last time is a while ago.

    ``count_runs`` and ``news`` are called by the thread that runs the plane, and return at once.
    """

    retrain: Callable[[tuple[str, ...]], RetrainingReport] = retrain_in_process
    report: Callable[[str], None] = lambda _: None
    clock: Clock = field(default_factory=SystemClock)
    _new: Counter[str] = field(default_factory=Counter)
    _due_s: float = 0.0
    _failed: set[str] = field(default_factory=set)
    """Failures that were told: each is told once."""
    _aside: BackgroundTask[RetrainingReport] = field(default_factory=BackgroundTask)

    def count_runs(self, runs: Sequence[Run]) -> None:
        """Count runs that entered the history."""
        self._new.update(application_name(one) for one in runs if one.state in INFORMATIVE_STATES)

    def news(self) -> list[NewEvent]:
        """Return what was learned since the last call, and begin to learn if it is time."""
        notes = self._fetched() if self._aside.busy else []
        names = tuple(name for name, count in self._new.items() if count >= MIN_NEW_RUNS)
        if names and not self._aside.busy and self.clock.monotonic_s() >= self._due_s:
            self._due_s = self.clock.monotonic_s() + REPEAT_S
            for name in names:
                del self._new[name]
            self._aside.start(lambda: self.retrain(names))
        for note in notes:
            self.report(str(note.details["why"]))
        return notes

    def settle(self, timeout_s: float) -> None:
        """Wait for what is being learned."""
        self._aside.wait(timeout_s)

    def _fetched(self) -> list[NewEvent]:
        found = self._aside.fetch()
        if found is None:
            return []
        if isinstance(found, Exception):
            found = RetrainingReport(failures=(f"nothing could be learned: {str(found) or type(found).__name__}",))
        news = [why for why in found.failures if why not in self._failed]
        self._failed.update(news)
        return [
            *(NewEvent(EventKind.LEARNED, details=event_details(one)) for one in found.results if is_newsworthy(one)),
            *(NewEvent(EventKind.LEARNED, details={"why": why, "failed": True}) for why in news),
        ]


def is_newsworthy(lesson: RetrainingResult) -> bool:
    """Whether something was found out: that errors drifted, or that something else was tried, whatever came of it."""
    return lesson.replaced or lesson.drifted or lesson.judged > 0


def event_details(lesson: RetrainingResult) -> EventDetails:
    """Return a lesson as an event tells it."""
    said: dict[str, float | int | str | bool | None] = {
        "why": lesson.sentence,
        "application": lesson.application,
        "quantity": lesson.quantity,
        "estimator": lesson.estimator,
        "replaced": lesson.replaced,
        "drifted": lesson.drifted,
        "new_runs": lesson.new_runs,
        "judged": lesson.judged,
        "error_before": lesson.before,
        "error_after": lesson.after,
        "file": lesson.file or None,
    }
    return {name: value for name, value in said.items() if value is not None}
