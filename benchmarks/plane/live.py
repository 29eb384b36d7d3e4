"""Accuracy of live forecasts by the share of a job that is over, on recorded runs; each script is left out once."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, variance

from benchmarks.plane.live_calibration import ProgressPoll, calibrate_live
from benchmarks.plane.live_runs import PACKED, LiveRun, Poll, unpack
from benchmarks.results import BenchmarkRow, at_least
from leadline.core.documents import to_json
from leadline.core.estimate import NORMAL_90, Interval
from leadline.estimators.progress.live_estimates import (
    ENOUGH_ERRORS,
    LiveEstimate,
    LiveTable,
    live_elapsed,
    live_memory,
)
from leadline.files.atomic import write_atomically
from leadline.training.shipped_files import LIVE_TABLE_FILE, SHIPPED_FOLDER

SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Shares of a run's time at which its end is forecast."""
LEVEL = 0.9
LEAST_COVERAGE = 0.85
"""Least coverage of 90 % intervals; over some forty runs the coverage has a standard error of 5 %."""


@dataclass(frozen=True, slots=True)
class LiveForecast:
    """The forecast of one run when ``share`` of its time was over, by one ``source``, and the true value."""

    family: str
    run: str
    share: float
    source: str
    predicted: Interval
    true: float
    seen_weight: float

    @property
    def error(self) -> float:
        """Return the error of the point as a share of the true value."""
        return abs(self.predicted.point / self.true - 1)

    @property
    def within(self) -> bool:
        """Return whether the interval holds the true value."""
        return self.predicted.low <= self.true <= self.predicted.high

    @property
    def width(self) -> float:
        """Return the width of the interval as a share of the true value."""
        return (self.predicted.high - self.predicted.low) / self.true


def live_rows(path: Path = PACKED) -> tuple[BenchmarkRow, ...]:
    """Return the rows, from runs that ``record`` made."""
    runs = unpack(path).runs
    return tuple(forecast_rows(live_forecasts(runs), len({run.family for run in runs})))


def live_forecasts(runs: Sequence[LiveRun]) -> list[LiveForecast]:
    """Return the forecasts of each run by tables learned from the other families alone."""
    forecasts: list[LiveForecast] = []
    for family in sorted({run.family for run in runs}):
        table = calibrate_live([poll for run in runs if run.family != family for poll in polled(run, runs)])
        for run in runs:
            if run.family == family:
                forecasts += _forecasts(run, table, before(run, runs))
    return forecasts


def polled(run: LiveRun, runs: Sequence[LiveRun]) -> list[ProgressPoll]:
    """Return the polls of a run in the form of the calibration."""
    prediction = before(run, runs)
    return [
        ProgressPoll(name(run), poll.at_s, poll.progress, run.elapsed_s, prediction, memory_until(run, poll.at_s),
               run.peak_memory_bytes)
        for poll in run.polls
    ]  # fmt: skip


def name(run: LiveRun) -> str:
    """Return a unique name of the run."""
    return " ".join(run.words)


def memory_until(run: LiveRun, at_s: float) -> tuple[tuple[float, float], ...]:
    """Return the memory samples up to a time: seconds since the start, and bytes."""
    return tuple((when, float(size)) for when, _, size in run.memory if when <= at_s)


def before(run: LiveRun, runs: Sequence[LiveRun]) -> Interval | None:
    """Predict a run from other runs of its script: their start-up, plus its units at their mean time of a unit.

    Unit times differ with batch and width; the interval reflects their variance among the runs of other scripts. None
    without another run of the script, or if the run does not report its number of units.
    """
    units = _units(run)
    logs: dict[str, list[float]] = defaultdict(list)
    for other in runs:
        other_units = _units(other)
        if other is not run and other_units:
            logs[other.family].append(math.log((other.elapsed_s - _startup_s(other)) / other_units))
    same_script = logs.pop(run.family, [])
    if units is None or not same_script:
        return None
    groups = [group for group in logs.values() if len(group) > 1]
    pooled = sum(variance(group) * (len(group) - 1) for group in groups) / sum(len(group) - 1 for group in groups)
    half = NORMAL_90 * math.sqrt(pooled * (1 + 1 / len(same_script)))
    startup_s = fmean(_startup_s(other) for other in runs if other.family == run.family and other is not run)
    work_s = units * math.exp(fmean(same_script))
    return Interval(
        startup_s + work_s, startup_s + work_s * math.exp(-half), startup_s + work_s * math.exp(half), LEVEL
    )


