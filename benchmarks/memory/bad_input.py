"""Leadline's answers to inputs that it cannot predict with certainty, each in a process of its own."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import BenchmarkRow, at_least
from leadline.app.settings import DATA_DIR_VARIABLE
from leadline.execution.processes import run_process

MODELS = """\
from torch import nn


class Selecting(nn.Module):
    def __init__(self, by_mask):
        super().__init__()
        self.first, self.last, self.by_mask = nn.Linear(64, 256), nn.Linear(256, 8), by_mask

    def forward(self, x):
        hidden = self.first(x).relu()
        kept = hidden.sum(1) > 0
        return self.last(hidden[kept] if self.by_mask else hidden[kept.nonzero()[:, 0]])


def masked():
    return Selecting(True)


def positions():
    return Selecting(False)


def plain():
    return nn.Linear(64, 8)
"""
DEVICE = """\
[[devices]]
name = "Mystery"
vendor = "nvidia"
kind = "gpu"
confidence = "found"
source = "a rumour"
memory_gb_per_s = 900
tflops = { float32 = 10 }
"""


@dataclass(frozen=True, slots=True)
class BadInput:
    """A command, its expected exit code and a part of its expected answer."""

    name: str
    words: tuple[str, ...]
    code: int
    expected: str


SHAPE = ("--input", "512x64")
BAD_INPUTS = tuple(
    BadInput(f"{name}, {verb}", (verb, *words), code, expected)
    for verb in ("fit", "estimate")
    for name, words, code, expected in (
        ("boolean mask", ("models.py:masked", *SHAPE, "--on", "T4"), 0, "depends on the data: all was assumed"),
        ("nonzero", ("models.py:positions", *SHAPE, "--on", "T4"), 0, "depends on the data: all was assumed"),
        ("unknown optimizer", ("models.py:plain", *SHAPE, "--on", "T4", "--optimizer", "sophia"), 2,
         "unknown optimizer 'sophia'"),
        ("device without a memory figure", ("models.py:plain", *SHAPE, "--on", "Mystery"), 0, "memory of Mystery"),
    )
)  # fmt: skip


def answers() -> list[tuple[BadInput, int, str]]:
    """Return each case with its exit code and its output."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        Path(folder, "models.py").write_text(MODELS, encoding="utf-8")
        devices = Path(folder, "data", "catalog", "devices")
        devices.mkdir(parents=True)
        (devices / "mystery.toml").write_text(DEVICE, encoding="utf-8")
        env = {DATA_DIR_VARIABLE: str(devices.parents[1]), "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""}
        results = []
        for case in BAD_INPUTS:
            done = run_process(
                [sys.executable, "-m", "leadline", *case.words], env=env, cwd=Path(folder), timeout_s=120.0
            )
            results.append((case, done.returncode, done.stdout + done.stderr))
    return results


def row() -> BenchmarkRow:
    """Count the cases with a clear answer."""
    results = answers()
    unclear = [
        f"{case.name}: exit code {code}, {json.dumps(output[-200:])}"
        for case, code, output in results
        if code != case.code or case.expected not in output
    ]
    how = "; ".join(unclear) or "; ".join(dict.fromkeys(case.name.partition(",")[0] for case in BAD_INPUTS))
    n = len(results)
    return at_least("bad inputs answered clearly", n - len(unclear), n, "cases", n=n, how=how)
