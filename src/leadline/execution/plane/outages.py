"""Store each outage of a system as one event, which later failures update."""

from leadline.core.plane import EventKind
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.execution.plane.poll_interval import PollSchedule


def note_failure(book: JobCache, clock: Clock, system: str, rhythm: PollSchedule, why: str) -> None:
    """Store that a system did not answer, and when it is tried again."""
    rhythm.failed(why)
    now_s = clock.now_s()
    details: EventDetails = {"system": system, "why": why, "times": rhythm.failures, "last_at": iso_utc(now_s),
               "next_at": iso_utc(now_s + rhythm.wait_s)}  # fmt: skip
    rhythm.outage = book.journal.put_event(rhythm.outage, NewEvent(EventKind.FAULT, details=details))


def note_answer(book: JobCache, system: str, rhythm: PollSchedule) -> None:
    """Store the end of an outage, if there was one."""
    if rhythm.failures and rhythm.answered(changed=True):
        book.write(events=[NewEvent(EventKind.POLL, details={"system": system, "answers": "again"})])
