"""Retrain in the background on jobs that the plane saw end, and report the results."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from leadline.app.background import BackgroundTask, ask_process
from leadline.app.models.retrain import RetrainingReport, RetrainingResult
from leadline.core.jobs import JobState
from leadline.core.plane import EventKind
from leadline.core.runs import Run
from leadline.core.units import HOUR_S, MINUTE_S
from leadline.execution.clock import Clock
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.training.records import application_name

REPEAT_S = 10 * MINUTE_S
"""Minimum time between two retrainings."""
MIN_NEW_RUNS = 3
"""New runs of an application that trigger a retraining; ``retrain`` decides whether they are enough."""
INFORMATIVE_STATES = (JobState.COMPLETED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY)
"""Final states that tell what a job needs."""


retrain_in_process = partial(ask_process, "leadline.app.models.retrain", RetrainingReport, timeout_s=float(HOUR_S))
"""Retrain in a process of its own; ``LeadlineError`` if it failed."""


@dataclass(slots=True)
class BackgroundRetraining:
    """Counts new runs, and retrains when there are enough and the last retraining is long enough ago.

    The plane's thread calls ``count_runs`` and ``news``, which return at once.
    """

    retrain: Callable[[tuple[str, ...]], RetrainingReport] = retrain_in_process
    report: Callable[[str], None] = lambda _: None
    clock: Clock = field(default_factory=Clock)
    _new_runs: Counter[str] = field(default_factory=Counter)
    _due_s: float = 0.0
    _reported_failures: set[str] = field(default_factory=set)  # each failure is reported once
    _background: BackgroundTask[RetrainingReport] = field(default_factory=BackgroundTask)

    def count_runs(self, runs: Sequence[Run]) -> None:
        """Count runs that were added to the history."""
        self._new_runs.update(application_name(run) for run in runs if run.state in INFORMATIVE_STATES)

    def news(self) -> list[NewEvent]:
        """Return new results as notes, and start a retraining if one is due."""
        notes = self._fetched() if self._background.busy else []
        names = tuple(name for name, count in self._new_runs.items() if count >= MIN_NEW_RUNS)
        if names and not self._background.busy and self.clock.monotonic_s() >= self._due_s:
            # The next one is due from the start of this one, whether it succeeds or not.
            self._due_s = self.clock.monotonic_s() + REPEAT_S
            for name in names:
                del self._new_runs[name]
            self._background.start(lambda: self.retrain(names))
        for note in notes:
            self.report(str(note.details["why"]))
        return notes

    def _fetched(self) -> list[NewEvent]:
        report = self._background.fetch()
        if report is None:
            return []
        if isinstance(report, Exception):
            report = RetrainingReport(failures=(f"retraining failed: {str(report) or type(report).__name__}",))
        news = [why for why in report.failures if why not in self._reported_failures]
        self._reported_failures.update(news)
        # Only drifting errors and tried replacements are news.
        reported = [result for result in report.results if result.replaced or result.drifted or result.judged > 0]
        details = [event_details(result) for result in reported]
        details += [{"why": why, "failed": True} for why in news]
        return [NewEvent(EventKind.LEARNED, details=each) for each in details]


def event_details(lesson: RetrainingResult) -> EventDetails:
    """Return a result as details of an event."""
    shared = ("application", "quantity", "estimator", "replaced", "drifted", "new_runs", "judged")
    details: dict[str, float | int | str | bool | None] = {
        "why": lesson.sentence,
        **{name: getattr(lesson, name) for name in shared},
        "error_before": lesson.before,
        "error_after": lesson.after,
        "file": lesson.file or None,
    }
    return {name: value for name, value in details.items() if value is not None}
