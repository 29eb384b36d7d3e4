"""The causes that the plane found, compared with the faults that were injected."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plane.fault_jobs import DesignedJob
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, FailureCause, Job
from leadline.execution.clock import epoch_s

_BY_DESIGN: Mapping[str, frozenset[FailureCause]] = {
    "fails": frozenset({FailureCause.PROGRAM, FailureCause.UNKNOWN}),
    "hungry": frozenset({FailureCause.HOST_MEMORY}),
    "cannot follow": frozenset({FailureCause.DEPENDENCY}),
}
"""Causes of ends that a job's design has. An exit code without a message has no known cause."""
_BY_OUTAGE = frozenset({FailureCause.NODE, FailureCause.TRANSIENT})
"""Causes of ends while a daemon of Slurm was down."""
AFTER_S = 60.0
"""An outage may end an attempt this long after it began, because Slurm waits for a silent node."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plane's last diagnosis of an ended attempt."""

    attempt: str
    state: JobState
    cause: FailureCause | None
    evidence: str


def read_verdicts(path: Path) -> dict[str, Verdict]:
    """Return the last verdict on each attempt, from the file that the plane's host appends to."""
    if not path.exists():
        return {}
    verdicts: dict[str, Verdict] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        attempt, state, cause, evidence = json.loads(line)
        verdicts[attempt] = Verdict(attempt, JobState(state), FailureCause(cause) if cause else None, evidence)
    return verdicts


def wrong_causes(
    designs: Iterable[DesignedJob],
    jobs: Mapping[str, Job],
    verdicts: Mapping[str, Verdict],
    staff: Mapping[str, FailureCause],
    outages_s: Collection[float],
) -> tuple[str, ...]:
    """Return a sentence for each attempt whose cause no design and no injected fault explains.

    Args:
        designs: the jobs as designed.
        jobs: the jobs of the journal by key.
        verdicts: the plane's diagnoses by attempt.
        staff: attempts that the site's staff ended, and the cause to be found.
        outages_s: when a daemon or a node went down, in seconds since the epoch.
    """
    return tuple(
        sentence
        for design in designs
        for attempt in (jobs[design.job.key].attempts if design.job.key in jobs else ())
        if attempt.key in verdicts
        and (sentence := _wrong_cause(design, attempt, verdicts[attempt.key], staff.get(attempt.key), outages_s))
    )


def _wrong_cause(
    design: DesignedJob,
    attempt: Attempt,
    verdict: Verdict,
    by_staff: FailureCause | None,
    outages_s: Collection[float],
) -> str:
    overlapped = any(_begin_s(attempt) <= at_s <= _end_s(attempt) + AFTER_S for at_s in outages_s)
    allowed = set(_BY_OUTAGE) if overlapped else set()
    if by_staff is not None:
        allowed.add(by_staff)
    else:
        allowed |= _BY_DESIGN.get(design.kind, frozenset())
    # An attempt may complete before it hears of what happened to it.
    if verdict.cause in allowed or (verdict.cause is None and verdict.state is JobState.COMPLETED):
        return ""
    cause = verdict.cause.value if verdict.cause else "no cause"
    expected = ", ".join(sorted(cause.value for cause in allowed)) or "to complete"
    return (
        f"{attempt.key} ({design.kind}) is {verdict.state.value} by {cause} ({verdict.evidence}), expected {expected}"
    )


def _begin_s(attempt: Attempt) -> float:
    return epoch_s(attempt.submitted_at or attempt.noted_at) - AFTER_S


def _end_s(attempt: Attempt) -> float:
    return epoch_s(attempt.ended_at) if attempt.ended_at else float("inf")
