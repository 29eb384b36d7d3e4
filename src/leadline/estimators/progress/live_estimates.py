"""Time and memory of a running job, from the estimate before its start and its progress.

Both sources describe the remaining time in logarithms, so a prediction is never in the past. The earlier estimate is
conditioned on the job still running. The progress is extrapolated like a probe's (``loop_extrapolation``). Each source
counts by its spread. The interval comes from the errors on polls of earlier runs, by the share done
(``benchmarks/plane/live_calibration.py``).
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from leadline.core.estimate import NORMAL_90, Interval
from leadline.core.frozen import Frozen
from leadline.core.progress import Progress
from leadline.estimators.progress.loop_extrapolation import DRIFT, extrapolate_loops

# The shares done around which errors are gathered; between them quantiles are interpolated.
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
ENOUGH_ERRORS = 19  # errors below which those of the neighbouring shares count too: so many have a 5 % tail


class LiveTable(Frozen):
    """Errors of live estimates at each of ``SHARES``."""

    excess: tuple[float, ...]  # spread of progress forecasts in addition to their own
    # Sorted, by evidence: `both` for progress with an earlier estimate, `seen` for progress alone, or `memory`.
    scores: Mapping[str, tuple[tuple[float, ...], ...]]
    runs: int = 0

    def bounds(self, kind: str, share: float, level: float) -> tuple[float, float]:
        """Return the quantiles of the scores that hold a new score with probability ``level`` (0 to 1)."""
        # They are conformal: rank (n + 1) tail of n scores, or the extreme ones where n is too small.
        tail = (1 - level) / 2
        bands = [self._band(kind, place) for place in range(len(SHARES))]
        low = [-_upper_quantile([-score for score in band], tail) for band in bands]
        return _interpolate(low, share), _interpolate([_upper_quantile(band, tail) for band in bands], share)

    def _band(self, kind: str, place: int) -> list[float]:
        """Return the scores at a share, with those of its neighbours as far as are needed."""
        every = self.scores[kind]
        for reach in range(len(SHARES)):
            band = [score for near in every[max(place - reach, 0) : place + reach + 1] for score in near]
            if len(band) >= ENOUGH_ERRORS:
                return band
        return band


def _upper_quantile(scores: Sequence[float], tail: float) -> float:
    """Return the value that a new score exceeds with probability ``tail`` at most."""
    ranked = sorted(scores)
    rank = math.ceil((len(ranked) + 1) * (1 - tail))
    return ranked[min(rank, len(ranked)) - 1] if ranked else math.inf


def _interpolate(figures: Sequence[float], share: float) -> float:
    """Return a figure between those of ``SHARES``, along log-odds."""
    at, odds = log_odds(share), [log_odds(share) for share in SHARES]
    place = bisect_left(odds, at)
    if place in (0, len(odds)):
        return figures[min(place, len(odds) - 1)]
    part = (at - odds[place - 1]) / (odds[place] - odds[place - 1])
    return (1 - part) * figures[place - 1] + part * figures[place]


def log_odds(share: float) -> float:
    """Return ln(share ÷ (1 − share)), finite at both ends."""
    inside = min(max(share, 1e-6), 1 - 1e-6)
    return math.log(inside / (1 - inside))


LEVEL = 0.9
# Work since the last look counts as done up to this share of the rest, so an unseen stall is not ignored.
UNSEEN = 0.2
LEAST_LEFT_S = 1e-3
# Finished units are reported within this time; a job silent for longer has lost the time.
REPORT_S = 20.0
MOST_SPREAD = 3.0
LEAST_SPREAD = 0.01
FARTHEST = 10.0  # largest log distance of a bound from its point
MEMORY_NOISE = 0.02  # peaks of two runs of one job differ by this share; growth below it is none


class Evidence(Frozen):
    """One source's estimate: the natural logarithm ``log`` and its standard deviation ``spread``."""

    log: float
    spread: float


class LiveEstimate(Frozen):
    """Total time or memory of a running job; ``None`` if unknown, with the reason in ``unknown``."""

    total: Interval | None
    done: float = 0.0  # the estimated share that is over, 0 to 1
    seen_weight: float = 0.0  # weight of the progress against the earlier estimate, 0 to 1
    unknown: str = ""


