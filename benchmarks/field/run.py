"""``bench field``: the field station as a whole, and its parts."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.field.ingestion import ingestion_rows
from benchmarks.field.seasons import season_rows
from benchmarks.field.station_rows import station_rows
from benchmarks.field.transfers import transfer_rows
from benchmarks.results import BenchmarkResult, BenchmarkRow
from leadline.core.errors import UnknownName

PARTS = ("station", "faults", "ingestion", "transfers", "seasons")
FOLDER_VARIABLE = "LEADLINE_FIELD_FOLDER"
"""Keeps the curves of the seasons, the measured copies and the reports in this folder."""


def run(*, quick: bool = False, only: str | None = None) -> BenchmarkResult:
    """Measure the field station, or some of ``PARTS``, with commas between.

    Raises:
        UnknownName: There is no such part.
    """
    parts = only.split(",") if only else PARTS
    for part in parts:
        if part not in PARTS:
            raise UnknownName("part of bench field", part, PARTS, fix=f"it has {', '.join(PARTS)}")
    kept = os.environ.get(FOLDER_VARIABLE)
    folder = Path(kept).resolve() if kept else Path(tempfile.mkdtemp(prefix="leadline-field-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # Slurm's daemons read their configuration in it
    measure: dict[str, Callable[[], Sequence[BenchmarkRow]]] = {
        "station": lambda: station_rows(folder / "station", quick=quick, faults=False),
        "faults": lambda: station_rows(folder / "faults", quick=quick, faults=True),
        "ingestion": lambda: ingestion_rows(_made(folder / "ingestion"), quick=quick),
        "transfers": lambda: transfer_rows(_made(folder / "transfers"), quick=quick),
        "seasons": lambda: season_rows(folder, quick=quick),
    }
    try:
        rows = [row for part in parts for row in measure[part]()]
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return BenchmarkResult("field", tuple(rows))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
