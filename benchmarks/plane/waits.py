"""How well waits in a queue are told before submission: on a published accounting's own waits, and on simulated ones.

Each accounting is cut at 70 % of its jobs, by submission. All that is learned is learned from what was known at that
moment, and the jobs after it are asked about: once by what was learned at the cut, and once by what was learned again
at intervals from what was known by then, as the plane does.

The jobs of one busy week wait together, so that a part of an accounting says little of how often intervals hold. So
they are counted in each tenth from 30 % on, too, learned from what was known at its beginning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.plane.job_trace import metacentrum_jobs, simulate_queue
from benchmarks.results import BenchmarkRow, within
from leadline.core.estimate import Interval
from leadline.core.queues import IMMEDIATE_START_S, AccountedJob
from leadline.core.units import HOUR_S
from leadline.estimators.queue_state import FORECAST_COLUMN, QUEUE_FEATURES, UNKNOWN_VALUE, accounting_at, queue_rows
from leadline.training.queue_wait import QueueWaitModel, fit_queue_wait_model

Array = npt.NDArray[np.float64]

LEARNED = 0.7
"""The share of the jobs, the first ones, that is learned from."""
AGAIN = 6
"""So many times what was learned is learned again over the jobs that are asked about."""
TENTHS = range(3, 10)
"""The tenths of which it is counted how often intervals hold."""
LEVEL, COVERED = 0.9, (85.0, 95.0)
"""The level of the intervals, and what share of the waits they are to hold, in percent."""
LOAD = 0.9
"""Offered load of the simulated cluster."""
ONCE, AGAIN_AND_AGAIN = "learned once", "learned again"
FORETOLD = ", with the scheduler's forecast"


@dataclass(frozen=True, slots=True)
class WaitCase:
    """An accounting with true waits; ``forecasts`` are waits that its scheduler foretold at submission, by id."""

    name: str
    jobs: Sequence[AccountedJob]
    forecasts: Mapping[str, float]


def wait_rows(data: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Return the errors of Leadline and of simpler answers on MetaCentrum's trace in the folder ``data``.

    ``quick`` leaves out what is learned again and again.

    Raises:
        InvalidInput: the folder lacks the table.
        MissingExtra: pyarrow or scikit-learn is not installed.
    """
    jobs = metacentrum_jobs(data)
    simulated, forecasts = simulate_queue(jobs, LOAD)
    cases = [WaitCase("real waits", jobs, {}), WaitCase("simulated waits", simulated, forecasts)]
    found = [row for case in cases for row in case_rows(case, times=1 if quick else AGAIN)]
    return found if quick else found + [tenths_row(case) for case in cases]


def case_rows(case: WaitCase, *, times: int = AGAIN) -> list[BenchmarkRow]:
    """Return the rows of one accounting; the baseline of an error is the least of the simpler answers'."""
    first = int(LEARNED * len(case.jobs))
    true = np.array([one.wait_s or 0.0 for one in case.jobs[first:]])
    x = queue_rows(case.jobs, range(first, len(case.jobs)), case.forecasts)
    plain = np.where(np.arange(len(QUEUE_FEATURES)) == FORECAST_COLUMN, UNKNOWN_VALUE, x)
    told: dict[str, list[Interval]] = {}
    for name, parts in {ONCE: 1, AGAIN_AND_AGAIN: times}.items():
        if name == AGAIN_AND_AGAIN and parts == 1:
            continue
        models = [(part, _learned(case, first + int(part[0]))) for part in np.array_split(np.arange(len(x)), parts)]
        told[name] = _told(models, plain)
        if case.forecasts:
            told[name + FORETOLD] = _told(models, x)
    simple = simple_answers(case, first, x)
    found = [row for name, intervals in told.items() for row in _rows(f"{case.name}: {name}", intervals, true, simple)]
    return found + [row for name, guess in simple.items() for row in _errors(f"{case.name}: {name}", guess, true, {})]


