"""Run the plane: accept jobs, submit and watch them, act on decisions, and settle each job exactly once."""

from collections.abc import Callable, Iterable
from functools import partial

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import EventKind
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.actor import Actor
from leadline.execution.plane.advisor import Advisor, Decide, Diagnose
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import NewEvent, PlaneJournal, attempt_event, failure_count
from leadline.execution.plane.poll_interval import DEFAULT_INTERVALS, PollIntervals, PollSchedule
from leadline.execution.plane.recovery import find_again
from leadline.execution.plane.rounds import Rounds, off_loop
from leadline.execution.plane.settler import Settler
from leadline.execution.plane.stager import Stager
from leadline.execution.plane.submitter import Submitter
from leadline.execution.plane.watcher import ObservedEnd, Watcher, may_end
from leadline.execution.schedulers.port import RequestRefused, Scheduler, SchedulerStatus

IDLE_S = 0.5
"""Longest pause between two checks for user requests."""


class Plane:
    """The engine that manages the jobs of one journal.

    Only one process may run it at a time; ``app`` holds a lock. ``step`` may be called at any rate, because each part
    knows when it is due. If a write fails, the next step starts again from the journal. ``news`` is called at every
    step for further events to store, and must not block. At the systems of ``search``, jobs of a lost journal are
    looked for.
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
        search: Iterable[str] = (),
    ) -> None:
        self.clock = clock or Clock()
        self.intervals = intervals
        self.book = JobCache(journal)
        self.schedulers: dict[str, Scheduler] = {}
        self.rhythms: dict[str, PollSchedule] = {}
        self.watchers: dict[str, Watcher] = {}
        self.rounds = Rounds()
        self.stager = Stager(
            self.book, self.schedulers, self.admit, advisor, self.clock, journal.path.parent / "staging"
        )
        self.submitter = Submitter(
            self.book, self.schedulers, self.rhythms, self.admit, advisor, self.clock, intervals, self.stager.ready,
            turn=self.rounds.turn,
        )  # fmt: skip
        self.starts: dict[str, float] = {}
        self.actor = Actor(self.book, self.schedulers, advisor, self.clock, intervals, decide, starts=self.starts)
        self.settler = Settler(self.book, self.schedulers, advisor, self.clock, diagnose, self.actor)
        self._scheduler_of = scheduler_of
        self._cancelled_ids: dict[str, set[str]] = {}
        self._news = news
        self._unsearched = set(search)
        self._notices: list[str] = []
        self._unwritten_events: list[NewEvent] = []
        self._loaded = False
        self._last_error = ""

    def step(self) -> float:
        """Do all that is due and return the seconds until the next step.

        Raises:
            LeadlineError: the journal cannot be written; call ``step`` again later.
        """
        try:
            if self.book.unwritten or self.book.journal.is_replaced():
                count = self.book.restore()
                self._loaded = True
                self._notices.append(f"the journal was removed or replaced: {count} open jobs were written again")
                for rhythm in self.rhythms.values():
                    rhythm.outage = None  # its event was in the other journal
            if not self._loaded:
                self.book.load()
                self._loaded = True
            for job in self.book.take_in():
                # Its user has just submitted or cancelled it, so its systems are tried at once.
                for system in {place.system for place in job.policy.places} & self.rhythms.keys():
                    self.rhythms[system].retry_now()
            self._admit_systems()
            self._close_cancelled()
            started = self.submitter.start()
            for watcher in list(self.watchers.values()):
                # Schedulers that answer at once, such as this machine's, need no thread.
                if watcher.scheduler.abreast == 1:
                    self._round(watcher)
                else:
                    self.rounds.start(watcher.system, partial(self._round, watcher))
            self.rounds.wait(IDLE_S)
            self.settler.record()
            self._write_news()
        except LeadlineError:
            # Memory may be ahead of the journal now, so the next step reads the journal again.
            self._loaded = False
            raise
        # While a round runs, the next step does the waiting.
        if started or self.rounds.running:
            return 0.0
        return min([IDLE_S, *(watcher.rhythm.wait_s for watcher in self.watchers.values())])

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
        while self._notices:
            report(self._notices.pop(0))
        return wait_s

    def finish(self, timeout_s: float) -> None:
        """Let the running rounds end, at most for ``timeout_s``, and store their results."""
        self.rounds.wait(timeout_s)
        self.settler.record()

    def admit(self, system: str) -> Watcher:
        """Return the watcher of a system, made on first use.

        Raises:
            LeadlineError: the system does not exist or cannot be reached.
        """
        if system not in self.watchers:
            scheduler = self._scheduler_of(system)
            if scheduler.abreast > 1:
                scheduler = off_loop(scheduler, self.rounds.turn)
            rhythm = self._rhythm(system)
            rhythm.retry_now()
            self.schedulers[system] = scheduler
            self.watchers[system] = Watcher(
                system, scheduler, self.book, self.clock, self.intervals, rhythm, starts=self.starts
            )
        return self.watchers[system]

    @property
    def idle(self) -> bool:
        """True if no job is left to manage."""
        searches = [system for system in self._unsearched if not self._rhythm(system).failures]
        return self._loaded and not self.book.jobs and not searches

    def _write_news(self) -> None:
        """Store the events that ``news`` returned; keep those that could not be written."""
        self._unwritten_events += self._news()
        if self._unwritten_events:
            self.book.write(events=self._unwritten_events)
            self._unwritten_events = []

    def _rhythm(self, system: str) -> PollSchedule:
        """Return the schedule of a system; an outage that an earlier process stored goes on."""
        if system not in self.rhythms:
            rhythm = self.rhythms[system] = PollSchedule(self.clock, self.intervals)
            if (outage := self.book.journal.open_outages().get(system)) is not None:
                rhythm.outage, rhythm.failures = outage.number, failure_count(outage)
        return self.rhythms[system]

    def _admit_systems(self) -> None:
        """Admit the systems of live attempts. Jobs at a system that cannot be admitted are kept and left alone."""
        for system in self._unsearched | {system for system, attempts in self.book.at_system.items() if attempts}:
            if system not in self.watchers and self._rhythm(system).due:
                try:
                    self.admit(system)
                except LeadlineError as error:
                    if isinstance(error, InvalidInput):  # there is no such system any more
                        self._unsearched.discard(system)
                    self.book.note_failure(system, self.rhythms[system], str(error))

    def _round(self, watcher: Watcher) -> None:
        """Do all that is due at one system; after a failure, nothing until it is due again."""
        if watcher.rhythm.failures and not watcher.rhythm.due:
            return
        try:
            self._cancel_withdrawn(watcher)
            if dropped := self.submitter.send(watcher.system):
                status = SchedulerStatus(JobState.CANCELLED, "withdrawn before it was sent")
                self.settler.settle([ObservedEnd(attempt, status, None) for attempt in dropped])
            self.settler.read_reports(watcher.system)
            self._watch(watcher)
            if watcher.system in self._unsearched:
                if message := find_again(self.book, watcher.system, watcher.scheduler, iso_utc(self.clock.now_s())):
                    self._notices.append(message)
                self._unsearched.discard(watcher.system)
        except SchedulerUnreachable as error:
            self.book.note_failure(watcher.system, watcher.rhythm, str(error))

    def _watch(self, watcher: Watcher) -> None:
        """Find lost submissions, poll, settle ended attempts, and decide about live ones.

        Decisions follow a poll or a report, because nothing new is known between them.

        Raises:
            SchedulerUnreachable: the scheduler did not answer.
        """
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

    def _close_cancelled(self) -> None:
        """Close the cancelled jobs that are at no scheduler."""
        for job in [self.book.jobs[key] for key in self.book.unwanted]:
            if job.cancelled and not job.closed and not job.live_attempts:
                self.book.close(job, JobState.CANCELLED, "cancelled by its user")

    def _cancel_withdrawn(self, watcher: Watcher) -> None:
        """Cancel the attempts at a system that users or the plane withdrew.

        Raises:
            SchedulerUnreachable: it is tried again later.
        """
        jobs = [self.book.jobs[key] for key in self.book.unwanted]
        unwanted = [
            (job, attempt)
            for job in jobs
            for attempt in job.live_attempts
            if (job.cancelled or attempt.withdrawn) and attempt.place.system == watcher.system
        ]
        cancelled = self._cancelled_ids.setdefault(watcher.system, set())
        cancelled &= {attempt.scheduler_id for _, attempt in unwanted if attempt.scheduler_id}
        for job, attempt in unwanted:
            if attempt.scheduler_id is None or attempt.scheduler_id in cancelled:
                continue
            try:
                waiting = attempt.state is JobState.PENDING and not may_end(job, attempt)
                watcher.scheduler.cancel([attempt.scheduler_id], waiting=waiting)
            except RequestRefused as error:
                self.book.write(events=[attempt_event(EventKind.FAULT, attempt, {"why": str(error)})])
            watcher.rhythm.hurry()
            cancelled.add(attempt.scheduler_id)
