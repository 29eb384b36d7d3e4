"""Run the benchmark of the interfaces."""

import tempfile
from pathlib import Path

from benchmarks.interfaces.load import load_rows
from benchmarks.interfaces.questions import rows as question_rows
from benchmarks.results import BenchmarkResult


def run(*, quick: bool = False) -> BenchmarkResult:
    """Ask the questions, then load the page."""
    with tempfile.TemporaryDirectory(prefix="leadline-interfaces-") as folder:
        return BenchmarkResult("interfaces", (*question_rows(), *load_rows(Path(folder), quick=quick)))
