"""The open jobs of the journal in memory. Every change is written to the journal first."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind, Job
from leadline.execution.clock import iso_utc
from leadline.execution.plane.journal import EventDetails, NewEvent, PlaneJournal
from leadline.execution.plane.poll_interval import PollSchedule


@dataclass(slots=True)
class JobCache:
    """The open jobs by key; ``take_in`` reads what other processes added or cancelled.

    Thousands of open jobs may wait unchanged, so each step visits only the jobs that concern it.
    """

    journal: PlaneJournal
    jobs: dict[str, Job] = field(default_factory=dict)
    last_event: int = 0
    ended: dict[str, JobState] = field(default_factory=dict)  # final states of closed jobs that others depend on
    idle: dict[str, None] = field(default_factory=dict)  # without an attempt at a scheduler, in order of arrival
    leaving: dict[str, None] = field(default_factory=dict)  # with an end that is not recorded
    unwanted: dict[str, None] = field(default_factory=dict)  # that a user or the plane cancelled or withdrew
    at_system: dict[str, dict[str, Attempt]] = field(default_factory=lambda: defaultdict(dict))
    """System -> its live attempts."""
    unwritten: bool = False  # True if a new journal does not have the open jobs yet

    def load(self) -> None:
        """Read all open jobs again, as after a failed write."""
        self.last_event = self.journal.last_event()
        self.jobs.clear()
        self.at_system.clear()
        for index in (self.idle, self.leaving, self.unwanted):
            index.clear()
        for job in self.journal.open_jobs():
            self._hold(job)

    def restore(self) -> int:
        """Write the open jobs to a journal that was removed, emptied or replaced, read it, and return their number.

        The jobs that they depend on may be closed and thus lost, so met dependencies are dropped.

        Raises:
            LeadlineError: the journal cannot be written; call this again.
        """
        if not self.unwritten:
            # A removed file can still be read, with what users wrote into it since the last look.
            with suppress(LeadlineError):
                self.take_in()
        self.unwritten = True
        if self.journal.is_replaced():
            self.journal.start_again()
        jobs = [replace(job, after=self._unmet(job)) for job in self.jobs.values()]
        details = {"journal": "lost", "why": "the plane wrote the job again from its memory"}
        self.journal.restore(jobs, [NewEvent(EventKind.FAULT, job.key, details=details) for job in jobs])
        self.unwritten = False
        self.load()
        return len(jobs)

    def take_in(self) -> tuple[Job, ...]:
        """Read the requests that users made since the last call, and return their jobs."""
        self.last_event, keys = self.journal.user_requests(self.last_event)
        jobs = self.journal.jobs_by_key(keys)
        for job in jobs:
            cached = self.jobs.get(job.key)
            if cached is not None:
                self._hold(replace(cached, cancelled=job.cancelled, policy=job.policy))
            elif not job.recorded:
                self._hold(job)
        return jobs

    def write(
        self, *, jobs: Iterable[Job] = (), attempts: Iterable[Attempt] = (), events: Iterable[NewEvent] = (),
        kept: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Write to the journal, then to memory; attempts ``kept`` are not withdrawn any more."""
        jobs, attempts = list(jobs), [self._merged(attempt, kept) for attempt in attempts]
        # The journal first: after a crash, memory must not know more than the disk.
        self.journal.write(jobs=jobs, attempts=attempts, events=events)
        changed: dict[str, Job] = {}
        for job in jobs:
            cached = self.jobs[job.key]
            # What the user decided meanwhile stays.
            cancelled = cached.cancelled or job.cancelled
            changed[job.key] = replace(job, attempts=cached.attempts, cancelled=cancelled, policy=cached.policy)
        for attempt in attempts:
            # The same write may have changed the job itself.
            job = changed.get(attempt.job) or self.jobs[attempt.job]
            changed[job.key] = with_attempt(job, attempt)
        for job in changed.values():
            self._hold(job)

    def current(self, attempt: Attempt) -> Attempt:
        """Return an attempt as it is now."""
        attempts = self.jobs[attempt.job].attempts if attempt.job in self.jobs else ()
        return next((current for current in attempts if current.key == attempt.key), attempt)

    def _merged(self, attempt: Attempt, kept: Collection[str]) -> Attempt:
        """Return an attempt with the flags that the rounds of other systems set while its scheduler was called."""
        now = self.current(attempt)
        withdrawn = (attempt.withdrawn or now.withdrawn) and attempt.key not in kept
        return replace(attempt, withdrawn=withdrawn, begins=attempt.begins or now.begins)

    def note_failure(self, system: str, rhythm: PollSchedule, why: str) -> None:
        """Store that a system did not answer, and when it is tried again: one event, which later failures update."""
        rhythm.failed(why)
        now_s = rhythm.clock.now_s()
        details: EventDetails = {"system": system, "why": why, "times": rhythm.failures, "last_at": iso_utc(now_s),
                   "next_at": iso_utc(now_s + rhythm.wait_s)}  # fmt: skip
        rhythm.outage = self.journal.put_event(rhythm.outage, NewEvent(EventKind.FAULT, details=details))

    def note_answer(self, system: str) -> None:
        """Store the end of an outage."""
        self.write(events=[NewEvent(EventKind.POLL, details={"system": system, "answers": "again"})])

    def close(self, job: Job, state: JobState, why: str) -> None:
        """Close a job that has no live attempt."""
        closed, events = closed_job(job, state, why)
        self.write(jobs=[closed], events=events)

    def live(self, system: str) -> Iterator[tuple[Job, Attempt]]:
        """Yield the live attempts at a system, with their jobs."""
        for attempt in self.at_system[system].values():
            yield self.jobs[attempt.job], attempt

    def end_of(self, key: str) -> JobState | None:
        """Return the final state of a job; None if it is open or unknown."""
        if key not in self.ended and key not in self.jobs:
            for job in self.journal.jobs_by_key([key]):
                if job.closed:
                    self.ended[key] = job.state
        return self.ended.get(key)

    def knows(self, key: str) -> bool:
        """Return whether a job is in memory or in the journal."""
        return key in self.jobs or key in self.ended or bool(self.journal.jobs_by_key([key]))

    def _unmet(self, job: Job) -> tuple[str, ...]:
        """Return the dependencies that still keep a job from its first attempt."""
        if job.attempts:
            return ()
        return tuple(key for key in job.after if key not in self.ended or not job.after_kind.allows(self.ended[key]))

    def _hold(self, job: Job) -> None:
        """Store a job in memory, or drop it if it is finished."""
        if job.closed:
            self.ended[job.key] = job.state
        is_finished = job.closed and job.recorded
        if is_finished:
            self.jobs.pop(job.key, None)
        else:
            self.jobs[job.key] = job
        for attempt in job.attempts:
            if attempt.live and not is_finished:
                self.at_system[attempt.place.system][attempt.key] = attempt
            else:
                self.at_system[attempt.place.system].pop(attempt.key, None)
        live = job.live_attempts
        unrecorded = job.closed or any(not attempt.live and not attempt.recorded for attempt in job.attempts)
        unwanted = job.cancelled or any(attempt.withdrawn for attempt in live)
        idle = not live and not job.closed
        for index, applies in ((self.idle, idle), (self.leaving, unrecorded), (self.unwanted, unwanted)):
            # A key keeps its position.
            if applies and not is_finished:
                index.setdefault(job.key)
            else:
                index.pop(job.key, None)


def closed_job(job: Job, state: JobState, why: str) -> tuple[Job, list[NewEvent]]:
    """Return a closed job and the events about it; nothing is written yet."""
    event = NewEvent(EventKind.SETTLED, job.key, "", {"state": state.value, "why": why})
    return replace(job, state=state, reason=why, plan=None), [event]


def with_attempt(job: Job, attempt: Attempt) -> Job:
    """Return a job with an attempt, in place of the one with that key or as its last one."""
    attempts = {past.key: past for past in job.attempts} | {attempt.key: attempt}
    return replace(job, attempts=tuple(attempts.values()))
