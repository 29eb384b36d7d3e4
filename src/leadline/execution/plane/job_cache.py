"""The open jobs of the journal in memory: written there first, always."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind, Job
from leadline.execution.plane.journal import NewEvent, PlaneJournal


@dataclass(slots=True)
class JobCache:
    """The open jobs by key; what another process adds or cancels is seen by ``take_in``.

    Thousands of jobs may be open of which next to none changes, so each step looks only at those that concern it:
    ``idle`` have no attempt at a scheduler, ``leaving`` have an end that is not recorded, and of ``unwanted`` a user or
    the plane took something back. They are in the order in which they came to be so.
    """

    journal: PlaneJournal
    jobs: dict[str, Job] = field(default_factory=dict)
    seen: int = 0
    ended: dict[str, JobState] = field(default_factory=dict)
    """How closed jobs ended that others wait for."""
    idle: dict[str, None] = field(default_factory=dict)
    leaving: dict[str, None] = field(default_factory=dict)
    unwanted: dict[str, None] = field(default_factory=dict)
    at_system: dict[str, dict[str, Attempt]] = field(default_factory=lambda: defaultdict(dict))
    """System → the attempts that are, or may be, at its scheduler."""

    def load(self) -> None:
        """Read all open jobs anew, as after a write that failed."""
        self.seen = self.journal.last_event()
        self.jobs.clear()
        self.at_system.clear()
        for index in (self.idle, self.leaving, self.unwanted):
            index.clear()
        for job in self.journal.open_jobs():
            self._hold(job)

    def take_in(self) -> None:
        """Take in what users asked since."""
        self.seen, keys = self.journal.user_requests(self.seen)
        for job in self.journal.jobs_by_key(keys):
            mine = self.jobs.get(job.key)
            if mine is not None:
                self._hold(replace(mine, cancelled=job.cancelled))
            elif not job.recorded:
                self._hold(job)

    def write(
        self, *, jobs: Iterable[Job] = (), attempts: Iterable[Attempt] = (), notes: Iterable[NewEvent] = ()
    ) -> None:
        """Write to the journal, then to memory: what memory holds is on the disk."""
        jobs, attempts = list(jobs), list(attempts)
        self.journal.write(jobs=jobs, attempts=attempts, events=notes)
        changed: dict[str, Job] = {}
        for job in jobs:
            held = self.jobs[job.key]
            changed[job.key] = replace(job, attempts=held.attempts, cancelled=held.cancelled or job.cancelled)
        for attempt in attempts:
            job = changed.get(attempt.job) or self.jobs[attempt.job]
            changed[job.key] = replace(job, attempts=_put(job.attempts, attempt))
        for job in changed.values():
            self._hold(job)

    def close(self, job: Job, state: JobState, why: str) -> None:
        """Close a job that has no attempt at any scheduler."""
        closed, note = closed_job(job, state, why)
        self.write(jobs=[closed], notes=[note])

    def live(self, system: str) -> Iterator[tuple[Job, Attempt]]:
        """Yield the attempts that are, or may be, at a system's scheduler."""
        for attempt in self.at_system[system].values():
            yield self.jobs[attempt.job], attempt

    def end_of(self, key: str) -> JobState | None:
        """Return how a job ended; ``None`` if it has not, or if there is none of that key."""
        if key not in self.ended and key not in self.jobs:
            for job in self.journal.jobs_by_key([key]):
                if job.closed:
                    self.ended[key] = job.state
        return self.ended.get(key)

    def _hold(self, job: Job) -> None:
        """Keep a job as it is now, or let go of one for which nothing is left to do."""
        if job.closed:
            self.ended[job.key] = job.state
        gone = job.closed and job.recorded
        if gone:
            self.jobs.pop(job.key, None)
        else:
            self.jobs[job.key] = job
        for attempt in job.attempts:
            if attempt.live and not gone:
                self.at_system[attempt.place.system][attempt.key] = attempt
            else:
                self.at_system[attempt.place.system].pop(attempt.key, None)
        live = job.live_attempts
        unrecorded = job.closed or any(not one.live and not one.recorded for one in job.attempts)
        _mark(self.idle, job.key, is_so=not gone and not live and not job.closed)
        _mark(self.leaving, job.key, is_so=not gone and unrecorded)
        _mark(self.unwanted, job.key, is_so=not gone and (job.cancelled or any(one.withdrawn for one in live)))


def closed_job(job: Job, state: JobState, why: str) -> tuple[Job, NewEvent]:
    """Return a job as it is closed, and the event that tells it; both are yet to be written."""
    closed = replace(job, state=state, reason=why, plan=None)
    return closed, NewEvent(EventKind.SETTLED, job.key, "", {"state": state.value, "why": why})


def _mark(index: dict[str, None], key: str, *, is_so: bool) -> None:
    """Put a key into an index, where it keeps its place, or take it out."""
    if is_so:
        index.setdefault(key)
    else:
        index.pop(key, None)


def _put(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """Replace the attempt of that key, or append it."""
    if any(one.key == attempt.key for one in attempts):
        return tuple(attempt if one.key == attempt.key else one for one in attempts)
    return (*attempts, attempt)
