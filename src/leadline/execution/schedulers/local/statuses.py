"""Statuses and outcomes of the jobs in this machine's queue."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from leadline.core.jobs import JobState
from leadline.execution.clock import epoch_s
from leadline.execution.schedulers.attempt_files import last_log_line
from leadline.execution.schedulers.local.submissions import (
    QueueEntry,
    StoredSubmission,
    log_path,
    unmeasured_outcome,
)
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome


def job_status(
    folder: Path, entry: QueueEntry, stored: StoredSubmission, expected: Mapping[str, float]
) -> SchedulerStatus:
    """Return a job's status; ``expected`` maps waiting jobs to their start (epoch), in queue order."""
    common = SchedulerStatus(
        entry.state, submitted_s=stored.made_s, walltime_s=entry.spec.resources.walltime_s, nodes=1
    )
    if entry.state is JobState.PENDING:
        start_s = expected.get(entry.key, math.inf)
        reason = _why_waiting(entry, stored, expected)
        return replace(common, reason=reason, expected_start_s=start_s if start_s < math.inf else None)
    was_started = entry.pid is not None
    started_s = epoch_s(entry.started_at) if was_started and entry.started_at else None
    common = replace(common, started_s=started_s, node=entry.host)
    return common if entry.outcome is None else _final_status(folder, entry, entry.outcome, common)


def vanished_outcome(folder: Path, entry: QueueEntry, interim: JobOutcome | None, *, cancelled: bool) -> JobOutcome:
    """Return the outcome of a job whose wrapper wrote none; measured amounts are lower bounds."""
    state = JobState.CANCELLED if cancelled else JobState.NODE_FAIL
    last_words = last_log_line(log_path(folder, entry))
    reason = "cancelled" if cancelled else f"its wrapper was killed{f': {last_words}' if last_words else ''}"
    ended = unmeasured_outcome(entry, state, reason)
    if interim is None:
        return ended
    return replace(interim, state=state, ended_at=ended.ended_at, reason=reason)


def _final_status(folder: Path, entry: QueueEntry, outcome: JobOutcome, common: SchedulerStatus) -> SchedulerStatus:
    elapsed, memory = (outcome.measured.get(name) for name in ("elapsed_s", "host_memory_bytes"))
    last_words = "" if entry.state is JobState.COMPLETED else last_log_line(log_path(folder, entry))
    return replace(
        common,
        reason=outcome.reason,
        ended_s=epoch_s(outcome.ended_at) if outcome.ended_at else None,
        elapsed_s=elapsed.value if elapsed else None,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        memory_bytes=round(memory.value) if memory else None,
        evidence=(last_words,) if last_words else (),
    )


def _why_waiting(entry: QueueEntry, stored: StoredSubmission, expected: Mapping[str, float]) -> str:
    """Return why a job waits, as Slurm's reason code."""
    if entry.key in expected:
        return "Resources" if entry.key == next(iter(expected)) else "Priority"
    if stored.submission.after:
        return "Dependency"
    return "JobArrayTaskLimit" if stored.submission.most is not None else "Priority"
