"""What became of jobs under faults, counted from the ledger that they wrote themselves and from the plane's journal."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.plane.fault_jobs import Design, Run
from leadline.core.jobs import JobState

UNSEEN_S = 1.0
"""So soon before its node died a job's end may have been seen by nobody, its measuring wrapper included."""


@dataclass(frozen=True, slots=True)
class Death:
    """A node that lost all its processes."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Tally:
    """One sentence for each job that was lost, ran twice, or has the wrong state at last."""

    lost: tuple[str, ...]
    twice: tuple[str, ...]
    wrong: tuple[str, ...]


def tally(
    designs: Collection[Design], states: Mapping[str, JobState], runs: Iterable[Run], deaths: Collection[Death]
) -> Tally:
    """Return what went wrong; ``states`` are those of the journal, PENDING for what is not closed."""
    by_job: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    return Tally(
        tuple(said for one in designs if (said := _lost(one, states.get(one.job.key), by_job[one.job.key]))),
        tuple(said for one in designs if (said := _twice(one, by_job[one.job.key], deaths))),
        tuple(said for one in designs if (said := _wrong(one, states.get(one.job.key)))),
    )


def _lost(design: Design, state: JobState | None, runs: list[Run]) -> str:
    """Return in which way a job was lost: it is not closed, nothing is known of it, or it did not run to its end."""
    key = design.job.key
    if state is None or not (state.final or state is JobState.UNKNOWN):
        return f"{key} ({design.kind}) was never closed"
    if state is JobState.UNKNOWN:
        return f"{key} ({design.kind}) was given up"
    if design.code is not None and not any(run.code == design.code for run in runs):
        return f"{key} ({design.kind}) is {state.value} and never ran to its end"
    return ""


def _twice(design: Design, runs: list[Run], deaths: Collection[Death]) -> str:
    """Return how a job ran twice: beside itself, or after it had come to its own end, or though it must not run."""
    key, ordered = design.job.key, sorted(runs, key=lambda run: run.began_s)
    if design.code is None:
        return f"{key} ({design.kind}) must not run and did" if ordered else ""
    for at, run in enumerate(ordered):
        for later in ordered[at + 1 :]:
            if later.began_s < _over_s(run, deaths):
                return f"{key} ({design.kind}) ran twice at once: {run.attempt} and {later.attempt}"
            if run.code == design.code and not _excused(design, run, later, deaths):
                return f"{key} ({design.kind}) was started again by {later.attempt} after {run.attempt} had ended"
    return ""


def _wrong(design: Design, state: JobState | None) -> str:
    if state is None or not state.final or state is design.state:
        return ""
    return f"{design.job.key} ({design.kind}) is {state.value}, and had to end {design.state.value}"


def _over_s(run: Run, deaths: Iterable[Death]) -> float:
    """Return when nothing of a run was left; never, if no end and no death of its node tells it."""
    if run.ended_s is not None:
        return run.ended_s
    return min((one.at_s for one in deaths if one.node == run.node and one.at_s >= run.began_s), default=math.inf)


def _excused(design: Design, run: Run, later: Run, deaths: Iterable[Death]) -> bool:
    """Whether nobody could know that a run had ended: its node died before Slurm heard of it.

    A measured job's end lies on the disk a moment after it, so that only this moment excuses it.
    """
    ended_s = run.ended_s if run.ended_s is not None else math.inf
    latest_s = ended_s + UNSEEN_S if design.job.policy.measured else later.began_s
    return any(one.node == run.node and ended_s <= one.at_s <= latest_s for one in deaths)
