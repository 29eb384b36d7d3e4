"""How well the end of a running job is told, by how much of it is over: on recorded runs, each script left out once."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, variance

from benchmarks.plane.live_runs import PACKED, LiveRun, Poll, unpack
from benchmarks.results import BenchmarkRow, at_least
from leadline.core.estimate import NORMAL_90, Interval
from leadline.estimators.progress.live_calibration import ProgressPoll, calibrate_live
from leadline.estimators.progress.live_estimates import (
    ENOUGH_ERRORS,
    LiveEstimate,
    LiveTable,
    live_elapsed,
    live_memory,
)
from leadline.training.shipped_files import write_shipped_live_table

SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Shares of a run's time at which its end is asked for."""
LEVEL = 0.9
LEAST_COVERAGE = 0.85
"""Of 90 % intervals over some forty runs, whose share has a standard error of 5 %."""


@dataclass(frozen=True, slots=True)
class LiveForecast:
    """What was said of one run when ``share`` of its time was over, by which ``source``, and what came true."""

    family: str
    run: str
    share: float
    source: str
    told: Interval
    true: float
    seen_weight: float

    @property
    def error(self) -> float:
        """Return the error of the point, a share of the truth."""
        return abs(self.told.point / self.true - 1)

    @property
    def within(self) -> bool:
        """Return whether the interval held."""
        return self.told.low <= self.true <= self.told.high

    @property
    def width(self) -> float:
        """Return the width of the interval, a share of the truth."""
        return (self.told.high - self.told.low) / self.true


def live_rows(path: Path = PACKED) -> tuple[BenchmarkRow, ...]:
    """Return the rows of the bench, from runs that ``record`` made."""
    runs = unpack(path).runs
    return tuple(forecast_rows(live_forecasts(runs), len({one.family for one in runs})))


def live_forecasts(runs: Sequence[LiveRun]) -> list[LiveForecast]:
    """Return what is told of each run by tables that were learned from the other families alone."""
    found: list[LiveForecast] = []
    for family in sorted({one.family for one in runs}):
        others = [poll for one in runs if one.family != family for poll in polled(one, runs)]
        table = calibrate_live(others)
        for one in runs:
            if one.family == family:
                found += _told(one, table, before(one, runs))
    return found


def polled(run: LiveRun, runs: Sequence[LiveRun]) -> list[ProgressPoll]:
    """Return the polls of a run as the calibration takes them."""
    told = before(run, runs)
    return [
        ProgressPoll(name(run), poll.at_s, poll.progress, run.elapsed_s, told, memory_until(run, poll.at_s),
               run.peak_memory_bytes)
        for poll in run.polls
    ]  # fmt: skip


def name(run: LiveRun) -> str:
    """Return a name that is the run's own."""
    return " ".join(run.words)


def memory_until(run: LiveRun, at_s: float) -> tuple[tuple[float, float], ...]:
    """Return what was seen of the memory up to a time: seconds since the start, and bytes."""
    return tuple((when, float(held)) for when, _, held in run.memory if when <= at_s)


def before(run: LiveRun, runs: Sequence[LiveRun]) -> Interval | None:
    """Return what other runs of the script say of this one: their start-up, and its units at their time of one.

    Unit times differ with batch and width: the range is as wide as they are apart among the runs of other scripts.
    ``None`` where there is no other run of this one, or it does not say how many units there are.
    """
    mine = _units(run)
    rates: dict[str, list[float]] = defaultdict(list)
    for one in runs:
        units = _units(one)
        if one is not run and units:
            rates[one.family].append(math.log((one.elapsed_s - _startup_s(one)) / units))
    known = rates.pop(run.family, [])
    if mine is None or not known:
        return None
    apart = [own for own in rates.values() if len(own) > 1]
    pooled = sum(variance(own) * (len(own) - 1) for own in apart) / sum(len(own) - 1 for own in apart)
    half = NORMAL_90 * math.sqrt(pooled * (1 + 1 / len(known)))
    startup_s = fmean(_startup_s(one) for one in runs if one.family == run.family and one is not run)
    work_s = mine * math.exp(fmean(known))
    return Interval(
        startup_s + work_s, startup_s + work_s * math.exp(-half), startup_s + work_s * math.exp(half), LEVEL
    )


