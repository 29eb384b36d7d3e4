"""The bench of forecasts from first steps."""

import os
import sys

import pytest

from benchmarks.probe import JOBS, ProbeJob, compare_probe, script_file, summary


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_a_job_of_even_steps_is_forecast_within_a_fifth(tmp_path):
    script = tmp_path / "even.py"
    script.write_text("import time\nfor epoch in range(30):\n    for i in range(10): time.sleep(0.01)\n")
    found = compare_probe(ProbeJob("even", (str(script),)), time_s=0.6)
    assert abs(found["error_percent"]) < 20
    assert found["probe_s"] < found["whole_s"] / 2
    assert "for epoch in range(30)" in found["how"] or "for i in range(10)" in found["how"]


def test_a_job_that_ends_within_the_probe_is_not_a_forecast(tmp_path):
    script = tmp_path / "brief.py"
    script.write_text("import time\nfor i in range(30): time.sleep(0.002)\n")
    found = compare_probe(ProbeJob("brief", (str(script),)), time_s=5.0)
    assert "ended within the probe" in found["how"]
    assert summary([found]) == []


def test_the_summary_takes_the_errors_without_their_sign():
    details = [{"error_percent": error, "within": abs(error) < 15} for error in (-4.0, 8.0, -20.0)]
    middle, worst, held = summary(details)
    assert (middle.value, middle.met) == (8.0, True)
    assert (worst.value, worst.met) == (20.0, True)
    assert (held.value, held.met) == (2 / 3, False)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_every_job_is_a_file_of_the_bench(job):
    assert script_file(job.words[0]).is_file()
