"""The open jobs of the journal in memory: written there first, always."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, Job
from leadline.execution.plane.journal import Note, PlaneJournal


@dataclass(slots=True)
class Book:
    """The open jobs by key; what another process adds or cancels is seen by ``take_in``."""

    journal: PlaneJournal
    jobs: dict[str, Job] = field(default_factory=dict)
    seen: int = 0
    ended: dict[str, JobState] = field(default_factory=dict)
    """How closed jobs ended that others wait for."""

    def load(self) -> None:
        """Read all open jobs anew, as after a write that failed."""
        self.seen = self.journal.last_event()
        self.jobs = {job.key: job for job in self.journal.open_jobs()}

    def take_in(self) -> None:
        """Take in what users asked since."""
        self.seen, keys = self.journal.asked(self.seen)
        for job in self.journal.some(keys):
            mine = self.jobs.get(job.key)
            if mine is not None:
                self.jobs[job.key] = replace(mine, cancelled=job.cancelled)
            elif not job.recorded:
                self.jobs[job.key] = job

    def write(self, *, jobs: Iterable[Job] = (), attempts: Iterable[Attempt] = (), notes: Iterable[Note] = ()) -> None:
        """Write to the journal, then to memory: what memory holds is on the disk."""
        jobs, attempts = list(jobs), list(attempts)
        self.journal.write(jobs=jobs, attempts=attempts, notes=notes)
        for job in jobs:
            held = self.jobs[job.key].attempts
            self.jobs[job.key] = replace(job, attempts=held)
        for attempt in attempts:
            job = self.jobs[attempt.job]
            self.jobs[job.key] = replace(job, attempts=_put(job.attempts, attempt))
        for job in jobs:
            if job.closed:
                self.ended[job.key] = job.state
            if job.closed and job.recorded:
                del self.jobs[job.key]

    def live(self, system: str) -> Iterator[tuple[Job, Attempt]]:
        """Yield the attempts that are, or may be, at a system's scheduler."""
        for job in self.jobs.values():
            for attempt in job.attempts:
                if attempt.live and attempt.place.system == system:
                    yield job, attempt

    def end_of(self, key: str) -> JobState | None:
        """Return how a job ended; ``None`` if it has not, or if there is none of that key."""
        if key not in self.ended and key not in self.jobs:
            for job in self.journal.some([key]):
                if job.closed:
                    self.ended[key] = job.state
        return self.ended.get(key)


def _put(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """Replace the attempt of that key, or append it."""
    if any(one.key == attempt.key for one in attempts):
        return tuple(attempt if one.key == attempt.key else one for one in attempts)
    return (*attempts, attempt)
