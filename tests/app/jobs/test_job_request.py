"""The verb submit: the job that is asked for, its script, and a real run beside its prediction."""

import os
import re
import sys
from dataclasses import dataclass, replace

import pytest

from leadline.app.estimate.estimate import Toolbox
from leadline.app.jobs.history import compare_run, export_runs, list_runs, show_run
from leadline.app.jobs.job_request import JobRequest, build_job_spec, resolve_request
from leadline.app.jobs.schedulers import find_partition, resolve_job_targets
from leadline.app.jobs.submit import raise_if_failed, run_locally
from leadline.core.errors import InvalidInput, JobFailed, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Place
from leadline.core.systems import NodeType, Partition, SubmitRules, System
from leadline.core.units import GIB

SLEEP = (sys.executable, "-c", "import time; time.sleep(0.2)")
PREDICTED = Estimate(
    Target("cpu"), "roofline", Basis(Tier.CALIBRATED), elapsed_s=Interval(1.0, 0.01, 100.0),
    host_memory_bytes=Interval(1.0, 0.5, 2.0),
)  # fmt: skip


@dataclass
class OneSystem:
    """A catalog of one Slurm system and one cloud."""

    def system(self, name):
        gpu = Partition(
            "gpu", NodeType("n", cores=40, device="V100", gpus=2), rules=SubmitRules(requires=("--account",))
        )
        systems = {
            "pitzer": System("Pitzer", "OSC", "cluster", "production", "slurm", (gpu,)),
            "ec2": System("EC2", "AWS", "cloud", "production", "", (gpu,)),
        }
        if name.casefold() not in systems:
            raise UnknownName("system", name, systems)
        return systems[name.casefold()]

    def systems(self):
        return [self.system("Pitzer"), self.system("EC2")]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_a_command_becomes_a_job_named_after_its_script():
    spec = build_job_spec(
        JobRequest(("python", "runs/train.py", "--x"), account="A", gpus=2, cores=8), Place("Pitzer", "gpu")
    )
    assert spec.name == "train"
    assert (spec.system, spec.partition, spec.account) == ("Pitzer", "gpu", "A")
    assert (spec.resources.gpus_per_node, spec.resources.cores_per_task) == (2, 8)


def test_gpus_are_spread_over_the_nodes_or_refused():
    assert build_job_spec(JobRequest(("x",), nodes=2, gpus=8)).resources.gpus_per_node == 4
    with pytest.raises(InvalidInput, match="3 GPUs do not divide evenly over 2 nodes"):
        build_job_spec(JobRequest(("x",), nodes=2, gpus=3))


def test_a_workload_file_brings_its_command_and_its_gpus(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('command = "python train.py --lr {lr}"\ngpus = 2\n[parameters]\nlr = 0.1\n')
    spec = build_job_spec(JobRequest((str(path),)))
    assert spec.command == ("python", "train.py", "--lr", "0.1")
    assert spec.resources.gpus_per_node == 2


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (JobRequest(nodes=0), "--nodes is 0"),
        (JobRequest(gpus=-1), "--gpus is -1"),
        (JobRequest(walltime_s=0.0), "--time is 0"),
    ],
)
def test_a_request_out_of_range_is_refused(request_, reason):
    with pytest.raises(InvalidInput, match=f"{reason}, but it must be at least"):
        build_job_spec(replace(request_, subject=("x",)))


def test_the_job_follows_the_rules_of_the_system_named():
    request = JobRequest(("x",), ("Pitzer:gpu",), account="PAS1", gpus=1, cores=1, memory_bytes=GIB, walltime_s=60.0)
    tools = Toolbox(OneSystem(), {}, None)
    submission = resolve_request(request, tools)
    assert (submission.spec.partition, submission.spec.resources.gpus_per_node) == ("gpu", 1)
    with pytest.raises(InvalidInput, match="Pitzer:gpu accepts no job without --account"):
        resolve_request(replace(request, account=None), tools)


def test_a_place_without_a_scheduler_or_without_a_partition_is_refused():
    with pytest.raises(InvalidInput, match=r"EC2 has no supported scheduler \(none\)"):
        resolve_job_targets(["EC2:gpu"], OneSystem())
    with pytest.raises(InvalidInput, match="write Pitzer:PARTITION, one of gpu"):
        resolve_job_targets(["Pitzer"], OneSystem())


