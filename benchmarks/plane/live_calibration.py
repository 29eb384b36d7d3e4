"""Fit the errors of live estimates on polls of finished runs, by the share of the job done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.progress import Progress
from leadline.estimators.progress.live_estimates import (
    ENOUGH_ERRORS,
    MOST_SPREAD,
    SHARES,
    LiveEstimate,
    LiveTable,
    combine_evidence,
    evidence_before,
    log_odds,
    memory_evidence,
    remaining_by_progress,
)

# The share of normal errors within one standard deviation.
USUAL = 0.68


@dataclass(frozen=True, slots=True)
class ProgressPoll:
    """One poll of a run that has ended since.

    ``memory`` holds the samples up to then, as ``live_memory`` takes them. ``total_s`` and ``peak_memory_bytes`` are of
    the whole run. ``before`` is the estimate of ``total_s`` made before the start.
    """

    run: str
    at_s: float
    progress: Progress | None
    total_s: float
    before: Interval | None = None
    memory: tuple[tuple[float, float], ...] = ()
    peak_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveError:
    """One error of a live estimate at the ``share`` that it took as done.

    The ``score`` is ln(remaining ÷ predicted remaining) in the estimate's own spreads; for memory that of the peak.
    Polls of one run share ``run``.
    """

    share: float
    score: float
    run: str


def calibrate_live(polls: Sequence[ProgressPoll]) -> LiveTable:
    """Return the table of errors of live estimates over the polls of finished runs.

    Raises:
        InvalidInput: fewer than ``ENOUGH_ERRORS`` runs showed progress.
    """
    plain = LiveTable((0.0,) * len(SHARES), {"both": (), "seen": (), "memory": ()})
    running = [poll for poll in polls if poll.total_s > poll.at_s]
    excess = _excess(running, plain)
    table = LiveTable(excess, plain.scores)
    errors_by_kind: dict[str, list[LiveError]] = {"both": [], "seen": [], "memory": []}
    for poll in running:
        evidence, _ = remaining_by_progress(poll.progress, poll.at_s, table)
        if evidence is None:
            continue
        remaining_log = math.log(poll.total_s - poll.at_s)
        for kind, before in (("seen", None), ("both", poll.before)):
            if kind == "both" and before is None:
                continue
            combined, _ = combine_evidence(None if before is None else evidence_before(before, poll.at_s), evidence)
            share = poll.at_s / (poll.at_s + math.exp(combined.log))
            errors_by_kind[kind].append(LiveError(share, (remaining_log - combined.log) / combined.spread, poll.run))
        errors_by_kind["memory"] += _memory(
            poll, LiveEstimate(Interval(poll.at_s + math.exp(combined.log), 0.0, math.inf), share)
        )
    runs = {poll.run for poll in errors_by_kind["seen"]}
    if len(runs) < ENOUGH_ERRORS:
        raise InvalidInput(f"only {len(runs)} runs showed progress, and {ENOUGH_ERRORS} are needed: watch more of them")
    return LiveTable(excess, {kind: collect_errors(errors) for kind, errors in errors_by_kind.items()}, len(runs))


def _excess(polls: Sequence[ProgressPoll], plain: LiveTable) -> tuple[float, ...]:
    """Return the spread to add at each share so that 68 % of errors fall within one deviation."""
    squares: list[list[float]] = [[] for _ in SHARES]
    for poll in polls:
        evidence, _ = remaining_by_progress(poll.progress, poll.at_s, plain)
        if evidence is not None:
            error = math.log(poll.total_s - poll.at_s) - evidence.log
            share = poll.at_s / (poll.at_s + math.exp(evidence.log))
            squares[nearest_share(share)].append(error**2 - evidence.spread**2)
    excess = []
    for near in squares:
        ranked = sorted(near)
        usual = ranked[min(math.ceil(USUAL * len(ranked)), len(ranked)) - 1] if ranked else MOST_SPREAD**2
        excess.append(round(math.sqrt(max(usual, 0.0)), 4))
    return tuple(excess)


def _memory(poll: ProgressPoll, elapsed: LiveEstimate) -> list[LiveError]:
    """Return the error of the peak predicted from memory samples, if it was measured."""
    evidence = memory_evidence(poll.memory, poll.progress.startup_s if poll.progress else None, elapsed)
    if evidence is None or poll.peak_memory_bytes <= 0:
        return []
    return [LiveError(elapsed.done, (math.log(poll.peak_memory_bytes) - evidence.log) / evidence.spread, poll.run)]


def collect_errors(errors: Sequence[LiveError]) -> tuple[tuple[float, ...], ...]:
    """Return the sorted scores at each of ``SHARES``; each run adds its nearest poll."""
    bands = []
    for place, share in enumerate(SHARES):
        nearest: dict[str, LiveError] = {}
        for error in errors:
            if nearest_share(error.share) != place:
                continue
            kept = nearest.get(error.run)
            if kept is None or abs(error.share - share) < abs(kept.share - share):
                nearest[error.run] = error
        bands.append(tuple(sorted(round(error.score, 4) for error in nearest.values())))
    return tuple(bands)


def nearest_share(share: float) -> int:
    """Return the number of the nearest of ``SHARES``, in log-odds."""
    return min(range(len(SHARES)), key=lambda place: abs(log_odds(SHARES[place]) - log_odds(share)))
