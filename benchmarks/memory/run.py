"""``bench memory``: predicted and measured memory peaks of real steps, their bound, and the alternatives."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import llama_7b
from benchmarks.memory import bad_input, linear
from benchmarks.memory.bound import bound_factors, exceeded_left_out
from benchmarks.memory.points import MemoryPoint, memory_points
from benchmarks.memory.predictions import (
    AlternativePeaks,
    MemoryPrediction,
    Progress,
    alternative_peaks,
    device_of,
    predict_points,
)
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most

MEASURED = Path(__file__).parents[1] / "measured" / "memory_cpu.json"
LIVE_TARGET, PROCESS_TARGET, EXCEEDED_TARGET = 5.0, 12.0, 6.0
"""Percent: mean errors, and the share of points above the 95 % bound."""
NOTABLE = 0.05
"""A prediction counts as too low if it is lower by more than this share."""
QUICK_EVERY = 3


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """One point: its measured memory and each method's prediction."""

    point: MemoryPoint
    live_bytes: int
    process_bytes: int
    predicted: MemoryPrediction
    alternatives: AlternativePeaks

    def document(self) -> dict[str, object]:
        """Return the values by name; errors are in percent of the measured value."""
        predicted, alternatives, process = self.predicted, self.alternatives, self.predicted.process
        return {
            "point": self.point.key, "family": self.point.family, "live_bytes": self.live_bytes,
            "foretold_live_bytes": predicted.live_bytes,
            "live_error_percent": _percent(predicted.live_bytes, self.live_bytes),
            "process_bytes": self.process_bytes, "foretold_process_bytes": process.point,
            "process_error_percent": _percent(process.point, self.process_bytes),
            "bound_bytes": process.high, "seconds": predicted.seconds,
            "weights_bytes": alternatives.weights_bytes, "tracker_bytes": alternatives.tracker_bytes,
            "tracker_error_percent": _error(alternatives.tracker_bytes, self.live_bytes),
            "tracker_seconds": alternatives.tracker_s, "tracker_refused": alternatives.tracker_refused,
        }  # fmt: skip