def forecast_rows(told: Sequence[LiveForecast], families: int) -> Iterable[BenchmarkRow]:
    """Yield the rows: coverage, error and width at each share, and what the estimate from before alone would say."""
    for share in SHARES:
        at = [one for one in told if one.share == share]
        both, alone = ([one for one in at if one.source == source] for source in ("both", "before"))
        if not both:
            continue
        how = f"{len({one.run for one in both})} runs of {families} scripts, each script left out of the calibration"
        yield at_least(
            f"finish time at {share:.0%}, within the 90 % range", fmean(one.within for one in both), LEAST_COVERAGE, "",
            baseline=fmean(one.within for one in alone), n=len(both), how=f"{how}; baseline: the estimate from before",
        )  # fmt: skip
        for label, figure in _FIGURES:
            yield BenchmarkRow(
                f"finish time at {share:.0%}, {label}", 100 * median(map(figure, both)), "%",
                baseline=100 * median(map(figure, alone)), n=len(both), how="median",
            )  # fmt: skip
        peaks = [one for one in at if one.source == "memory"]
        if not peaks:
            continue
        held, label = fmean(one.within for one in peaks), f"peak memory at {share:.0%}, within the 90 % range"
        if len(peaks) < ENOUGH_ERRORS:
            yield BenchmarkRow(
                label, held, "", n=len(peaks), how=f"{how}; no target for so few that had begun their work"
            )
        else:
            yield at_least(label, held, LEAST_COVERAGE, "", n=len(peaks), how=how)
        yield BenchmarkRow(
            f"peak memory at {share:.0%}, error", 100 * fmean(one.error for one in peaks), "%", n=len(peaks), how="mean"
        )
    yield _narrowing(told)


_FIGURES: tuple[tuple[str, Callable[[LiveForecast], float]], ...] = (
    ("error", lambda one: one.error),
    ("width of the range", lambda one: one.width),
)


def _narrowing(told: Sequence[LiveForecast]) -> BenchmarkRow:
    """Return how often a range is no wider than it was when less of the job was over."""
    kept: list[bool] = []
    for run in sorted({one.run for one in told}):
        widths = [one.told.high - one.told.low for share in SHARES for one in told
                  if (one.run, one.source, one.share) == (run, "both", share)]  # fmt: skip
        kept += [later <= earlier for earlier, later in pairwise(widths)]
    return BenchmarkRow("ranges no wider than at the share before", fmean(kept), "", n=len(kept), how="finish time")


def _told(run: LiveRun, table: LiveTable, told: Interval | None) -> list[LiveForecast]:
    found: list[LiveForecast] = []
    for share in SHARES:
        poll = _at(run, share)
        if poll is None:
            continue
        answers: dict[str, LiveEstimate] = {
            "both": live_elapsed(told, poll.progress, poll.at_s, table),
            "seen": live_elapsed(None, poll.progress, poll.at_s, table),
            "before": live_elapsed(told, None, poll.at_s, table),
        }
        found += [
            LiveForecast(run.family, name(run), share, source, one.total, run.elapsed_s, one.seen_weight)
            for source, one in answers.items()
            if one.total is not None
        ]
        began_s = poll.progress.startup_s if poll.progress else None
        peak = live_memory(None, memory_until(run, poll.at_s), began_s, answers["both"], table)
        if peak.total is not None:
            found.append(LiveForecast(run.family, name(run), share, "memory", peak.total, run.peak_memory_bytes, 1.0))
    return found


def _at(run: LiveRun, share: float) -> Poll | None:
    """Return the newest poll at a share of the run's time."""
    seen = [one for one in run.polls if one.at_s <= share * run.elapsed_s]
    return seen[-1] if seen else None


def _units(run: LiveRun) -> float | None:
    """Return how many units of the innermost loop the whole run has, as it says itself at its end."""
    last = run.polls[-1].progress
    if last is None or not last.levels:
        return None
    if last.total:
        return float(last.total)
    lengths = [one.length for one in last.levels]
    return math.prod(one for one in lengths if one) if all(lengths) else None


def _startup_s(run: LiveRun) -> float:
    last = run.polls[-1].progress
    return (last.startup_s or 0.0) if last else 0.0


def ship_table(path: Path = PACKED) -> LiveTable:
    """Learn the shipped table from all runs, write it, and return it."""
    runs = unpack(path).runs
    table = calibrate_live([poll for one in runs for poll in polled(one, runs)])
    write_shipped_live_table(table)
    return table
