"""Accuracy of queue waits predicted at submission: on a published accounting's own waits, and on simulated ones.

Each accounting is cut at 70 % of its jobs, by submission time. Models are trained on what was known at the cut and
predict the later jobs: once with the model of the cut, and once with a model that is retrained at intervals, as the
plane does.

The jobs of a busy week wait together, so one part of an accounting says little about coverage. Coverage is therefore
also counted in each tenth from 30 % on, with a model trained on what was known at its beginning.
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
from leadline.estimators.queue_wait import FORECAST_COLUMN, QUEUE_FEATURES, UNKNOWN_VALUE, accounting_at, queue_rows
from leadline.training.queue_wait import QueueWaitModel, fit_queue_wait_model

Array = npt.NDArray[np.float64]

LEARNED = 0.7
"""Share of the jobs, the first ones, in the training data."""
AGAIN = 6
"""Number of times that the model is retrained over the held-out jobs."""
TENTHS = range(3, 10)
"""Tenths in which coverage is counted."""
LEVEL, COVERED = 0.9, (85.0, 95.0)
"""Nominal level of the intervals, and the target range of their coverage in percent."""
LOAD = 0.9
"""Offered load of the simulated cluster."""
ONCE, AGAIN_AND_AGAIN = "learned once", "learned again"
WITH_FORECAST = ", with the scheduler's forecast"


@dataclass(frozen=True, slots=True)
class WaitCase:
    """An accounting with true waits; ``forecasts`` are its scheduler's own forecasts at submission, by id."""

    name: str
    jobs: Sequence[AccountedJob]
    forecasts: Mapping[str, float]