def tenths_row(case: WaitCase) -> BenchmarkRow:
    """Return how many waits the intervals of an accounting hold, each tenth learned from what was known before it."""
    unaided, held = replace(case, forecasts={}), []
    for tenth in TENTHS:
        first, last = (number * len(case.jobs) // 10 for number in (tenth, tenth + 1))
        true = [one.wait_s or 0.0 for one in case.jobs[first:last]]
        told = _learned(unaided, first).predict_rows(queue_rows(case.jobs, range(first, last)), 0.0, LEVEL)
        held.append([one.wait_s.low <= wait <= one.wait_s.high for one, wait in zip(told, true, strict=True)])
    shares = ", ".join(f"{100 * np.mean(one):.0f}" for one in held)
    return within(
        f"{case.name}: by tenths: interval holds the wait", 100 * float(np.mean(np.concatenate(held))), COVERED, "%",
        n=sum(map(len, held)), how=f"{LEVEL:.0%}; {shares} % in the tenths from {10 * TENTHS[0]} % on",
    )  # fmt: skip


def simple_answers(case: WaitCase, first: int, x: Array) -> dict[str, Array]:
    """Return what one would say without learning, of the jobs from place ``first`` on, whose rows are ``x``."""
    before = [
        one.wait_s for one in accounting_at(case.jobs[:first], case.jobs[first].submitted_s) if one.wait_s is not None
    ]

    def seen(figure: str) -> Array:
        return np.maximum(x[:, QUEUE_FEATURES.index(figure)], 0.0)

    found = {
        "last wait of the partition": seen("partition_last_wait_s"),
        "median wait until the cut": np.full(len(x), float(np.median(before))),
        "in turn, with full limits": seen("site_planned_s"),
    }
    return {**found, "scheduler's forecast": seen("forecast_s")} if case.forecasts else found


def _learned(case: WaitCase, place: int) -> QueueWaitModel:
    """Learn from what was known when the job at ``place`` came."""
    return fit_queue_wait_model(case.jobs[:place], case.jobs[place].submitted_s, forecasts=case.forecasts)


def _told(models: Sequence[tuple[npt.NDArray[np.int64], QueueWaitModel]], x: Array) -> list[Interval]:
    return [one.wait_s for part, model in models for one in model.predict_rows(x[part], 0.0, LEVEL)]


def _rows(name: str, told: Sequence[Interval], true: Array, simple: Mapping[str, Array]) -> list[BenchmarkRow]:
    low, point, high = (np.array([getattr(one, end) for one in told]) for end in ("low", "point", "high"))
    held = 100 * float(np.mean((low <= true) & (true <= high)))
    waits = true > IMMEDIATE_START_S
    of_waits = 100 * float(np.mean((low <= true)[waits] & (true <= high)[waits]))
    how = f"{LEVEL:.0%}; of the {waits.sum()} jobs that waited longer than a minute: {of_waits:.1f} %"
    widths = (
        f"from {np.median(low):.0f} s; median of the longest half: {np.median(np.sort(high)[len(high) // 2 :]):.0f} s"
    )
    return [
        *_errors(name, point, true, simple),
        within(f"{name}: interval holds the wait", held, COVERED, "%", n=len(true), how=how),
        BenchmarkRow(f"{name}: median upper end", float(np.median(high)) / HOUR_S, "h", n=len(true), how=widths),
    ]


def _errors(name: str, guess: Array, true: Array, simple: Mapping[str, Array]) -> list[BenchmarkRow]:
    """Return the errors in seconds, as a factor, and of the answer to whether a job starts at once."""
    figures: dict[str, tuple[str, Callable[[Array], float]]] = {
        "median absolute error": ("s", lambda one: float(np.median(np.abs(one - true)))),
        "mean absolute error": ("h", lambda one: float(np.mean(np.abs(one - true))) / HOUR_S),
        "mean error of the logarithm": ("ln", lambda one: float(np.mean(_log_error(one, true)))),
        "told wrongly whether it starts at once": (
            "%", lambda one: 100 * float(np.mean((one <= IMMEDIATE_START_S) != (true <= IMMEDIATE_START_S)))
        ),
    }  # fmt: skip
    found = []
    for figure, (unit, of) in figures.items():
        best = min(simple, key=lambda one: of(simple[one]), default=None)
        how = "|ln((told + 60 s) ÷ (true + 60 s))|" if unit == "ln" else ""
        how += f"{'; ' * bool(how)}baseline: {best}" if best else ""
        baseline = of(simple[best]) if best else None
        found.append(BenchmarkRow(f"{name}: {figure}", of(guess), unit, baseline=baseline, n=len(true), how=how))
    return found


def _log_error(told: Array, true: Array) -> Array:
    found: Array = np.abs(np.log((told + IMMEDIATE_START_S) / (true + IMMEDIATE_START_S)))
    return found