def live_elapsed(
    before: Interval | None,
    progress: Progress | None,
    at_s: float,
    table: LiveTable,
    *,
    units: int | None = None,
    looked_s: float | None = None,
) -> LiveEstimate:
    """Return the whole time of a job that has run for ``at_s`` seconds; its low bound exceeds them.

    ``before`` is the estimate of the whole job. ``units`` is its number of units of work where the script does not show
    it. ``looked_s`` is the job's age at the last look at its progress. Without progress the interval is that of
    ``before`` for a job that still runs.

    Raises:
        ValueError: ``at_s`` is below zero.
    """
    if at_s < 0:
        raise ValueError(f"a job cannot have run for {at_s} s")
    evidence, why = remaining_by_progress(progress, at_s, table, units=units, looked_s=looked_s)
    if evidence is None:
        if before is None:
            return LiveEstimate(None, unknown=why)
        point, low, high = (
            at_s + remaining_by_estimate(before, at_s, probability)
            for probability in (0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2)
        )
        total = Interval(point, low, high, LEVEL)
        return LiveEstimate(total, done=at_s / total.point)
    prior = None if before is None else evidence_before(before, at_s)
    combined, weight = combine_evidence(prior, evidence)
    done = at_s / (at_s + math.exp(combined.log))
    low, high = table.bounds("both" if prior else "seen", done, LEVEL)
    return LiveEstimate(_make_interval(combined, low, high, past=at_s), done, weight)


def remaining_by_progress(
    progress: Progress | None, at_s: float, table: LiveTable, *, units: int | None = None, looked_s: float | None = None
) -> tuple[Evidence | None, str]:
    """Return the remaining seconds by the progress alone, or ``None`` and the reason."""
    # The remaining work is that not yet done at the last look, less what was done since. A job that spent most of its
    # age outside the loop may not have reached its work yet, which widens the spread.
    scaled = extrapolate_loops(progress, units=units)
    if scaled.elapsed_s is None or progress is None:
        return None, scaled.unknown.get("elapsed_s", "")
    whole = scaled.elapsed_s
    work_s = whole.point - (scaled.startup_s or 0.0) - (scaled.warmup_s or 0.0)
    count = next(loop.count for loop in progress.levels if loop.name == scaled.unit)
    looked = at_s if looked_s is None else min(looked_s, at_s)
    shown_s = looked if progress.last_s is None else min(progress.last_s, looked)
    since_s = at_s - looked + min(looked - shown_s, REPORT_S)
    left_s = (1 - min(count / scaled.units, 1.0)) * work_s if scaled.units else whole.point - at_s
    least_s = max(DRIFT * at_s, LEAST_LEFT_S)
    left_s = max(_remaining_after(max(left_s, least_s), since_s), least_s)
    own_spread = math.log1p((whole.high - whole.point) / NORMAL_90 / left_s)
    worked_s = max(loop.total_s for loop in progress.levels)
    outside_spread = math.log(math.hypot(1.0, max(at_s - worked_s, 0.0) / max(worked_s, LEAST_LEFT_S)))
    excess = _interpolate(table.excess, at_s / (at_s + left_s))
    return Evidence(math.log(left_s), min(math.hypot(own_spread, outside_spread, excess), MOST_SPREAD)), ""


def _remaining_after(left_s: float, since_s: float) -> float:
    """Return the rest of ``left_s`` after ``since_s`` more seconds; its last part decays only."""
    tail_s = UNSEEN * left_s
    if since_s <= left_s - tail_s:
        return left_s - since_s
    return tail_s * math.exp(-(since_s - left_s + tail_s) / tail_s)


def remaining_by_estimate(before: Interval, at_s: float, share: float) -> float:
    """Return the ``share`` quantile of remaining seconds by the earlier estimate, given survival."""
    # The estimate is read as a log-logistic distribution, S(t) = 1 / (1 + (t ÷ point)^b). Where a job outlasts it, the
    # remaining time grows with its age, as that of real jobs does.
    shape = math.log((1 + before.level) / (1 - before.level)) / _log_half_width(before)
    log_point = math.log(before.point)
    log_odds = shape * (math.log(at_s) - log_point) if at_s > 0 else -math.inf
    # T = point ((1 + odds) / (1 - share) - 1)^(1/b), in logarithms so that no power overflows
    log_sum = math.log1p(math.exp(log_odds)) if log_odds < 30 else log_odds
    log_ratio = log_sum - math.log1p(-share)
    log_less = log_ratio + math.log1p(-math.exp(-log_ratio)) if log_ratio < 30 else log_ratio
    return max(math.exp(log_point + log_less / shape) - at_s, LEAST_LEFT_S)


