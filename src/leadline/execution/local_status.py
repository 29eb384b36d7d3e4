"""Say what a job of this machine's queue is, in the words of every scheduler."""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from leadline.core.jobs import JobState
from leadline.execution.local_submissions import Taken
from leadline.execution.queue import Entry, ended_outcome, last_line, log_path
from leadline.execution.scheduler import Status
from leadline.execution.wrapper.outcome import Outcome


def status_of(folder: Path, entry: Entry, taken: Taken, expected: Mapping[str, float]) -> Status:
    """Return a job's status; ``expected`` are the starts (epoch) of those that wait for room, by key in their order."""
    common = Status(entry.state, submitted_s=taken.made_s, walltime_s=entry.spec.resources.walltime_s, nodes=1)
    if entry.state is JobState.PENDING:
        start_s = expected.get(entry.key, math.inf)
        why = _why_waiting(entry, taken, expected)
        return replace(common, reason=why, expected_start_s=start_s if start_s < math.inf else None)
    begun = entry.pid is not None
    started_s = _epoch_s(entry.started_at) if begun else None
    common = replace(common, started_s=started_s, node=entry.host)
    return common if entry.outcome is None else _ended(folder, entry, entry.outcome, common)


def vanished(folder: Path, entry: Entry, interim: Outcome | None, *, cancelled: bool) -> Outcome:
    """Return the outcome of a job whose wrapper ended without one: what was measured up to then is a lower bound."""
    state = JobState.CANCELLED if cancelled else JobState.NODE_FAIL
    said = last_line(log_path(folder, entry))
    reason = "cancelled" if cancelled else f"its wrapper was killed{f': {said}' if said else ''}"
    ended = ended_outcome(entry, state, reason)
    if interim is None:
        return ended
    return replace(interim, state=state, ended_at=ended.ended_at, reason=reason)


def _ended(folder: Path, entry: Entry, outcome: Outcome, common: Status) -> Status:
    elapsed, memory = (outcome.measured.get(name) for name in ("elapsed_s", "host_memory_bytes"))
    said = "" if entry.state is JobState.COMPLETED else last_line(log_path(folder, entry))
    return replace(
        common,
        reason=outcome.reason,
        ended_s=_epoch_s(outcome.ended_at),
        elapsed_s=elapsed.value if elapsed else None,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        memory_bytes=round(memory.value) if memory else None,
        evidence=(said,) if said else (),
    )


def _why_waiting(entry: Entry, taken: Taken, expected: Mapping[str, float]) -> str:
    """Say why a job waits, in Slurm's words."""
    if entry.key in expected:
        return "Resources" if entry.key == next(iter(expected)) else "Priority"
    if taken.submission.after:
        return "Dependency"
    return "JobArrayTaskLimit" if taken.submission.most is not None else "Priority"


def _epoch_s(at: str | None) -> float | None:
    return None if at is None else datetime.fromisoformat(at).timestamp()
