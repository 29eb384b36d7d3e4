"""Follow what one scheduler holds of the plane's jobs: one question for all, and what their wrappers report."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.execution.plane.poll_interval import PollIntervals, PollSchedule
from leadline.execution.schedulers.port import ForgetfulScheduler, Scheduler, SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome

FORGOTTEN = SchedulerStatus(JobState.NODE_FAIL, "its scheduler forgot it before it began")
"""What becomes of a job that a controller had taken, and knew nothing of once it was killed and started again."""
MARGIN_S = 5.0
"""Reports are asked for from so long before the last reading, as clocks and file systems are late."""


@dataclass(frozen=True, slots=True)
class ObservedEnd:
    """An attempt that is over: what its scheduler, its wrapper and its log say of it."""

    attempt: Attempt
    status: SchedulerStatus | None
    outcome: JobOutcome | None
    log: str = ""


@dataclass(slots=True)
class Watcher:
    """Asks one scheduler when its rhythm says so, and writes down what changed."""

    system: str
    scheduler: Scheduler
    book: JobCache
    clock: Clock
    patience: PollIntervals
    rhythm: PollSchedule
    reports: dict[str, JobOutcome] = field(default_factory=dict)
    """The last report of each live attempt, by its key."""
    read_s: float = 0.0
    read_due_s: float = 0.0
    missing_s: dict[str, float] = field(default_factory=dict)
    """Attempt → since when nothing names it."""
    starts: dict[str, float] = field(default_factory=dict)
    """Attempt → when the scheduler itself expects to start it (epoch); not written down, as it wavers at every look."""

    def poll(self) -> list[ObservedEnd]:
        """Ask for the states of all live attempts; return those that are over.

        Raises:
            SchedulerUnreachable: there was no answer; nothing was concluded.
        """
        live = [(one.scheduler_id, one) for _, one in self.book.live(self.system) if one.scheduler_id]
        if not live:
            self.rhythm.answered(changed=False)
            return []
        began_s, worked_s = self.clock.monotonic_s(), self.clock.cpu_s()
        said = self.scheduler.query([scheduler_id for scheduler_id, _ in live])
        took_s, cpu_s = self.clock.monotonic_s() - began_s, self.clock.cpu_s() - worked_s
        changed, gone = [], []
        for scheduler_id, attempt in live:
            status = _of(attempt, said.get(scheduler_id))
            if status is None or status.state.final:
                gone.append((attempt, status))
                continue
            self.missing_s.pop(attempt.key, None)
            self._note_start(attempt, status)
            if (now := _with(attempt, status)) is not attempt:
                changed.append((attempt, now))
        poll: EventDetails = {"system": self.system, "live": len(live), "gone": len(gone), "changed": len(changed),
                "took_s": round(took_s, 3)}  # fmt: skip
        self.book.write(
            attempts=[now for _, now in changed],
            notes=[
                NewEvent(EventKind.POLL, details=poll),
                *(
                    NewEvent(EventKind.STATE, now.job, now.key, _said(now))
                    for was, now in changed
                    if was.state is not now.state
                ),
            ],
        )
        ends = self._ends(gone) if gone else []
        if self.rhythm.answered(changed=bool(changed or gone), took_s=took_s, cpu_s=cpu_s):
            self.book.write(notes=[NewEvent(EventKind.POLL, details={"system": self.system, "answers": "again"})])
        return ends

    def read_reports(self) -> list[tuple[Attempt, JobOutcome]]:
        """Return the running attempts of which something new was reported."""
        if self.clock.monotonic_s() < self.read_due_s:
            return []
        running = {one.key: one for _, one in self.book.live(self.system) if one.state is JobState.RUNNING}
        self.read_due_s = self.clock.monotonic_s() + self.patience.reports
        if not running:
            return []
        since_s, self.read_s = self.read_s - MARGIN_S, self.clock.now_s()
        found = self.scheduler.reports(list(running), since_s=max(since_s, 0.0))
        news = [(running[key], one) for key, one in found.items() if self.reports.get(key) != one]
        self.reports.update(found)
        if news:
            self.book.write(
                notes=[NewEvent(EventKind.PROGRESS, attempt.job, attempt.key, shown(one)) for attempt, one in news]
            )
        return news

    def _ends(self, gone: list[tuple[Attempt, SchedulerStatus | None]]) -> list[ObservedEnd]:
        """Settle attempts that left the queue: by their own report if they completed, else by the accounting."""
        reports = self.scheduler.reports([attempt.key for attempt, _ in gone])
        asked = [
            one.scheduler_id for one, status in gone if one.scheduler_id and not _clear(reports.get(one.key), status)
        ]
        accounted = self.scheduler.account(asked) if asked else {}
        forgotten = self._forgotten([attempt for attempt, _ in gone if not _told(reports.get(attempt.key))])
        ends = []
        for attempt, seen in gone:
            outcome = reports.get(attempt.key)
            status = _of(attempt, accounted.get(attempt.scheduler_id or "")) or seen
            missing_s = self._missing_s(attempt)
            if _over(outcome, status) or (_told(outcome) and missing_s > self.patience.settle):
                ends.append(ObservedEnd(attempt, status, outcome))
            elif missing_s > self.patience.settle and self._taken_back(attempt):
                ends.append(
                    ObservedEnd(attempt, SchedulerStatus(JobState.CANCELLED, "taken back before it began"), outcome)
                )
            elif attempt.key in forgotten:
                ends.append(ObservedEnd(attempt, FORGOTTEN, outcome))
            elif missing_s > self.patience.lost:
                ends.append(ObservedEnd(attempt, status, outcome, "nothing names it any more"))
        for end in ends:
            self.missing_s.pop(end.attempt.key, None)
            self.reports.pop(end.attempt.key, None)
            self.starts.pop(end.attempt.key, None)
        return self._with_logs(ends)

    def _with_logs(self, ends: list[ObservedEnd]) -> list[ObservedEnd]:
        """Add the ends of the logs of those that did not complete."""
        keys = [end.attempt.key for end in ends if not _well(end)]
        tails = self.scheduler.log_tails(keys) if keys else {}
        return [replace(end, log=tails.get(end.attempt.key, end.log)) for end in ends]

    def _taken_back(self, attempt: Attempt) -> bool:
        """Whether it was cancelled before it began: of an element of a waiting array Slurm then tells nothing."""
        cancelled = attempt.withdrawn or self.book.jobs[attempt.job].cancelled
        return cancelled and attempt.started_at is None

    def _forgotten(self, gone: list[Attempt]) -> Collection[str]:
        """Return which of the attempts that no queue names any more their scheduler forgot before they began."""
        never = [one for one in gone if one.started_at is None and self._missing_s(one) > self.patience.grace]
        keys = {one.key: one.batch for one in never}
        return self.scheduler.never_began(keys) if keys and isinstance(self.scheduler, ForgetfulScheduler) else ()

    def _note_start(self, attempt: Attempt, status: SchedulerStatus) -> None:
        """Keep when the scheduler expects to start what waits."""
        if status.state is JobState.PENDING and status.expected_start_s is not None:
            self.starts[attempt.key] = status.expected_start_s
        else:
            self.starts.pop(attempt.key, None)

    def _missing_s(self, attempt: Attempt) -> float:
        """Return for how long no queue has named an attempt."""
        now_s = self.clock.monotonic_s()
        return now_s - self.missing_s.setdefault(attempt.key, now_s)


def poll_if_due(watcher: Watcher) -> list[ObservedEnd]:
    """Poll if it is time; a scheduler that does not answer is left alone for a while, which is written down once."""
    if not watcher.rhythm.due:
        return []
    try:
        return watcher.poll()
    except SchedulerUnreachable as error:
        if watcher.rhythm.failed(str(error)):
            said: EventDetails = {"system": watcher.system, "why": str(error)}
            watcher.book.write(notes=[NewEvent(EventKind.FAULT, details=said)])
        return []


def shown(outcome: JobOutcome) -> EventDetails:
    """Return what a report shows of a job's progress, in the words of the published plane: epoch, step, memory."""
    progress = outcome.progress
    said: dict[str, float | int | str | bool | None] = {
        name: one.value for name, one in outcome.measured.items() if name in _SHOWN
    }
    if progress is not None:
        unit = progress.unit
        said |= {"epochs": progress.epochs, "steps": progress.steps, "total": progress.total,
                 "unit_s": unit.median_s if unit else None}  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


