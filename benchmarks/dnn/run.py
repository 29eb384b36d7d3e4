"""``leadline bench dnn``: every table of the estimator, fits included, side by side on all cores."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from benchmarks.dnn.splits import RefusedSplit, SplitResult, split_documents
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most
from leadline.core.errors import InvalidInput

TABLES: tuple[str, ...] = (
    "vision", "selection", "posters", "gnn", "kernels", "transformers", "whole_runs", "llm_training", "collectives",
    "decode",
)  # fmt: skip
"""Modules of this folder, each with ``asked(data, *, quick)`` that returns its splits; the longest first."""

FIGURES: tuple[str, ...] = ("pricing",)
"""Modules with ``rows(data, *, quick)``: figures that are no errors, measured when nothing else runs."""

MOST_S = 900.0
"""The whole bench may take so long on two cores."""

Progress = Callable[[int, int], None]


def run(*, quick: bool = False, data: Path | None = None, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Fit and ask all tables on the measured data in the folder ``data``.

    Raises:
        InvalidInput: no folder was given, or it lacks a table.
    """
    if data is None:
        raise InvalidInput("bench dnn needs measured data: give their folder with --data")
    from joblib import Parallel, delayed  # noqa: PLC0415 - comes with scikit-learn, which not everyone has

    began = time.monotonic()
    progress(0, len(TABLES))
    splits: list[SplitResult | RefusedSplit] = []
    told = Parallel(n_jobs=os.cpu_count() or 1, return_as="generator")(
        delayed(table_splits)(name, data, quick=quick) for name in TABLES
    )
    for number, part in enumerate(told, 1):
        splits += part
        progress(number, len(TABLES))
    took = time.monotonic() - began
    rows = [row for one in splits for row in one.rows()]
    for name in FIGURES:
        rows += table_rows(name, data, quick=quick)
    rows.append(at_most("the whole bench", took, MOST_S, "s", how=f"all fits, on {os.cpu_count()} cores"))
    machine = {"system": platform.platform(), "python": platform.python_version()}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult("dnn", tuple(rows), date, machine, split_documents(splits))


def table_splits(table: str, data: Path, *, quick: bool) -> Sequence[SplitResult | RefusedSplit]:
    """Return the splits of one table."""
    found: Sequence[SplitResult | RefusedSplit] = import_module(f"benchmarks.dnn.{table}").asked(data, quick=quick)
    return found


def table_rows(module: str, data: Path, *, quick: bool) -> Sequence[BenchmarkRow]:
    """Return the figures of one module."""
    found: Sequence[BenchmarkRow] = import_module(f"benchmarks.dnn.{module}").rows(data, quick=quick)
    return found