def forecast_rows(forecasts: Sequence[LiveForecast], families: int) -> Iterable[BenchmarkRow]:
    """Yield coverage, error and width at each share, and those of the estimate from before the start alone."""
    for share in SHARES:
        by_source: dict[str, list[LiveForecast]] = defaultdict(list)
        for forecast in forecasts:
            if forecast.share == share:
                by_source[forecast.source].append(forecast)
        live, prior, peaks = (by_source[source] for source in ("both", "before", "memory"))
        if not live:
            continue
        n, runs = len(live), len({forecast.run for forecast in live})
        how = f"{runs} runs of {families} scripts, each script left out of the calibration"
        yield at_least(
            f"finish time at {share:.0%}, within the 90 % range", fmean(forecast.within for forecast in live),
            LEAST_COVERAGE, "", baseline=fmean(forecast.within for forecast in prior), n=n,
            how=f"{how}; baseline: the estimate from before the start",
        )  # fmt: skip
        for label, metric in _METRICS:
            yield BenchmarkRow(
                f"finish time at {share:.0%}, {label}", 100 * median(map(metric, live)), "%",
                baseline=100 * median(map(metric, prior)), n=n, how="median",
            )  # fmt: skip
        if not peaks:
            continue
        covered, label = fmean(peak.within for peak in peaks), f"peak memory at {share:.0%}, within the 90 % range"
        if len(peaks) < ENOUGH_ERRORS:
            yield BenchmarkRow(
                label, covered, "", n=len(peaks), how=f"{how}; too few runs had begun their work for a target"
            )
        else:
            yield at_least(label, covered, LEAST_COVERAGE, "", n=len(peaks), how=how)
        error = 100 * fmean(peak.error for peak in peaks)
        yield BenchmarkRow(f"peak memory at {share:.0%}, error", error, "%", n=len(peaks), how="mean")
    yield _narrowing(forecasts)


_METRICS: tuple[tuple[str, Callable[[LiveForecast], float]], ...] = (
    ("error", lambda forecast: forecast.error),
    ("width of the range", lambda forecast: forecast.width),
)


def _narrowing(forecasts: Sequence[LiveForecast]) -> BenchmarkRow:
    """Return how often an interval is no wider than at the share before."""
    kept: list[bool] = []
    for run in sorted({forecast.run for forecast in forecasts}):
        widths = [
            forecast.predicted.high - forecast.predicted.low
            for share in SHARES
            for forecast in forecasts
            if (forecast.run, forecast.source, forecast.share) == (run, "both", share)
        ]
        kept += [later <= earlier for earlier, later in pairwise(widths)]
    return BenchmarkRow("ranges no wider than at the share before", fmean(kept), "", n=len(kept), how="finish time")


def _forecasts(run: LiveRun, table: LiveTable, prediction: Interval | None) -> list[LiveForecast]:
    forecasts: list[LiveForecast] = []
    for share in SHARES:
        poll = _at(run, share)
        if poll is None:
            continue
        answers: dict[str, LiveEstimate] = {
            "both": live_elapsed(prediction, poll.progress, poll.at_s, table),
            "seen": live_elapsed(None, poll.progress, poll.at_s, table),
            "before": live_elapsed(prediction, None, poll.at_s, table),
        }
        forecasts += [
            LiveForecast(run.family, name(run), share, source, answer.total, run.elapsed_s, answer.seen_weight)
            for source, answer in answers.items()
            if answer.total is not None
        ]
        began_s = poll.progress.startup_s if poll.progress else None
        peak = live_memory(None, memory_until(run, poll.at_s), began_s, answers["both"], table)
        if peak.total is not None:
            total = peak.total
            forecasts.append(LiveForecast(run.family, name(run), share, "memory", total, run.peak_memory_bytes, 1.0))
    return forecasts


def _at(run: LiveRun, share: float) -> Poll | None:
    """Return the newest poll at a share of the run's time."""
    polls = [poll for poll in run.polls if poll.at_s <= share * run.elapsed_s]
    return polls[-1] if polls else None


def _units(run: LiveRun) -> float | None:
    """Return the number of units of the innermost loop of the whole run, as reported at its end."""
    last = run.polls[-1].progress
    if last is None or not last.levels:
        return None
    if last.total:
        return float(last.total)
    lengths = [level.length for level in last.levels]
    return math.prod(length for length in lengths if length) if all(lengths) else None


def _startup_s(run: LiveRun) -> float:
    last = run.polls[-1].progress
    return (last.startup_s or 0.0) if last else 0.0


def ship_table(path: Path = PACKED) -> LiveTable:
    """Learn the shipped table from all runs, write it, and return it."""
    runs = unpack(path).runs
    table = calibrate_live([poll for run in runs for poll in polled(run, runs)])
    write_atomically(SHIPPED_FOLDER / LIVE_TABLE_FILE, to_json(table, indent=0) + "\n")
    return table
