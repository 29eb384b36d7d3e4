"""Jobs on this machine."""

import os
import sys

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.execution.launch import run_local


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_a_run_contains_the_request_and_the_measurements(tmp_path):
    spec = JobSpec(
        "hello", (sys.executable, "-c", "open('made', 'w').write('x')"), ResourceSpec(), workdir=str(tmp_path)
    )
    said = []
    run = run_local(spec, folder=tmp_path / "runs", on_progress=said.append)
    assert run.state is JobState.COMPLETED
    assert run.exit_code == 0
    assert run.job == spec
    assert (tmp_path / "made").exists()
    assert run.measured["elapsed_s"].value > 0
    assert run.measured["host_memory_bytes"].value > 0
    assert run.started_at < run.ended_at
    assert os.cpu_count() == int(run.tags["node_cores"])
    assert len(said) == 1


def test_the_limits_of_the_job_are_enforced(tmp_path):
    spec = JobSpec("sleep", ("sleep", "60"), ResourceSpec(walltime_s=0.3))
    run = run_local(spec, folder=tmp_path)
    assert run.state is JobState.TIMEOUT
    assert "walltime" in run.tags["reason"]


def test_the_job_gets_its_cores_and_its_own_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    check = "import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'] + os.environ['MINE'] != '3yes')"
    spec = JobSpec("env", (sys.executable, "-c", check), ResourceSpec(cores_per_task=3), environment={"MINE": "yes"})
    assert run_local(spec, folder=tmp_path).state is JobState.COMPLETED


def test_a_program_that_does_not_exist_is_refused_and_no_run(tmp_path):
    with pytest.raises(InvalidInput, match="'no-such-program' cannot be started: there is no such program"):
        run_local(JobSpec("x", ("no-such-program",), ResourceSpec()), folder=tmp_path)


def test_no_command_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="there is no command to run"):
        run_local(JobSpec("x", (), ResourceSpec()), folder=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