def evidence_before(before: Interval, at_s: float) -> Evidence:
    """Return the remaining seconds by the earlier estimate, given that the job still runs."""
    low, middle, high = (math.log(remaining_by_estimate(before, at_s, share)) for share in (0.16, 0.5, 0.84))
    return Evidence(middle, min(max((high - low) / 2, LEAST_SPREAD), MOST_SPREAD))


def combine_evidence(before: Evidence | None, progress: Evidence) -> tuple[Evidence, float]:
    """Return both sources combined by their spreads, and the weight of the progress."""
    # Where they disagree, the spread of the earlier estimate grows to their difference (Birge's ratio).
    if before is None:
        return progress, 1.0
    variance = before.spread**2 + progress.spread**2
    doubt = max((before.log - progress.log) ** 2 / variance, 1.0)
    by_before, by_seen = 1 / (before.spread**2 * doubt), 1 / progress.spread**2
    weight = by_seen / (by_before + by_seen)
    log = weight * progress.log + (1 - weight) * before.log
    return Evidence(log, math.sqrt(1 / (by_before + by_seen))), weight


def live_memory(
    before: Interval | None,
    samples: Sequence[tuple[float, float]],
    began_s: float | None,
    elapsed: LiveEstimate,
    table: LiveTable,
) -> LiveEstimate:
    """Return the peak memory (bytes) of a running job; its low bound is the peak so far.

    ``samples`` holds (seconds since the start, bytes), oldest first. ``began_s`` is the start of the first unit of
    work. Growth in the later half of the work continues until the job ends. A peak that stopped growing is final.
    """
    peak = max((memory for _, memory in samples), default=0.0)
    shown = memory_evidence(samples, began_s, elapsed)
    if shown is None and before is None:
        return LiveEstimate(None, unknown="no unit of work finished yet, and there was no earlier memory estimate")
    prior = None if before is None else Evidence(math.log(before.point), _log_half_width(before) / NORMAL_90)
    if shown is None:
        combined, weight, low, high = prior or Evidence(0.0, 0.0), 0.0, -NORMAL_90, NORMAL_90
    else:
        combined, weight = combine_evidence(prior, shown)
        low, high = table.bounds("memory", elapsed.done, LEVEL)
    around = _make_interval(combined, low, high)
    total = Interval(max(peak, around.point), max(peak, around.low), max(peak, around.high), LEVEL)
    return LiveEstimate(total, elapsed.done, weight)


def memory_evidence(
    samples: Sequence[tuple[float, float]], began_s: float | None, elapsed: LiveEstimate
) -> Evidence | None:
    """Return the peak by memory samples alone; ``None`` before two samples of the work.

    The arguments are those of ``live_memory``.
    """
    working = [] if began_s is None else [sample for sample in samples if sample[0] >= began_s]
    if len(working) < 2 or elapsed.total is None or working[-1][1] <= 0:
        return None
    peak = max(memory for _, memory in samples)
    at_s, middle_s = working[-1][0], (working[0][0] + working[-1][0]) / 2
    half_s = max(when for when, _ in samples if when <= middle_s)
    half = max(memory for when, memory in samples if when <= half_s)
    per_s = (peak - half) / (at_s - half_s)
    growth = math.log1p(per_s * max(elapsed.total.point - at_s, 0.0) / peak)
    return Evidence(math.log(peak) + growth, math.hypot(growth, MEMORY_NOISE))


def _make_interval(evidence: Evidence, low: float, high: float, *, past: float = 0.0) -> Interval:
    """Return the interval of ``past`` and what is to come; ``low`` and ``high`` are quantiles in spreads."""
    ends = (min(max(score * evidence.spread, -FARTHEST), FARTHEST) for score in (0.0, min(low, 0.0), max(high, 0.0)))
    point, bottom, top = (past + math.exp(evidence.log + shift) for shift in ends)
    return Interval(point, bottom, top, LEVEL)


def _log_half_width(interval: Interval) -> float:
    """Return the log half-width of an interval; the upper one where the low bound is zero."""
    ends = [interval.high / interval.point, *([interval.point / interval.low] if interval.low > 0 else [])]
    return max(sum(math.log(ratio) for ratio in ends) / len(ends), LEAST_SPREAD)
