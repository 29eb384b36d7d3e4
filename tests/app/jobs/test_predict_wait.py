"""Waits at a system are foretold by a process of its own: by its accounting, else as its scheduler plans."""

import os
import stat
import time

import pytest

from leadline.app.background import ask_process
from leadline.app.jobs.plane_waits import predict_waits_in_process
from leadline.app.jobs.predict_wait import WaitForecast, WaitQuestion, predict_wait, queue_name
from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.systems import NodeType, Partition, System

COUNT, ARRAYS = 60, 4
REEF = System("reef", "R", "hpc", "production", "slurm", (Partition("gpu-a100", NodeType("n"), queue="gpu"),))


class Catalog:
    def system(self, name):
        if name != "reef":
            raise UnknownName("system", name, ["reef"])
        return REEF


class NoAccounting:
    """A place whose ``sacct`` says what is wrong (implements what ``predict_wait`` asks of a ``Transport``)."""

    where = "nowhere"

    def run(self, argv, *, stdin=None, env=None, timeout_s):  # noqa: ARG002 - the port's
        assert argv[0] == "sacct"
        return CompletedProcess(1, "", "Slurm accounting storage is disabled\n")


def spec(partition):
    return JobSpec("train", ("true",), ResourceSpec(walltime_s=120.0, cores_per_task=1), "slurm", partition)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))


def test_a_partition_is_called_as_its_scheduler_calls_it():
    assert queue_name(JobSpec("x", ("x",), ResourceSpec(), "reef", "gpu-a100"), Catalog()) == "gpu"
    assert queue_name(spec("any"), Catalog()) == "any"


def test_the_forecast_has_the_reason_for_an_unknown_wait(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = predict_wait(WaitQuestion("slurm", (spec("short"),)), Catalog(), NoAccounting())
    assert (found.learned, found.planned_s) == ((None,), (None,))
    assert "accounting storage is disabled" in found.reason


def test_a_failing_process_is_reported_in_one_sentence(monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", "/proc/nowhere")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with pytest.raises(LeadlineError, match="no_such_module"):
        ask_process("leadline.app.no_such_module", WaitForecast, WaitQuestion("slurm", ()), timeout_s=60)


def count_started(slurm):
    starts = slurm.run(["sacct", "-n", "-X", "-P", "-S", "now-1hour", "-o", "Start"]).stdout
    return sum(line not in ("", "Unknown", "None") for line in starts.splitlines())


@pytest.mark.slow
def test_waits_on_a_real_slurm_come_from_its_accounting_or_its_plan(slurm, tmp_path):
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    for at in range(ARRAYS):
        words = ["sbatch", "-p", "short", "-t", "2", "-a", f"1-{COUNT}", "-o", "/dev/null", "--wrap", "true"]
        before = count_started(slurm)  # other tests' jobs too
        assert slurm.run([*words, "-J", f"a{at}"]).returncode == 0
        slurm.wait(lambda before=before: count_started(slurm) > before, "a job to start")
        time.sleep(2)
    slurm.wait(lambda: not slurm.run(["squeue", "-h", "-p", "short"]).stdout.strip(), "the jobs ran", most_s=120)
    # The accounting is told of a start some seconds later.
    slurm.wait(lambda: count_started(slurm) >= ARRAYS * COUNT, "the accounting", most_s=120)
    found = predict_waits_in_process(WaitQuestion("slurm", (spec("short"), spec("long"))))
    assert found.reason == ""
    assert found.learned[0].wait_s.high < 600
    assert found.learned[0].wait_s.level == 0.9
    assert (found.planned_s[0], found.learned[1]) == (None, None)
    assert 0 <= found.planned_s[1] < 60
