"""How long ``leadline train`` and ``leadline recommend`` take on a history of 10,000 runs, as whole commands."""

import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.histories import History, read_histories
from benchmarks.rows import BenchRow, at_most
from leadline.app.composition import process_runner
from leadline.app.settings import DATA_DIR_VARIABLE
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run, Scale
from leadline.core.samples import Value
from leadline.history.sqlite import SqliteHistory
from leadline.training.records import Record

RUNS, QUICK_RUNS = 10_000, 1_000
NOISE = 0.03
"""Standard deviation of the logarithm of what every figure of a resampled run is times."""
LIMIT_S = 600


def large_rows(*, quick: bool = False, data: Path | None = None) -> list[BenchRow]:
    """Fill an empty history with runs resampled from the first measured history, train on it, and ask the model.

    Raises:
        LeadlineError: a command failed, or took longer than ten minutes.
    """
    count = QUICK_RUNS if quick else RUNS
    history = read_histories(data)[0]
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteHistory(Path(folder) / "history.sqlite")
        runs = resampled(history, count)
        for run in runs:
            store.add(run)
        model = Path(folder) / "model.npz"
        train_s = _timed(["train", history.name, "--to", str(model)], folder)
        asked = [f"{name}={value}" for name, value in runs[-1].parameters.items()]
        recommend_s = _timed(["recommend", str(model), *(word for one in asked for word in ("--set", one))], folder)
    how = f"whole commands, on runs resampled from {history.name} with {100 * NOISE:.0f} % noise"
    return [
        at_most(f"train on {count:,} runs", train_s, 60.0, "s", n=count, how=f"{how}; walltime and memory"),
        at_most(f"recommend after {count:,} runs", recommend_s, 1.0, "s", how=f"{how}; the whole catalog"),
    ]


def resampled(history: History, count: int, seed: int = 0) -> list[Run]:
    """Return ``count`` runs drawn from the completed ones of a history, every number a little off; full scale last."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    completed = [record for record in history.records if record.state is JobState.COMPLETED]
    drawn = sorted(rng.choices(completed, k=count), key=lambda record: record.scale is Scale.FULL_SCALE)
    return [_resampled(record, number, rng) for number, record in enumerate(drawn)]


def _resampled(record: Record, number: int, rng: random.Random) -> Run:
    def off() -> float:
        return math.exp(rng.gauss(0, NOISE))

    def near(value: Value) -> Value:
        if isinstance(value, str):
            return value
        return max(1, round(value * off())) if isinstance(value, int) else value * off()

    cores = record.features.get("cores")
    resources = ResourceSpec(cores_per_task=int(cores) if isinstance(cores, int | float) else None)
    return Run(
        id=f"{number:012x}",
        job=JobSpec(record.application, (), resources),
        state=JobState.COMPLETED,
        started_at=f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
        scale=record.scale,
        measured={
            name: Measurement(value * off(), name.rpartition("_")[2], "resampled")
            for name, value in record.figures.items()
        },
        parameters={name: near(record.features[name]) for name in sorted(record.parameters)},
        tags={"campaign": record.application},
    )


def _timed(arguments: Sequence[str], folder: str) -> float:
    """Return how long a command of Leadline takes with its data in ``folder``, in seconds."""
    begun = time.perf_counter()
    ended = process_runner()(
        [sys.executable, "-m", "leadline", *arguments],
        env={DATA_DIR_VARIABLE: folder, "COLUMNS": os.environ.get("COLUMNS", "120")},
        timeout_s=LIMIT_S,
    )
    if ended.timed_out or ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        why = f"took more than {LIMIT_S} s" if ended.timed_out else f"failed: {said[-1] if said else 'nothing said'}"
        raise LeadlineError(f"leadline {arguments[0]} {why}")
    return time.perf_counter() - begun
