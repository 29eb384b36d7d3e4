"""Run the plane: accept jobs, submit and watch them, act on decisions, and settle each job exactly once."""

from collections.abc import Callable, Iterable

from leadline.core.errors import LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind
from leadline.execution.clock import Clock, SystemClock
from leadline.execution.plane.actor import Actor
from leadline.execution.plane.advisor import Advisor, Decide, Diagnose
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import NewEvent, PlaneJournal, attempt_event
from leadline.execution.plane.poll_interval import DEFAULT_INTERVALS, PollIntervals, PollSchedule
from leadline.execution.plane.settler import Settler
from leadline.execution.plane.stager import Stager
from leadline.execution.plane.submitter import Submitter
from leadline.execution.plane.watcher import ObservedEnd, Watcher
from leadline.execution.schedulers.port import RequestRefused, Scheduler, SchedulerStatus

IDLE_S = 0.5
"""Longest pause between two checks for user requests."""


class Plane:
    """The engine that manages the jobs of one journal.

    Only one process may run it at a time; ``app`` holds a lock. ``step`` may be called at any rate, because each part
    knows when it is due. If a write fails, the next step starts again from the journal. ``news`` is called at every
    step for further events to store, and must not block.
    """

    def __init__(
        self,
        journal: PlaneJournal,
        scheduler_of: Callable[[str], Scheduler],
        advisor: Advisor,
        *,
        diagnose: Diagnose,
        decide: Decide,
        clock: Clock | None = None,
        intervals: PollIntervals = DEFAULT_INTERVALS,
        news: Callable[[], Iterable[NewEvent]] = tuple,
    ) -> None:
        self.clock = clock or SystemClock()
        self.intervals = intervals
        self.book = JobCache(journal)
        self.schedulers: dict[str, Scheduler] = {}
        self.rhythms: dict[str, PollSchedule] = {}
        self.watchers: dict[str, Watcher] = {}
        self.stager = Stager(self.book, self.schedulers, self.admit, self.clock, journal.path.parent / "staging")
        self.submitter = Submitter(
            self.book, self.schedulers, self.rhythms, self.admit, advisor, self.clock, intervals, self.stager.ready
        )
        self.starts: dict[str, float] = {}
        self.actor = Actor(self.book, self.schedulers, advisor, self.clock, intervals, decide, starts=self.starts)
        self.settler = Settler(self.book, self.schedulers, advisor, self.clock, diagnose, self.actor)
        self._scheduler_of = scheduler_of
        self._cancelled_keys: set[str] = set()
        self._news = news
        self._unwritten_events: list[NewEvent] = []
        self._loaded = False
        self._last_error = ""

    def step(self) -> float:
        """Do all that is due and return the seconds until the next step.

        Raises:
            LeadlineError: the journal cannot be written; call ``step`` again later.
        """
        try:
            if not self._loaded:
                self._load()
            self.book.take_in()
            self._cancel_withdrawn()
            started = self.submitter.start()
            self._settle_dropped()
            for watcher in self.watchers.values():
                self._watch(watcher)
            self.settler.record()
            self._write_news()
        except LeadlineError:
            # Memory may be ahead of the journal now, so the next step reads the journal again.
            self._loaded = False
            raise
        return 0.0 if started else self._wait_s()

    def run(self, until: Callable[[], bool], *, report: Callable[[str], None] = lambda _: None) -> None:
        """Step until ``until()``; report an unwritable journal once and keep trying."""
        while not until():
            if wait_s := self.try_step(report):
                self.clock.sleep(wait_s)

    def try_step(self, report: Callable[[str], None]) -> float:
        """Step, report a journal error once, and return the seconds to wait."""
        try:
            wait_s, self._last_error = self.step(), ""
        except LeadlineError as error:
            if str(error) != self._last_error:
                report(str(error))
            wait_s, self._last_error = IDLE_S, str(error)
        return wait_s

    def admit(self, system: str) -> Watcher:
        """Return the watcher of a system, made on first use.

        Raises:
            LeadlineError: the system does not exist or cannot be reached.
        """
        if system not in self.watchers:
            scheduler, rhythm = self._scheduler_of(system), PollSchedule(self.clock, self.intervals)
            self.schedulers[system], self.rhythms[system] = scheduler, rhythm
            self.watchers[system] = Watcher(
                system, scheduler, self.book, self.clock, self.intervals, rhythm, starts=self.starts
            )
        return self.watchers[system]

    @property
    def idle(self) -> bool:
        """True if no job is left to manage."""
        return self._loaded and not self.book.jobs

    def _write_news(self) -> None:
        """Store the events that ``news`` returned; keep those that could not be written."""
        self._unwritten_events += self._news()
        if self._unwritten_events:
            self.book.write(events=self._unwritten_events)
            self._unwritten_events = []

    def _load(self) -> None:
        """Read the journal. Jobs at an unreachable system are kept and left alone."""
        self.book.load()
        for system in {attempt.place.system for job in self.book.jobs.values() for attempt in job.live_attempts}:
            try:
                self.admit(system)
            except LeadlineError as error:
                self.book.write(events=[NewEvent(EventKind.FAULT, details={"system": system, "why": str(error)})])
        self._loaded = True

    def _watch(self, watcher: Watcher) -> None:
        """Find lost submissions, poll, settle ended attempts, and decide about live ones.

        Decisions follow a poll or a report, because nothing new is known between them.
        """
        try:
            if polls := watcher.rhythm.due:
                self.submitter.look_up(watcher.system)
                if ends := watcher.poll():
                    self.settler.settle(ends)
            # A scheduler that fails is not asked more often than it is polled.
            elif watcher.rhythm.failures:
                return
            reports = watcher.read_reports()
            for attempt, outcome in reports:
                self.actor.judge(attempt, outcome)
            if polls or reports:
                self.actor.judge_waiting(watcher.system)
                self.actor.release_chosen(watcher.system)
        except SchedulerUnreachable as error:
            self._unreachable(watcher, error)

    def _settle_dropped(self) -> None:
        """Settle attempts that were withdrawn before they were sent."""
        dropped, self.submitter.dropped = self.submitter.dropped, []
        status = SchedulerStatus(JobState.CANCELLED, "withdrawn before it was sent")
        if dropped:
            self.settler.settle([ObservedEnd(attempt, status, None) for attempt in dropped])

    def _unreachable(self, watcher: Watcher, error: SchedulerUnreachable) -> None:
        if watcher.rhythm.failed(str(error)):
            self.book.write(events=[NewEvent(EventKind.FAULT, details={"system": watcher.system, "why": str(error)})])

    def _cancel_withdrawn(self) -> None:
        """Cancel the attempts that users or the plane withdrew; retry those that were not reached."""
        self._cancelled_keys &= {
            attempt.key for key in self.book.unwanted for attempt in self.book.jobs[key].live_attempts
        }
        for job in [self.book.jobs[key] for key in self.book.unwanted]:
            if job.cancelled and not job.closed and not job.live_attempts:
                self.book.close(job, JobState.CANCELLED, "cancelled by its user")
            for attempt in job.live_attempts:
                if (
                    (job.cancelled or attempt.withdrawn)
                    and attempt.key not in self._cancelled_keys
                    and self._cancel_attempt(attempt)
                ):
                    self._cancelled_keys.add(attempt.key)

    def _cancel_attempt(self, attempt: Attempt) -> bool:
        """Cancel an attempt at its scheduler; False if it was not reached or has no id yet."""
        watcher = self.watchers.get(attempt.place.system)
        if watcher is None:
            return False
        if attempt.scheduler_id is None or (watcher.rhythm.failures and not watcher.rhythm.due):
            return False
        try:
            watcher.scheduler.cancel([attempt.scheduler_id])
        except SchedulerUnreachable as error:
            self._unreachable(watcher, error)
            return False
        except RequestRefused as error:
            self.book.write(events=[attempt_event(EventKind.FAULT, attempt, {"why": str(error)})])
        watcher.rhythm.hurry()
        return True

    def _wait_s(self) -> float:
        waits = [watcher.rhythm.wait_s for watcher in self.watchers.values()]
        return min([IDLE_S, *waits])
