"""A made-up history in the form of the measured ones, for tests alone."""

import csv
import gzip
import random

import pytest

CAMPAIGN = """
name = "made-up"
command = "python train.py --epochs {epochs} --samples {samples} --width {width} --kind {kind}"
scaled_down_runs = 80
full_scale_runs = 30

[parameters.epochs]
kind = "integer"
scaled_down = [1, 4]
full_scale = [20, 60]

[parameters.samples]
kind = "log-integer"
scaled_down = [500, 4000]
full_scale = [20000, 60000]

[parameters.width]
kind = "log-integer"
range = [32, 512]

[parameters.kind]
choices = ["adam", "sgd"]
"""
COLUMNS = (
    "id", "name", "state", "censored", "scale", "exit_code", "asked_nodes", "asked_cores_per_task",
    "measured_elapsed_s", "measured_host_memory_bytes", "measured_startup_s", "parameter_epochs", "parameter_samples",
    "parameter_width", "parameter_kind",
)  # fmt: skip


def made_up_row(number, scale, rng):
    full = scale == "FS"
    epochs = rng.randint(20, 60) if full else rng.randint(1, 4)
    samples = round(20000 * 3 ** rng.random()) if full else round(500 * 8 ** rng.random())
    width, kind, cores = round(32 * 16 ** rng.random()), rng.choice(["adam", "sgd"]), rng.choice([1, 2])
    step = 2e-6 * (1 + width / 60) * (1.3 if kind == "adam" else 1.0) / cores**0.8
    startup = 1.8 * rng.lognormvariate(0, 0.02)
    elapsed = startup + epochs * samples * step * rng.lognormvariate(0, 0.02)
    memory = (2e8 + samples * 3200 + width * 40000) * rng.lognormvariate(0, 0.01)
    return dict(
        zip(
            COLUMNS,
            (
                f"run{number:04d}", "made-up", "COMPLETED", False, scale, 0, 1, cores, elapsed, round(memory), startup,
                epochs, samples, width, kind,
            ),
            strict=True,
        )
    )  # fmt: skip


@pytest.fixture(scope="session")
def made_up_histories(tmp_path_factory):
    """Return a folder with one history of 64 runs, 14 of them at full scale, and the campaign beside it."""
    folder, rng = tmp_path_factory.mktemp("histories"), random.Random(0)  # noqa: S311 - not secret
    (folder / "made-up.toml").write_text(CAMPAIGN)
    with gzip.open(folder / "made-up.csv.gz", "wt", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for number in range(64):
            writer.writerow(made_up_row(number, "FS" if number >= 50 else "SD", rng))
    return folder


@pytest.fixture
def one_estimator(monkeypatch):
    """Let Leadline fit its scaling law alone, so that a test is quick."""
    from benchmarks.harp import contenders

    monkeypatch.setattr(contenders, "ESTIMATORS", {"scaling_law": contenders.ESTIMATORS["scaling_law"]})
