"""The bench of forecasts from first steps."""

import os
import sys

import pytest

from leadline.bench.probe import HERE, JOBS, Job, compare, summary


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_a_job_of_even_steps_is_forecast_within_a_fifth(tmp_path):
    script = tmp_path / "even.py"
    script.write_text("import time\nfor epoch in range(30):\n    for i in range(10): time.sleep(0.01)\n")
    found = compare(Job("even", (str(script),)), time_s=0.6)
    assert abs(found["error_percent"]) < 20
    assert found["probe_s"] < found["whole_s"] / 2
    assert "for epoch in range(30)" in found["how"] or "for i in range(10)" in found["how"]


def test_a_job_that_ends_within_the_probe_is_not_a_forecast(tmp_path):
    script = tmp_path / "brief.py"
    script.write_text("import time\nfor i in range(30): time.sleep(0.002)\n")
    found = compare(Job("brief", (str(script),)), time_s=5.0)
    assert "ended within the probe" in found["how"]
    assert [] == summary([found])


def test_the_summary_takes_the_errors_without_their_sign():
    details = [{"error_percent": error, "within": abs(error) < 15} for error in (-4.0, 8.0, -20.0)]
    middle, worst, held = summary(details)
    assert (8.0, True) == (middle.value, middle.met)
    assert (20.0, True) == (worst.value, worst.met)
    assert (2 / 3, False) == (held.value, held.met)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_every_job_is_a_file_of_the_bench(job):
    assert (HERE / job.words[0]).is_file()
