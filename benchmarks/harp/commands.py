"""Whole commands: training on a history of 10,000 runs, and a campaign whose runner is killed and resumed."""

import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.histories import MeasuredHistory, read_histories
from benchmarks.results import BenchmarkRow, at_most
from leadline.app.composition import process_runner
from leadline.app.settings import DATA_DIR_VARIABLE
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.runs import Measurement, Run, Scale, Value
from leadline.execution.processes import start_process
from leadline.history.sqlite import SqliteHistory
from leadline.training.fitting import LARGE, MOST_TO_SELECT, OF_LARGE
from leadline.training.records import RunRecord

HISTORY_RUNS, QUICK_HISTORY_RUNS = 10_000, 1_000
NOISE = 0.03
"""Standard deviation of the log of the random factor on every number of a resampled run."""
LIMIT_S = 600


def large_history_rows(*, quick: bool = False, data: Path | None = None) -> list[BenchmarkRow]:
    """Time ``leadline train`` and ``leadline recommend`` on runs resampled from the first measured history.

    Raises:
        LeadlineError: A command failed, or took longer than ten minutes.
    """
    count = QUICK_HISTORY_RUNS if quick else HISTORY_RUNS
    history = read_histories(data)[0]
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteHistory(Path(folder) / "history.sqlite")
        runs = resampled_runs(history, count)
        for run in runs:
            store.add(run)
        model = Path(folder) / "model.npz"
        train_s = _timed(["train", history.name, "--to", str(model)], folder)
        words = [word for name, value in runs[-1].parameters.items() for word in ("--set", f"{name}={value}")]
        recommend_s = _timed(["recommend", str(model), *words], folder)
    how = f"whole commands, on runs resampled from {history.name} with {100 * NOISE:.0f} % noise"
    compared = OF_LARGE if count > LARGE else MOST_TO_SELECT
    subset = f"candidates are compared on {compared} runs, and the chosen one is fitted on all; walltime and memory"
    return [
        at_most(f"train on {count:,} runs, candidates compared on {compared}", train_s, 60.0, "s", n=count,
                how=f"{how}; {subset}"),
        at_most(f"recommend after {count:,} runs", recommend_s, 1.0, "s", how=f"{how}; the whole catalog"),
    ]  # fmt: skip


def resampled_runs(history: MeasuredHistory, count: int, seed: int = 0) -> list[Run]:
    """Return ``count`` runs drawn from the completed runs of a history, with noise; full scale last."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    completed = [record for record in history.records if record.state is JobState.COMPLETED]
    drawn = sorted(rng.choices(completed, k=count), key=lambda record: record.scale is Scale.FULL_SCALE)
    return [_resampled(record, number, rng) for number, record in enumerate(drawn)]


def _resampled(record: RunRecord, number: int, rng: random.Random) -> Run:
    def noise() -> float:
        return math.exp(rng.gauss(0, NOISE))

    def noisy(value: Value) -> Value:
        if isinstance(value, str):
            return value
        return max(1, round(value * noise())) if isinstance(value, int) else value * noise()

    cores = record.features.get("cores")
    resources = ResourceSpec(cores_per_task=int(cores) if isinstance(cores, int | float) else None)
    return Run(
        id=f"{number:012x}",
        job=JobSpec(record.application, (), resources),
        state=JobState.COMPLETED,
        started_at=f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
        scale=record.scale,
        measured={
            name: Measurement(value * noise(), name.rpartition("_")[2], "resampled")
            for name, value in record.metrics.items()
        },
        parameters={name: noisy(record.features[name]) for name in sorted(record.parameters)},
        tags={"campaign": record.application},
    )


def _timed(arguments: Sequence[str], folder: str) -> float:
    """Return the seconds of a Leadline command whose data folder is ``folder``."""
    begun = time.perf_counter()
    ended = process_runner()(
        [sys.executable, "-m", "leadline", *arguments],
        env={DATA_DIR_VARIABLE: folder, "COLUMNS": os.environ.get("COLUMNS", "120")},
        timeout_s=LIMIT_S,
    )
    if ended.timed_out or ended.returncode != 0:
        reason = f"took more than {LIMIT_S} s" if ended.timed_out else f"failed: {_last_line(ended)}"
        raise LeadlineError(f"leadline {arguments[0]} {reason}")
    return time.perf_counter() - begun


KILLS = 5
RESUMED_RUNS, QUICK_RESUMED_RUNS = 24, 12
NAP_S = 0.3
PATIENCE_S = 120.0

_CAMPAIGN = """
name = "naps"
command = ["{python}", "nap.py", "{{number}}"]
design = "grid"
scaled_down_runs = 1
full_scale_runs = {runs}
limit = "1m"

[parameters.number]
kind = "integer"
scaled_down = [0, 0]
full_scale = [1, {runs}]
"""
_NAP = f"""
import sys, time
time.sleep({NAP_S})
with open("done.txt", "a") as done:
    done.write(sys.argv[1] + "\\n")
"""


def resumed_campaign_rows(*, quick: bool = False, data: Path | None = None) -> list[BenchmarkRow]:  # noqa: ARG001 - as the others
    """Complete a campaign of short jobs whose runner is killed (SIGKILL, its process group) at random moments.

    Raises:
        LeadlineError: The campaign did not complete, or one of its commands failed.
    """
    runs = QUICK_RESUMED_RUNS if quick else RESUMED_RUNS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "naps.toml"
        file.write_text(_CAMPAIGN.format(python=sys.executable, runs=runs), encoding="utf-8")
        (folder / "nap.py").write_text(_NAP, encoding="utf-8")
        kills = _killed_and_resumed(file)
        finished = Counter((folder / "done.txt").read_text(encoding="utf-8").split())
        kept = list(SqliteHistory(folder / "data" / "history.sqlite").runs())
    completed = {run.parameters["number"] for run in kept if run.state is JobState.COMPLETED}
    how = f"{runs + 1} naps of {NAP_S} s; the runner was killed {kills} times and started again"
    return [
        at_most("killed campaign: runs lost", runs + 1 - len(completed), 0, "", n=kills, how=how),
        at_most("killed campaign: runs made twice", sum(finished.values()) - len(finished), 0, "", n=kills, how=how),
    ]


def _killed_and_resumed(file: Path) -> int:
    """Kill the campaign at random times, then let it complete; return how often it was killed before its end."""
    chance = random.Random(0)  # noqa: S311 - no secret
    argv = [sys.executable, "-m", "leadline", "campaign", "run", str(file), "--yes"]
    env = {DATA_DIR_VARIABLE: str(file.parent / "data")}
    kills = 0
    with Path(os.devnull).open("r+b") as nowhere:
        for _ in range(KILLS):
            sink = nowhere.fileno()
            runner = start_process(argv, env=env, stdin=sink, stdout=sink, stderr=sink, own_session=True)
            time.sleep(chance.uniform(0.8, 2.5))
            kills += runner.poll() is None
            with suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
    begun = time.monotonic()
    ended = process_runner()(argv, env=env, timeout_s=PATIENCE_S)
    if ended.timed_out or ended.returncode != 0:
        waited_s = time.monotonic() - begun
        raise LeadlineError(f"the campaign did not complete in {waited_s:.0f} s: {_last_line(ended)}")
    return kills


def _last_line(ended: CompletedProcess) -> str:
    return (ended.stderr or ended.stdout).strip().rpartition("\n")[2] or "no message"
