"""The causes that the plane found, compared with the faults that were injected."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plane.fault_jobs import DesignedJob
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, FailureCause, Job
from leadline.execution.clock import epoch_s
from leadline.execution.plane.poll_interval import DEFAULT_INTERVALS
from leadline.execution.plane.watcher import FORGOTTEN

_BY_DESIGN: Mapping[str, frozenset[FailureCause]] = {
    "fails": frozenset({FailureCause.PROGRAM, FailureCause.UNKNOWN}),
    "hungry": frozenset({FailureCause.HOST_MEMORY}),
    "cannot follow": frozenset({FailureCause.DEPENDENCY}),
}
"""Causes of ends that a job's design has. An exit code without a message has no known cause."""
_BY_OUTAGE = frozenset({FailureCause.NODE, FailureCause.TRANSIENT})
"""Causes of ends after a daemon of Slurm was down."""
WITHIN_S = 180.0
"""The plane finds what an outage did within this time, because Slurm waits for a silent node."""
DOWN_S = 60.0
"""An outage lasts at most half a minute, so it does not explain the end of an attempt that started later than this."""
FORGOTTEN_WITHIN_S = WITHIN_S + DEFAULT_INTERVALS.killed
"""The plane waits before it calls a started job forgotten."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A daemon that went down, or an accounting that fell silent.

    Attributes:
        at_s: Seconds since the epoch.
        node: The node whose jobs it concerned; empty for all jobs.
    """

    at_s: float
    node: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plane's last diagnosis of an ended attempt, and its time in seconds since the epoch."""

    attempt: str
    state: JobState
    cause: FailureCause | None
    evidence: str
    at_s: float


def read_verdicts(path: Path) -> dict[str, Verdict]:
    """Return the last verdict on each attempt, from the file that the plane's host appends to."""
    if not path.exists():
        return {}
    verdicts: dict[str, Verdict] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        attempt, state, cause, evidence, at_s = json.loads(line)
        verdicts[attempt] = Verdict(attempt, JobState(state), FailureCause(cause) if cause else None, evidence, at_s)
    return verdicts


def wrong_causes(
    designs: Iterable[DesignedJob],
    jobs: Mapping[str, Job],
    verdicts: Mapping[str, Verdict],
    staff: Mapping[str, FailureCause],
    outages: Collection[Outage],
    silences: Collection[Outage] = (),
) -> tuple[str, ...]:
    """Return a sentence for each attempt whose cause no design and no injected fault explains.

    Args:
        designs: the jobs as designed.
        jobs: the jobs of the journal by key.
        verdicts: the plane's diagnoses by attempt.
        staff: attempts that the site's staff ended, and the cause to be found.
        outages: daemons and nodes that went down.
        silences: times from which nobody could say who cancelled a job.
    """
    return tuple(
        sentence
        for design in designs
        for attempt in (jobs[design.job.key].attempts if design.job.key in jobs else ())
        if attempt.key in verdicts
        and (
            sentence := _wrong_cause(design, attempt, verdicts[attempt.key], staff.get(attempt.key), outages, silences)
        )
    )


def _wrong_cause(
    design: DesignedJob,
    attempt: Attempt,
    verdict: Verdict,
    by_staff: FailureCause | None,
    outages: Collection[Outage],
    silences: Collection[Outage],
) -> str:
    allowed = set(_BY_OUTAGE) if _precede(outages, attempt, verdict) else set()
    if by_staff is not None:
        allowed.add(by_staff)
    else:
        allowed |= _BY_DESIGN.get(design.kind, frozenset())
    # Only the accounting has who cancelled a job, and the newer Slurm drops it when the controller starts anew.
    if by_staff is FailureCause.ADMINISTRATOR and _precede(silences, attempt, verdict):
        allowed.add(FailureCause.UNKNOWN)
    # An attempt may complete before it hears of what happened to it.
    if verdict.cause in allowed or (verdict.cause is None and verdict.state is JobState.COMPLETED):
        return ""
    cause = verdict.cause.value if verdict.cause else "no cause"
    expected = ", ".join(sorted(cause.value for cause in allowed)) or "to complete"
    return (
        f"{attempt.key} ({design.kind}) is {verdict.state.value} by {cause} ({verdict.evidence}), expected {expected}"
    )


def _precede(outages: Collection[Outage], attempt: Attempt, verdict: Verdict) -> bool:
    """Return whether an outage shortly before a verdict concerned its attempt."""
    within_s = FORGOTTEN_WITHIN_S if FORGOTTEN.reason in verdict.evidence else WITHIN_S
    started_s = epoch_s(attempt.started_at) if attempt.started_at else 0.0  # by the clock of Slurm, which is right
    return any(
        0.0 <= verdict.at_s - outage.at_s <= within_s
        and started_s <= outage.at_s + DOWN_S
        and outage.node in ("", attempt.node or outage.node)
        for outage in outages
    )