def test_a_campaign_names_a_partition_of_a_slurm_system():
    spec = JobSpec("x", ("x",), ResourceSpec())
    assert find_partition(replace(spec, system="Pitzer", partition="gpu"), OneSystem()).name == "gpu"
    with pytest.raises(InvalidInput, match="EC2 does not use Slurm"):
        find_partition(replace(spec, system="EC2", partition="gpu"), OneSystem())
    with pytest.raises(InvalidInput, match="no cluster given"):
        find_partition(spec, OneSystem())
    with pytest.raises(UnknownName, match="unknown system 'Pitzer'"):
        find_partition(replace(spec, system="Pitzer"), None)


def test_a_run_enters_the_history_beside_its_prediction():
    run = run_locally(build_job_spec(JobRequest(SLEEP)), predicted=PREDICTED)
    assert show_run(run.id) == run
    time, memory = compare_run(run)
    assert time.measured == run.measured["elapsed_s"].value
    assert time.error == (1.0 - time.measured) / time.measured
    assert time.within
    assert memory.error == pytest.approx(-1.0, abs=1e-3)
    assert not memory.within


def test_a_run_that_was_cut_off_has_no_error_but_a_lower_bound():
    run = run_locally(build_job_spec(JobRequest(("sleep", "60"), walltime_s=1.0)), predicted=PREDICTED)
    assert run.state is JobState.TIMEOUT
    assert all(one.error is None and one.within is None and one.lower_bound for one in compare_run(run))
    with pytest.raises(JobFailed, match="ended TIMEOUT"):
        raise_if_failed(run)


def test_a_command_that_cannot_start_leaves_no_trace():
    with pytest.raises(InvalidInput, match="there is no such program"):
        run_locally(build_job_spec(JobRequest(("no-such-program",))))
    assert list_runs() == ()


def test_the_history_is_exported_with_a_line_a_run():
    run_locally(build_job_spec(JobRequest(SLEEP, name="nap")))
    header, line = export_runs("csv").splitlines()
    assert line.split(",")[header.split(",").index("name")] == "nap"
    assert '"schema": "leadline.history/1"' in export_runs("json")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("config.json", "config.json is not a command: write leadline estimate config.json, or name the command"),
        ("net.py:build", "net.py:build is not a command: write leadline estimate net.py:build"),
        ("./notes.txt", "./notes.txt is a file that cannot be run as a command: make it executable and write ./notes"),
        ("train.py", "train.py is a file that cannot be run as a command: name its interpreter, as in -- python train"),
        ("./run.sh", "name its interpreter, as in -- bash ./run.sh"),
        ("./folder", "./folder is a folder: name the command to run"),
    ],
)
def test_a_file_that_is_no_program_is_refused_with_the_fix(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("config.json", "net.py", "notes.txt", "train.py", "run.sh"):
        (tmp_path / file).write_text("x = 1\n")
    for words in ((name,), (name, "--epochs", "3")):
        with pytest.raises(InvalidInput, match=re.escape(reason)):
            build_job_spec(JobRequest(words))
        with pytest.raises(InvalidInput, match=re.escape(reason)):
            resolve_request(JobRequest(words), Toolbox(OneSystem(), {}, None))


@pytest.mark.parametrize("word", ["./config.json", "config.json", "./job.onnx"])
def test_the_right_to_run_a_model_s_file_makes_it_no_command(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / word).write_text("{}")
    (tmp_path / word).chmod(0o755)
    with pytest.raises(InvalidInput, match=re.escape(f"{word} is not a command: write leadline estimate {word}")):
        build_job_spec(JobRequest((word,)))


def test_a_program_is_left_alone_if_it_can_be_run_or_is_not_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    for program in ("./run.sh", "echo", "solver-of-the-site"):
        assert build_job_spec(JobRequest((program,))).command == (program,)
    (tmp_path / "run.sh").chmod(0o644)
    assert build_job_spec(JobRequest(("./run.sh",), setup=("chmod +x run.sh",))).command == ("./run.sh",)
