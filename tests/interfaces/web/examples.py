"""Jobs, past runs, a campaign and a trained model for the pages to show."""

import os
import sys
import time
from dataclasses import replace

import pytest

from leadline.app import settings
from leadline.app.jobs.journal import journal_path
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import NO_CONSENT, Attempt, EventKind, Job, Place, Policy
from leadline.core.runs import Measurement, Run, Scale
from leadline.execution.clock import ManualClock, iso_utc
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.history.sqlite import SqliteHistory

GIB, HOUR_S = 2**30, 3600.0
ASKED = ResourceSpec(cores_per_task=8, gpus_per_node=1, memory_bytes_per_node=16 * GIB, walltime_s=4 * HOUR_S)
DECISIONS = 12
CAMPAIGN = f"""
name = "naps"
command = [{sys.executable!r}, "-c", "pass", "{{n}}"]
design = "random"
scaled_down_runs = 4
full_scale_runs = 1
first_run = "0.1s"
budget = "20m"

[parameters.n]
scaled_down = [1, 10]
full_scale = [50, 100]
"""


def predicted(elapsed_s, memory_bytes=8 * GIB):
    """An estimate with a 90 % range of a quarter to each side."""
    intervals = {name: Interval(value, 0.75 * value, 1.25 * value)
                 for name, value in (("elapsed_s", elapsed_s), ("host_memory_bytes", memory_bytes))}  # fmt: skip
    target = Target("V100 SXM2 32GB", "Pitzer", "gpu")
    return Estimate(target, "kernels", Basis(Tier.SPECS), device_memory_bytes=32 * GIB, **intervals)


def add_jobs(number=1):
    """Add a job that runs with a narrowing prediction, one that waits, and one that ended; return their keys."""
    now_s = time.time()
    clock, place, began_s = ManualClock(now_s - 2 * HOUR_S), Place("Pitzer", "gpu"), now_s - 1.5 * HOUR_S
    jobs = [
        Job(f"{letter * 4}{number:08}", JobSpec(name, ("python", "train.py"), ASKED, system="Pitzer", partition="gpu"),
            Policy((place,)), created_at=iso_utc(now_s - 2 * HOUR_S), predicted=predicted(3 * HOUR_S))
        for letter, name in (("a", "finetune"), ("b", "evaluate"), ("c", "tokenize"))
    ]  # fmt: skip
    journal_path().parent.mkdir(parents=True, exist_ok=True)
    with PlaneJournal(journal_path(), clock) as journal:
        journal.add(jobs)
        runs, waits, ended = (_attempt(job, place, now_s) for job in jobs)
        runs = _started(runs, began_s, node="p0123")
        ended = _started(ended, began_s, state=JobState.COMPLETED, ended_at=iso_utc(now_s - HOUR_S))
        waits = replace(waits, reason="Priority")
        done = replace(jobs[2], state=JobState.COMPLETED)
        journal.write(jobs=[done], attempts=[runs, waits, ended])
        for step in range(DECISIONS):
            clock.at_s = began_s + step * 400.0
            spread_s = 1.5 * HOUR_S / (step + 1)
            journal.write(events=[_progress(runs, step), _decision(runs, 3 * HOUR_S, spread_s)])
        # The last decision has a prediction, too, as the plane writes it.
        why = f"it will probably need more memory than its limit, but {NO_CONSENT}"
        journal.write(events=[_decision(runs, 3 * HOUR_S, spread_s, why)])
    return [job.key for job in jobs]


def _attempt(job, place, now_s):
    at = iso_utc(now_s - 2 * HOUR_S)
    return Attempt(f"a{job.key}", job.key, 1, place, ASKED, batch=f"a{job.key}", scheduler_id=job.key[-4:], noted_at=at,
                   submitted_at=at)  # fmt: skip


def _started(attempt, began_s, state=JobState.RUNNING, **fields):
    return replace(attempt, state=state, started_at=iso_utc(began_s), **fields)


def _progress(attempt, number):
    said = {"steps": 100 * number, "total": 2500, "elapsed_s": 400.0 * number, "gpu_memory_bytes": 20 * GIB,
            "host_memory_bytes": (4 + number / 4) * GIB}  # fmt: skip
    return NewEvent(EventKind.PROGRESS, attempt.job, attempt.key, said)


def _decision(attempt, total_s, spread_s, why="it will probably end within its limit"):
    said = {"action": "keep", "why": why, "total_s": total_s,
            "total_low_s": total_s - spread_s / 2, "total_high_s": total_s + spread_s}  # fmt: skip
    return NewEvent(EventKind.DECISION, attempt.job, attempt.key, said)


def add_runs(name="solver", count=12):
    """Add past runs whose predictions are 10 % too long, newest last."""
    runs = []
    for number in range(count):
        seconds = 600.0 * (number + 1)
        figures = {"elapsed_s": seconds, "host_memory_bytes": (2.0 + number / 2) * GIB}
        runs.append(Run(
            f"{number + 10:02x}" * 6, JobSpec(name, ("solve", "--steps", str(number)), ASKED), JobState.COMPLETED,
            iso_utc(time.time() - (count - number) * HOUR_S), scale=Scale.FULL_SCALE,
            predicted=predicted(1.1 * seconds),
            measured={quantity: Measurement(value, "", "wrapper") for quantity, value in figures.items()},
            parameters={"steps": 100 * (number + 1)},
        ))  # fmt: skip
    SqliteHistory(settings.history_path()).add_all(runs)
    return runs


def add_model(runs):
    """Train a linear model on runs."""
    from leadline.estimators.tabular.registry import ESTIMATORS
    from leadline.training.build import TrainingOrigin, build_model
    from leadline.training.model import save_model
    from leadline.training.records import TrainingOptions, run_records

    origin = TrainingOrigin("the history", "2026-01-01", "leadline train solver", ("solve", "--steps", "{steps}"))
    model, _ = build_model(run_records(runs), {"linear": ESTIMATORS["linear"]}, origin, TrainingOptions())
    save_model(model, settings.data_dir() / "models" / "solver.npz")
    return model.card


def run_campaign(folder):
    """Run a small campaign to its end."""
    from leadline.interfaces.cli.main import main

    file = folder / "naps.toml"
    file.write_text(CAMPAIGN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        assert main(["campaign", "run", str(file), "-y"]) == 0
