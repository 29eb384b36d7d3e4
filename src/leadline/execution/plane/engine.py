"""Run the plane: take jobs in, submit them, follow them, decide, act, and settle each exactly once."""

from collections.abc import Callable, Iterable

from leadline.core.errors import LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind
from leadline.execution.clock import Clock, SystemClock
from leadline.execution.plane.actor import Actor
from leadline.execution.plane.advisor import Advisor, Decide, Diagnose
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.execution.plane.poll_interval import DEFAULT_INTERVALS, PollIntervals, PollSchedule
from leadline.execution.plane.settler import Settler
from leadline.execution.plane.stager import Stager
from leadline.execution.plane.submitter import Submitter
from leadline.execution.plane.watcher import ObservedEnd, Watcher, poll_if_due
from leadline.execution.schedulers.port import RequestRefused, Scheduler, SchedulerStatus

IDLE_S = 0.5
"""The longest pause between two looks at what users asked for."""


class Plane:
    """One process's hold of a journal; one process alone may run it at a time (``app`` holds a lock).

    ``step`` may be called as often as one likes: each part of it knows when it is due. A write that fails leaves the
    schedulers as they are and memory as the journal has it; the next step begins from there. ``news`` is asked at every
    step for what else is to be told, and must not keep it waiting.
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
        self.patience = intervals
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
        self._told: set[str] = set()
        self._news = news
        self._untold: list[NewEvent] = []
        self._loaded = False
        self._said = ""

    def step(self) -> float:
        """Do all that is due and return the seconds until something is due again.

        Raises:
            LeadlineError: the journal cannot be written; call ``step`` again when it can.
        """
        try:
            if not self._loaded:
                self._load()
            self.book.take_in()
            self._cancel()
            started = self.submitter.start()
            self._settle_dropped()
            for watcher in self.watchers.values():
                self._watch(watcher)
            self.settler.record()
            self._tell_news()
        except LeadlineError:
            self._loaded = False
            raise
        return 0.0 if started else self._wait_s()

    def run(self, until: Callable[[], bool], *, told: Callable[[str], None] = lambda _: None) -> None:
        """Step until ``until()``; a journal that cannot be written is told once and tried again."""
        while not until():
            if wait_s := self.try_step(told):
                self.clock.sleep(wait_s)

    def try_step(self, told: Callable[[str], None]) -> float:
        """Step; a journal that cannot be written is told once, and is to be tried again after the seconds returned."""
        try:
            wait_s, self._said = self.step(), ""
        except LeadlineError as error:
            if str(error) != self._said:
                told(str(error))
            wait_s, self._said = IDLE_S, str(error)
        return wait_s

    def admit(self, system: str) -> Watcher:
        """Return the watcher of a system, made when it is first needed.

        Raises:
            LeadlineError: there is no such system, or no way to it.
        """
        if system not in self.watchers:
            scheduler, rhythm = self._scheduler_of(system), PollSchedule(self.clock, self.patience)
            self.schedulers[system], self.rhythms[system] = scheduler, rhythm
            self.watchers[system] = Watcher(
                system, scheduler, self.book, self.clock, self.patience, rhythm, starts=self.starts
            )
        return self.watchers[system]

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do."""
        return self._loaded and not self.book.jobs

    def _tell_news(self) -> None:
        """Write down what was learned aside; what could not be written is kept for the next step."""
        self._untold += self._news()
        if self._untold:
            self.book.write(notes=self._untold)
            self._untold = []

    def _load(self) -> None:
        """Read the journal; a system that cannot be reached keeps its jobs until it can, and they are left alone."""
        self.book.load()
        for system in {one.place.system for job in self.book.jobs.values() for one in job.live_attempts}:
            try:
                self.admit(system)
            except LeadlineError as error:
                self.book.write(notes=[NewEvent(EventKind.FAULT, details={"system": system, "why": str(error)})])
        self._loaded = True

    def _watch(self, watcher: Watcher) -> None:
        """Look lost submissions up, poll, settle what ended, and decide about what runs.

        What is done about all that is live follows a poll, or a report: between two of them nothing else is known.
        """
        if asked := watcher.rhythm.due:
            try:
                self.submitter.look_up(watcher.system)
            except SchedulerUnreachable as error:
                self._unreachable(watcher, error)
                return
        ends = poll_if_due(watcher)
        if ends:
            self.settler.settle(ends)
        if watcher.rhythm.failures:
            return
        try:
            reported = watcher.read_reports()
            for attempt, outcome in reported:
                self.actor.judge(attempt, outcome)
            if asked or reported:
                self.actor.judge_waiting(watcher.system)
                self.actor.give_words(watcher.system)
        except SchedulerUnreachable as error:
            self._unreachable(watcher, error)

    def _settle_dropped(self) -> None:
        """Settle what was taken back before any scheduler had it."""
        dropped, self.submitter.dropped = self.submitter.dropped, []
        never = SchedulerStatus(JobState.CANCELLED, "taken back before it was sent")
        if dropped:
            self.settler.settle([ObservedEnd(one, never, None) for one in dropped])

    def _unreachable(self, watcher: Watcher, error: SchedulerUnreachable) -> None:
        if watcher.rhythm.failed(str(error)):
            self.book.write(notes=[NewEvent(EventKind.FAULT, details={"system": watcher.system, "why": str(error)})])

    def _cancel(self) -> None:
        """Carry out what users, or the plane itself, took back; what was not reached is tried again."""
        self._told &= {one.key for key in self.book.unwanted for one in self.book.jobs[key].live_attempts}
        for job in [self.book.jobs[key] for key in self.book.unwanted]:
            if job.cancelled and not job.closed and not job.live_attempts:
                self.book.close(job, JobState.CANCELLED, "cancelled by its user")
            for attempt in job.live_attempts:
                if (job.cancelled or attempt.withdrawn) and attempt.key not in self._told and self._end(attempt):
                    self._told.add(attempt.key)

    def _end(self, attempt: Attempt) -> bool:
        """Tell a scheduler to end an attempt; ``False`` if it was not reached, or knows it by no id yet."""
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
            self.book.write(notes=[NewEvent(EventKind.FAULT, attempt.job, attempt.key, {"why": str(error)})])
        watcher.rhythm.hurry()
        return True

    def _wait_s(self) -> float:
        waits = [watcher.rhythm.wait_s for watcher in self.watchers.values()]
        return min([IDLE_S, *waits])
