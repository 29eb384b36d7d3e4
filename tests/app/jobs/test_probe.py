"""The verb probe, on real commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.app.jobs.probe import ProbeLimits, probe, suggested_walltime_s
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.interfaces.cli.main import main

LOOP = "import time\nfor epoch in range({epochs}):\n    for i in range(10): time.sleep(0.005)\n    time.sleep(0.02)\n"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(source):
    Path("train.py").write_text(source)
    return sys.executable, "train.py"


def test_a_few_steps_are_scaled_to_the_whole_job():
    found = probe(write(LOOP.format(epochs=1000)), ProbeLimits(time_s=1.0))
    assert not found.finished
    assert found.forecast.units == 1000
    assert 60 <= found.forecast.elapsed_s.point < 180
    assert found.forecast.elapsed_s.low < found.forecast.elapsed_s.point < found.forecast.elapsed_s.high
    assert suggested_walltime_s(found) % 60 == 0
    assert found.measured["host_memory_bytes"].value > 0


def test_a_job_that_ends_by_itself_is_measured_and_not_scaled():
    found = probe(write(LOOP.format(epochs=2)), ProbeLimits())
    assert found.finished
    assert found.measured["elapsed_s"].value == found.forecast.elapsed_s.point
    assert "the job finished" in found.remarks[-1]


def test_a_job_in_another_language_is_extrapolated_from_its_reports():
    loop = 'i=0; while :; do i=$((i+1)); sleep 0.05; echo "step=$i total_steps=2000" >> "$LEADLINE_PROGRESS"; done'
    found = probe(("sh", "-c", loop), ProbeLimits(units=20))
    assert JobState.CANCELLED is found.state
    assert found.forecast.units == 2000
    assert 100 <= found.forecast.elapsed_s.point < 300


def test_an_endless_loop_needs_steps_total():
    command = write("import time\nwhile True:\n    time.sleep(0.005)\n")
    assert "--steps-total" in probe(command, ProbeLimits(units=30)).forecast.unknown["elapsed_s"]
    said = probe(command, ProbeLimits(units=30), units_total=10_000)
    assert 50 <= said.forecast.elapsed_s.point < 150


def test_a_job_without_visible_steps_gets_a_hint():
    found = probe(("sleep", "30"), ProbeLimits(limit_s=0.5))
    assert "LEADLINE_PROGRESS" in found.forecast.unknown["elapsed_s"]


@pytest.mark.parametrize("limits", [ProbeLimits(units=0), ProbeLimits(time_s=-1), ProbeLimits(limit_s=0)])
def test_a_limit_that_is_not_above_zero_is_refused(limits):
    with pytest.raises(InvalidInput, match="must be above 0"):
        probe(("true",), limits)


def test_the_command_prints_one_document_and_the_jobs_output_goes_to_stderr():
    command = write("print('hello')\n" + LOOP.format(epochs=1000))
    words = [sys.executable, "-P", "-m", "leadline", "probe", "--steps", "30", "--json", "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "leadline.probe/1"
    assert document["forecast"]["passes"] == 1000
    assert "hello" in done.stderr


def test_the_command_shows_observations_forecast_and_the_next_command():
    words = [sys.executable, "-P", "-m", "leadline", "probe", "--steps", "30", "--", *write(LOOP.format(epochs=1000))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    for part in (
        "Observed (the script's loops)",
        "for epoch in range(1000)",
        "90% range",
        "leadline submit --time 00:",
    ):
        assert part in done.stdout
    assert "files that the command wrote" in done.stderr


def test_a_command_that_fails_ends_the_probe_with_its_reason(capfd):
    assert main(["probe", "--", *write("import time\nfor i in range(9): time.sleep(0.01)\n1/0\n")]) == 5
    assert "the command failed (exit code 1)" in capfd.readouterr().err


def test_a_probe_without_a_command_is_refused_with_an_example(capfd):
    assert main(["probe"]) == 2
    assert "put it after --" in capfd.readouterr().err
