"""A pipeline with a tier on a real Slurm: time and memory from past runs, and a runner that is killed meanwhile."""

import os
import subprocess
import sys
import time

import pytest

from leadline.app.composition import toolbox
from leadline.app.jobs.journal import find_jobs
from leadline.app.pipelines.runs import pipeline_status, run_pipeline
from leadline.pipelines.runner import LEAST_WALLTIME_S

pytest.importorskip("watchfiles")

TRAIN = "import sys, time; time.sleep(1); open('trained', 'a').write('x')"
PIPELINE = f"""
[pipeline]
name = "station"
folder = "season"

[tiers.hpc]
on = "slurm:short"
cores = 2
memory = "600 MiB"

[events.images]
files = "incoming/*.jpg"
settle = "100 ms"

[stages.train]
command = ["{sys.executable}", "-c", "{TRAIN}"]
on = "images"
batch = {{ most = 5 }}
"""


@pytest.fixture
def station(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    (tmp_path / "season" / "incoming").mkdir(parents=True)
    (tmp_path / "station.toml").write_text(PIPELINE)
    return tmp_path


def arrive(station, *numbers):
    for number in numbers:
        (station / "season" / "incoming" / f"{number}.jpg").write_bytes(b"x")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_runs_go_to_slurm_with_the_time_and_memory_of_past_runs(station):
    arrive(station, *range(5))
    assert run_pipeline(station / "station.toml", idle_s=2.0).completed == 1
    arrive(station, *range(5, 10))
    assert run_pipeline(station / "station.toml", idle_s=2.0).completed == 1
    second, first = find_jobs(all_jobs=True)
    asked = [job.attempts[0].resources for job in (first, second)]
    assert [str(job.policy.places[0]) for job in (first, second)] == ["slurm:short"] * 2
    assert [request.cores_per_task for request in asked] == [2, 2]
    assert (asked[0].walltime_s, asked[0].memory_bytes_per_node) == (None, 600 << 20)
    assert asked[1].walltime_s == LEAST_WALLTIME_S
    assert 1 << 20 < asked[1].memory_bytes_per_node < 600 << 20
    assert second.predicted.elapsed_s.point == pytest.approx(1.2, rel=0.4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_runner_and_a_restarted_controller_repeat_no_run(station, slurm):
    words = [sys.executable, "-m", "leadline", "pipeline", "run", str(station / "station.toml")]
    runner = subprocess.Popen(words, env=dict(os.environ))
    arrive(station, *range(5))
    deadline_s = time.monotonic() + 60
    while not find_jobs(all_jobs=True) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.5)
    runner.kill()
    runner.wait()
    slurm.stop("slurmctld")
    arrive(station, *range(5, 12))
    slurm.start("slurmctld")
    report = run_pipeline(station / "station.toml", idle_s=4.0)
    assert report.failed == 0
    counts = pipeline_status(station / "station.toml").stages[0].counts
    assert (counts.events_done, counts.events_waiting) == (12, 0)
    assert (station / "season" / "trained").read_text() == "x" * counts.completed
