"""``leadline bench memory``: foretold peaks beside those that real steps had, their bound, and the alternatives."""

import json
import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
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
"""An under-estimate is one by more than this share."""
QUICK_EVERY = 3


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """One point: what was measured, and what each method said before."""

    point: MemoryPoint
    live_bytes: int
    process_bytes: int
    foretold: MemoryPrediction
    others: AlternativePeaks

    def document(self) -> dict[str, object]:
        """Return the figures by name, errors in percent of what was measured."""
        process = self.foretold.process
        return {
            "point": self.point.key, "family": self.point.family, "live_bytes": self.live_bytes,
            "foretold_live_bytes": self.foretold.live_bytes,
            "live_error_percent": _percent(self.foretold.live_bytes, self.live_bytes),
            "process_bytes": self.process_bytes, "foretold_process_bytes": process.point,
            "process_error_percent": _percent(process.point, self.process_bytes),
            "bound_bytes": process.high, "seconds": self.foretold.seconds,
            "weights_bytes": self.others.weights_bytes, "tracker_bytes": self.others.tracker_bytes,
            "tracker_error_percent": _error(self.others.tracker_bytes, self.live_bytes),
            "tracker_seconds": self.others.tracker_s, "tracker_refused": self.others.tracker_refused,
        }  # fmt: skip


def run(*, quick: bool = False, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Foretell every measured point and compare; ``quick`` takes every third."""
    large = llama_7b.memory_rows(quick=quick)
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    truth = {one["key"]: one for one in measured["points"]}
    asked = [one for one in memory_points() if one.key in truth][:: QUICK_EVERY if quick else 1]
    jobs = max(min(os.cpu_count() or 1, 4) - 1, 1)
    with ThreadPoolExecutor(1) as pool:  # beside each other, so that neither is timed on a calmer machine
        asking = pool.submit(alternative_peaks, asked)
        said = predict_points(asked, device_of(measured), jobs=jobs, progress=progress)
        besides = asking.result()
    compared = [
        MemoryComparison(
            one, truth[one.key]["live_bytes"], truth[one.key]["process_bytes"], said[one.key], besides[one.key]
        )
        for one in asked
    ]
    found = (
        *_live_rows(compared), *_process_rows(compared), *_bound_rows(compared), *_side_by_side(compared), *large,
        *linear.linear_rows(quick=quick), bad_input.row(),
    )  # fmt: skip
    machine = {"system": platform.platform(), "python": platform.python_version(), "measured": _where(measured)}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult("memory", found, date, machine, tuple(one.document() for one in compared))


def _where(measured: dict[str, Any]) -> str:
    threads = f"{measured['threads']} thread" + "s" * (measured["threads"] > 1)
    return f"{measured['machine']['processor']}, {threads}, torch {measured['torch']}"


def _live_rows(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    how = "live tensors before a step, and the CPU profiler's memory events within it"
    errors = [abs(_percent(one.foretold.live_bytes, one.live_bytes)) for one in compared]
    return _errors("live bytes", errors, compared, LIVE_TARGET, how)


def _process_rows(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    how = "VmHWM of a fresh process after five steps"
    errors = [abs(_percent(one.foretold.process.point, one.process_bytes)) for one in compared]
    return _errors("process memory", errors, compared, PROCESS_TARGET, how)


def _errors(
    name: str, errors: Sequence[float], compared: Sequence[MemoryComparison], target: float, how: str
) -> list[BenchmarkRow]:
    """Return the mean error with its target, and what lies behind it."""
    n, worst = len(errors), max(range(len(errors)), key=errors.__getitem__)
    families: dict[str, list[float]] = {}
    for one, error in zip(compared, errors, strict=True):
        families.setdefault(one.point.family, []).append(error)
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
    """Say how often the process needed more than the bound, as shipped and with each family left out of its fit."""
    ratios = [one.process_bytes / one.foretold.process.point for one in compared]
    families = [one.point.family for one in compared]
    low, high = bound_factors(ratios, families)
    left_out = exceeded_left_out(ratios, families)
    shipped = fmean(one.process_bytes > one.foretold.process.high for one in compared)
    name = "process memory above its 95 % bound"
    return [
        at_most(f"{name}, families left out", 100 * left_out, EXCEEDED_TARGET, "%", n=len(ratios),
                how="the bound's factor fitted on all other families, each family in turn"),
        BenchmarkRow(f"{name}, as shipped", 100 * shipped, "%", n=len(ratios),
                 how=f"these points ask for factors of {low:.3f} and {high:.3f} for the ends of the 90 % interval"),
    ]  # fmt: skip


def _side_by_side(compared: Sequence[MemoryComparison]) -> list[BenchmarkRow]:
    """Return error, under-estimates and time of each method on the same points."""
    methods: dict[str, list[tuple[float | None, float]]] = {
        "Leadline": [(one.foretold.live_bytes, one.foretold.seconds) for one in compared],
        "MemTracker": [(one.others.tracker_bytes, one.others.tracker_s) for one in compared],
        "weights × constant": [(one.others.weights_bytes, one.others.weights_s) for one in compared],
    }
    found = []
    for method, said in methods.items():
        pairs = [(size, one.live_bytes) for (size, _), one in zip(said, compared, strict=True) if size is not None]
        if not pairs:
            continue
        error = fmean(abs(_percent(size, true)) for size, true in pairs)
        under = 100 * fmean(size < (1 - NOTABLE) * true for size, true in pairs)
        n, seconds = len(pairs), median(one for size, one in said if size is not None)
        found += [
            BenchmarkRow(f"{method}, live bytes MAPE", error, "%", n=n, how=_refused(len(said) - n)),
            BenchmarkRow(f"{method}, under-estimates", under, "%", n=n, how=f"by more than {100 * NOTABLE:.0f} %"),
            BenchmarkRow(
                f"{method}, time to answer", seconds, "s", n=n, how="median; the start of Python and torch left out"
            ),
        ]
    return found


def _refused(points: int) -> str:
    return f"it refuses {points} points, in which a module is called twice" if points else ""


def _percent(said: float, true: float) -> float:
    return 100 * (said / true - 1)


def _error(said: float | None, true: float) -> float | None:
    return None if said is None else _percent(said, true)