def wait_rows(data: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Return the errors of Leadline and of simpler predictions on MetaCentrum's trace in the folder ``data``.

    ``quick`` leaves out retraining.

    Raises:
        InvalidInput: The folder lacks the table.
        MissingExtra: pyarrow or scikit-learn is not installed.
    """
    jobs = metacentrum_jobs(data)
    simulated, forecasts = simulate_queue(jobs, LOAD)
    cases = [WaitCase("real waits", jobs, {}), WaitCase("simulated waits", simulated, forecasts)]
    rows = [row for case in cases for row in case_rows(case, times=1 if quick else AGAIN)]
    return rows if quick else rows + [tenths_row(case) for case in cases]


def case_rows(case: WaitCase, *, times: int = AGAIN) -> list[BenchmarkRow]:
    """Return the rows of one accounting; the baseline of an error is the best simpler prediction's."""
    first = int(LEARNED * len(case.jobs))
    true = np.array([job.wait_s or 0.0 for job in case.jobs[first:]])
    x = queue_rows(case.jobs, range(first, len(case.jobs)), case.forecasts)
    plain = np.where(np.arange(len(QUEUE_FEATURES)) == FORECAST_COLUMN, UNKNOWN_VALUE, x)
    answers: dict[str, list[Interval]] = {}
    for name, parts in {ONCE: 1, AGAIN_AND_AGAIN: times}.items():
        if name == AGAIN_AND_AGAIN and parts == 1:
            continue
        models = [(part, _learned(case, first + int(part[0]))) for part in np.array_split(np.arange(len(x)), parts)]
        answers[name] = _intervals(models, plain)
        if case.forecasts:
            answers[name + WITH_FORECAST] = _intervals(models, x)
    simple = simple_answers(case, first, x)
    rows = []
    for name, intervals in answers.items():
        rows += _rows(f"{case.name}: {name}", intervals, true, simple)
    for name, guess in simple.items():
        rows += _errors(f"{case.name}: {name}", guess, true, {})
    return rows


def tenths_row(case: WaitCase) -> BenchmarkRow:
    """Return the coverage over the tenths of an accounting, each with a model trained on the jobs before it."""
    unaided, covered = replace(case, forecasts={}), []
    for tenth in TENTHS:
        first, last = (number * len(case.jobs) // 10 for number in (tenth, tenth + 1))
        waits = [job.wait_s or 0.0 for job in case.jobs[first:last]]
        predictions = _learned(unaided, first).predict_rows(queue_rows(case.jobs, range(first, last)), 0.0, LEVEL)
        intervals = [prediction.wait_s for prediction in predictions]
        covered.append([interval.low <= wait <= interval.high for interval, wait in zip(intervals, waits, strict=True)])
    shares = ", ".join(f"{100 * np.mean(tenth):.0f}" for tenth in covered)
    return within(
        f"{case.name}: by tenths: interval holds the wait", 100 * float(np.mean(np.concatenate(covered))), COVERED, "%",
        n=sum(map(len, covered)), how=f"{LEVEL:.0%}; {shares} % in the tenths from {10 * TENTHS[0]} % on",
    )  # fmt: skip


def simple_answers(case: WaitCase, first: int, x: Array) -> dict[str, Array]:
    """Return predictions without learning for the jobs from position ``first`` on, whose rows are ``x``."""
    accounting = accounting_at(case.jobs[:first], case.jobs[first].submitted_s)
    waits = [job.wait_s for job in accounting if job.wait_s is not None]

    def column(name: str) -> Array:
        return np.maximum(x[:, QUEUE_FEATURES.index(name)], 0.0)

    answers = {
        "last wait of the partition": column("partition_last_wait_s"),
        "median wait until the cut": np.full(len(x), float(np.median(waits))),
        "in turn, with full limits": column("site_planned_s"),
    }
    return {**answers, "scheduler's forecast": column("forecast_s")} if case.forecasts else answers


def _learned(case: WaitCase, place: int) -> QueueWaitModel:
    """Train on what was known when the job at ``place`` was submitted."""
    return fit_queue_wait_model(case.jobs[:place], case.jobs[place].submitted_s, forecasts=case.forecasts)


def _intervals(models: Sequence[tuple[npt.NDArray[np.int64], QueueWaitModel]], x: Array) -> list[Interval]:
    return [answer.wait_s for part, model in models for answer in model.predict_rows(x[part], 0.0, LEVEL)]


def _rows(name: str, intervals: Sequence[Interval], true: Array, simple: Mapping[str, Array]) -> list[BenchmarkRow]:
    low, point, high = (np.array([getattr(wait, end) for wait in intervals]) for end in ("low", "point", "high"))
    covered = 100 * float(np.mean((low <= true) & (true <= high)))
    waits = true > IMMEDIATE_START_S
    of_waits = 100 * float(np.mean((low <= true)[waits] & (true <= high)[waits]))
    how = f"{LEVEL:.0%}; of the {waits.sum()} jobs that waited longer than a minute: {of_waits:.1f} %"
    widths = (
        f"from {np.median(low):.0f} s; median of the longest half: {np.median(np.sort(high)[len(high) // 2 :]):.0f} s"
    )
    return [
        *_errors(name, point, true, simple),
        within(f"{name}: interval holds the wait", covered, COVERED, "%", n=len(true), how=how),
        BenchmarkRow(f"{name}: median upper end", float(np.median(high)) / HOUR_S, "h", n=len(true), how=widths),
    ]


def _errors(name: str, guess: Array, true: Array, simple: Mapping[str, Array]) -> list[BenchmarkRow]:
    """Return the errors in seconds, as a factor, and of predicting an immediate start."""
    metrics: dict[str, tuple[str, Callable[[Array], float]]] = {
        "median absolute error": ("s", lambda waits: float(np.median(np.abs(waits - true)))),
        "mean absolute error": ("h", lambda waits: float(np.mean(np.abs(waits - true))) / HOUR_S),
        "mean error of the logarithm": ("ln", lambda waits: float(np.mean(_log_error(waits, true)))),
        "immediate start predicted wrongly": (
            "%", lambda waits: 100 * float(np.mean((waits <= IMMEDIATE_START_S) != (true <= IMMEDIATE_START_S)))
        ),
    }  # fmt: skip
    rows = []
    for metric, (unit, of) in metrics.items():
        best = min(simple, key=lambda method: of(simple[method]), default=None)
        how = "|ln((predicted + 60 s) ÷ (true + 60 s))|" if unit == "ln" else ""
        how += f"{'; ' * bool(how)}baseline: {best}" if best else ""
        baseline = of(simple[best]) if best else None
        rows.append(BenchmarkRow(f"{name}: {metric}", of(guess), unit, baseline=baseline, n=len(true), how=how))
    return rows


def _log_error(predicted: Array, true: Array) -> Array:
    errors: Array = np.abs(np.log((predicted + IMMEDIATE_START_S) / (true + IMMEDIATE_START_S)))
    return errors