_SHOWN = ("elapsed_s", "host_memory_bytes", "gpu_memory_bytes", "cpu_s", "gpu_utilisation", "cpu_utilisation")


def _clear(outcome: JobOutcome | None, status: SchedulerStatus | None) -> bool:
    """Whether a report alone settles an attempt: it completed, was measured, and nothing says otherwise."""
    well = outcome is not None and outcome.state is JobState.COMPLETED and bool(outcome.measured)
    return well and (status is None or status.state is JobState.COMPLETED)


def _of(attempt: Attempt, status: SchedulerStatus | None) -> SchedulerStatus | None:
    """Return what was said under an attempt's id if it is of this attempt, and not of another that has its id now."""
    return status if status is not None and status.bears(attempt.batch or attempt.key) else None


def _over(outcome: JobOutcome | None, status: SchedulerStatus | None) -> bool:
    """Whether it is known how an attempt ended: its scheduler says it, or it completed by its wrapper's word.

    What nobody measured the scheduler alone may know more of, its memory above all.
    """
    if status is not None and status.state.final:
        return True
    return outcome is not None and outcome.state is JobState.COMPLETED and bool(outcome.measured)


def _told(outcome: JobOutcome | None) -> bool:
    """Whether the wrapper says that it is over; why it ended, the scheduler may know better."""
    return outcome is not None and outcome.state.final


def _well(end: ObservedEnd) -> bool:
    return _clear(end.outcome, end.status)


def _with(attempt: Attempt, status: SchedulerStatus) -> Attempt:
    """Return the attempt as its scheduler now tells of it; the same one if nothing changed."""
    started_at = attempt.started_at if status.started_s is None else iso_utc(status.started_s)
    node, walltime_s = status.node or attempt.node, status.walltime_s or attempt.walltime_s
    told = (status.state, status.reason, node, started_at, walltime_s)
    if told == (attempt.state, attempt.reason, attempt.node, attempt.started_at, attempt.walltime_s):
        return attempt
    return replace(
        attempt, state=status.state, reason=status.reason, node=node, started_at=started_at, walltime_s=walltime_s
    )


def _said(attempt: Attempt) -> EventDetails:
    return {"state": attempt.state.value, "reason": attempt.reason, "node": attempt.node}
