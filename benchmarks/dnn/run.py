"""``bench dnn``: every table of measured data, fits included, in parallel on all cores."""

import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.dnn.splits import RefusedSplit, SplitResult, split_documents
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most
from leadline.core.errors import InvalidInput

TABLES: tuple[str, ...] = (
    "vision", "selection", "posters", "gnn", "kernels", "transformers", "whole_runs", "collectives",
    "decode",
)  # fmt: skip
"""Modules of this folder with ``splits(data, *, quick)``; the longest first."""

TIMINGS: tuple[str, ...] = ("pricing",)
"""Modules with ``rows(data, *, quick)``: timings, measured when nothing else runs."""

MOST_S = 900.0
"""Target for the whole benchmark on two cores."""

Progress = Callable[[int, int], None]


def run(*, quick: bool = False, data: Path | None = None, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Fit and test all tables on the measured data in the folder ``data``.

    Raises:
        InvalidInput: No folder was given, or it lacks a table.
    """
    if data is None:
        raise InvalidInput("bench dnn needs measured data: give their folder with --data")
    from joblib import Parallel, delayed  # noqa: PLC0415 - comes with scikit-learn, which not everyone has

    began = time.monotonic()
    progress(0, len(TABLES))
    splits: list[SplitResult | RefusedSplit] = []
    tables = Parallel(n_jobs=os.cpu_count() or 1, return_as="generator")(
        delayed(table_splits)(name, data, quick=quick) for name in TABLES
    )
    for number, part in enumerate(tables, 1):
        splits += part
        progress(number, len(TABLES))
    took = time.monotonic() - began
    rows = [row for split in splits for row in split.rows()]
    for name in TIMINGS:
        rows += timing_rows(name, data, quick=quick)
    rows.append(at_most("the whole bench", took, MOST_S, "s", how=f"all fits, on {os.cpu_count()} cores"))
    return BenchmarkResult("dnn", tuple(rows), details=split_documents(splits))


def table_splits(table: str, data: Path, *, quick: bool) -> Sequence[SplitResult | RefusedSplit]:
    """Return the splits of one table."""
    splits: Sequence[SplitResult | RefusedSplit] = import_module(f"benchmarks.dnn.{table}").splits(data, quick=quick)
    return splits


def timing_rows(module: str, data: Path, *, quick: bool) -> Sequence[BenchmarkRow]:
    """Return the timings of one module."""
    rows: Sequence[BenchmarkRow] = import_module(f"benchmarks.dnn.{module}").rows(data, quick=quick)
    return rows