def run(*, quick: bool = False, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Predict every measured point and compare; ``quick`` takes every third."""
    large = llama_7b.memory_rows(quick=quick)
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    truth = {point["key"]: point for point in measured["points"]}
    points = [point for point in memory_points() if point.key in truth][:: QUICK_EVERY if quick else 1]
    jobs = max(min(os.cpu_count() or 1, 4) - 1, 1)
    with ThreadPoolExecutor(1) as pool:  # both at once, so that neither is timed on a calmer machine
        future = pool.submit(alternative_peaks, points)
        predicted = predict_points(points, device_of(measured), jobs=jobs, progress=progress)
        alternatives = future.result()
    compared = []
    for point in points:
        live_bytes, process_bytes = truth[point.key]["live_bytes"], truth[point.key]["process_bytes"]
        compared.append(
            MemoryComparison(point, live_bytes, process_bytes, predicted[point.key], alternatives[point.key])
        )
    rows = (
        *_live_rows(compared), *_process_rows(compared), *_bound_rows(compared), *_side_by_side(compared), *large,
        *linear.linear_rows(quick=quick), bad_input.row(),
    )  # fmt: skip
    details = tuple(comparison.document() for comparison in compared)
    return BenchmarkResult("memory", rows, machine={"measured": _measured_on(measured)}, details=details)


def _measured_on(measured: dict[str, Any]) -> str:
    threads = f"{measured['threads']} thread" + "s" * (measured["threads"] > 1)
    return f"{measured['machine']['processor']}, {threads}, torch {measured['torch']}"


def _live_rows(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    how = "live tensors before a step, and the CPU profiler's memory events within it"
    errors = [abs(_percent(point.predicted.live_bytes, point.live_bytes)) for point in compared]
    return _errors("live bytes", errors, compared, LIVE_TARGET, how)


def _process_rows(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    how = "VmHWM of a fresh process after five steps"
    errors = [abs(_percent(point.predicted.process.point, point.process_bytes)) for point in compared]
    return _errors("process memory", errors, compared, PROCESS_TARGET, how)


def _errors(
    name: str, errors: Sequence[float], compared: Sequence[MemoryComparison], target: float, how: str
) -> list[BenchmarkRow]:
    """Return the mean error with its target, and the distribution of errors."""
    n, worst = len(errors), max(range(len(errors)), key=errors.__getitem__)
    families: dict[str, list[float]] = {}
    for comparison, error in zip(compared, errors, strict=True):
        families.setdefault(comparison.point.family, []).append(error)
    hardest = max(families, key=lambda family: fmean(families[family]))
    return [
        at_most(f"{name}, MAPE", fmean(errors), target, "%", n=n, how=f"{how}; {len(families)} families"),
        BenchmarkRow(f"{name}, median error", median(errors), "%", n=n),
        BenchmarkRow(f"{name}, P90 of errors", sorted(errors)[max(-(-9 * n // 10) - 1, 0)], "%", n=n),
        BenchmarkRow(f"{name}, worst error", errors[worst], "%", n=n, how=compared[worst].point.key),
        BenchmarkRow(
            f"{name}, worst family's MAPE", fmean(families[hardest]), "%", n=len(families[hardest]), how=hardest
        ),
    ]


def _bound_rows(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    """Return the share of processes above the bound, as shipped and with each family left out of its fit."""
    ratios = [point.process_bytes / point.predicted.process.point for point in compared]
    families = [comparison.point.family for comparison in compared]
    low, high = bound_factors(ratios, families)
    left_out = exceeded_left_out(ratios, families)
    shipped = fmean(point.process_bytes > point.predicted.process.high for point in compared)
    name = "process memory above its 95 % bound"
    return [
        at_most(f"{name}, families left out", 100 * left_out, EXCEEDED_TARGET, "%", n=len(ratios),
                how="the bound's factor fitted on all other families, each family in turn"),
        BenchmarkRow(f"{name}, as shipped", 100 * shipped, "%", n=len(ratios),
                 how=f"fitted on these points, the factors of the 90 % interval are {low:.3f} and {high:.3f}"),
    ]  # fmt: skip


def _side_by_side(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    """Return error, under-estimates and time of each method on the same points."""
    methods: dict[str, list[tuple[float | None, float]]] = {
        "Leadline": [(point.predicted.live_bytes, point.predicted.seconds) for point in compared],
        "MemTracker": [(point.alternatives.tracker_bytes, point.alternatives.tracker_s) for point in compared],
        "weights × constant": [(point.alternatives.weights_bytes, point.alternatives.weights_s) for point in compared],
    }
    rows = []
    for method, answers in methods.items():
        pairs = [
            (size, point.live_bytes) for (size, _), point in zip(answers, compared, strict=True) if size is not None
        ]
        if not pairs:
            continue
        error = fmean(abs(_percent(size, true)) for size, true in pairs)
        under = 100 * fmean(size < (1 - NOTABLE) * true for size, true in pairs)
        n, seconds = len(pairs), median(answer_s for size, answer_s in answers if size is not None)
        rows += [
            BenchmarkRow(f"{method}, live bytes MAPE", error, "%", n=n, how=_refused(len(answers) - n)),
            BenchmarkRow(f"{method}, under-estimates", under, "%", n=n, how=f"by more than {100 * NOTABLE:.0f} %"),
            BenchmarkRow(
                f"{method}, time to answer", seconds, "s", n=n, how="median; the start of Python and torch left out"
            ),
        ]
    return rows


def _refused(points: int) -> str:
    return f"it refuses {points} points, in which a module is called twice" if points else ""


def _percent(predicted: float, true: float) -> float:
    return 100 * (predicted / true - 1)


def _error(predicted: float | None, true: float) -> float | None:
    return None if predicted is None else _percent(predicted, true)
