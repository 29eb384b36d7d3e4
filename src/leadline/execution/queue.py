"""What a queue of measured jobs is: the entries of its journal, and what every place that runs them can do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from leadline.core.jobs import JobSpec, JobState
from leadline.execution.wrapper.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of the queue.

    ``attempt`` counts from 1 once it was started, and ``losses`` how often its wrapper vanished under a living queue.
    ``pid`` with ``pid_started`` (seconds since the epoch) name the wrapper on ``host``; ``place`` names the job at a
    scheduler. ``outcome`` is there once it ended; ``lost_s`` is what attempts took that gave no result.
    ``recorded`` says whether whoever owns the queue has taken the outcome over; ``note`` is the owner's own.
    """

    key: str
    spec: JobSpec
    note: str = ""
    state: JobState = JobState.PENDING
    attempt: int = 0
    losses: int = 0
    host: str | None = None
    pid: int | None = None
    pid_started: float | None = None
    place: str | None = None
    started_at: str | None = None
    outcome: Outcome | None = None
    lost_s: float = 0.0
    recorded: bool = False


MOST_LOSSES = 3
"""A job whose wrapper was lost so often under a living queue has failed."""


class JobQueue(Protocol):
    """A place where the jobs of one journal run under the measuring wrapper."""

    @property
    def running(self) -> Mapping[str, Entry]:
        """The jobs that were started here and have not been seen to end, by key."""

    def resume(self) -> None:
        """Take up what an earlier process left: wait for what lives, settle what ended, put back what vanished."""

    def start(self, candidates: Iterable[Entry]) -> int:
        """Start candidates in their order while there is room; return how many were started."""

    def wait(self, timeout_s: float) -> list[Entry]:
        """Return the jobs that ended, after ``timeout_s`` at the latest.

        An entry whose state is PENDING was put back: it ended without a result of its own.
        """

    def end(self) -> None:
        """Tell every running job to end; each is put back, and comes out of ``wait`` so."""


def result_path(folder: Path, entry: Entry) -> Path:
    """Return the file of an attempt's outcome; every attempt has its own, so that none is taken for another's."""
    return folder / "runs" / f"{entry.key}-{entry.attempt}.json"


def log_path(folder: Path, entry: Entry) -> Path:
    """Return the file of an attempt's output."""
    return result_path(folder, entry).with_suffix(".log")


def last_line(path: Path, *, most: int = 300) -> str:
    """Return the last line of a job's log that is neither blank nor the wrapper's own, cut to ``most`` characters.

    It is empty where there is none.
    """
    lines = tail(path, 8192).splitlines()
    said = next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("leadline: ")), "")
    return said if len(said) <= most else f"{said[: most - 1]}…"


def tail(path: Path, most_bytes: int) -> str:
    """Return the last of a file; nothing of one that cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - most_bytes, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def ended_outcome(entry: Entry, state: JobState, reason: str) -> Outcome:
    """Return the outcome of an attempt whose wrapper was ended before it could write one."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Outcome(state, entry.started_at or now, entry.host or "", entry.spec.command, ended_at=now, reason=reason)
