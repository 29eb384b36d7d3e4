"""Run the benchmark of the interfaces."""

import tempfile
from pathlib import Path

from benchmarks.interfaces.live import live_row
from benchmarks.interfaces.load import load_rows
from benchmarks.interfaces.questions import questions_of
from benchmarks.interfaces.questions import rows as question_rows
from benchmarks.interfaces.sliders import slider_rows
from benchmarks.results import BenchmarkResult
from leadline.interfaces.chat.reach import reach_model, system_message


def run(*, quick: bool = False) -> BenchmarkResult:
    """Ask the questions, without a model and of one on Ollama where one answers, then load the page."""
    model, where = reach_model()
    live = live_row(questions_of("held-out"), model, where, system_message() if model else "")
    with tempfile.TemporaryDirectory(prefix="leadline-interfaces-") as name:
        folder = Path(name)
        moved = slider_rows(folder, quick=quick)
        return BenchmarkResult("interfaces", (*question_rows(), live, *moved, *load_rows(folder, quick=quick)))
