"""Batch scripts: what each site accepts, and a command that arrives as it was typed."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import Limits, NodeType, Partition, SubmitRules
from leadline.core.units import GIB, HOUR_S
from leadline.execution.schedulers.port import Submission
from leadline.execution.schedulers.slurm.script import ClusterPython, batch_script

GOLDEN = Path(__file__).parent / "golden"
BASH = shutil.which("bash") or "/bin/bash"
TRAIN = ("python", "train.py", "--epochs", "3", "--run-name", "it's a run")

PITZER = Partition(
    "gpu",
    NodeType("dual GPU 2018", cores=40, usable_memory_bytes=363 * GIB, device="V100 PCIe 16GB", gpus=2),
    limits=Limits(max_walltime_s=168 * HOUR_S),
    rules=SubmitRules(requires=("--account",)),
)
LONESTAR6 = Partition(
    "gpu-a100",
    NodeType("A100", cores=128, memory_bytes=256 * GIB, device="A100 PCIe 40GB", gpus=3),
    limits=Limits(max_walltime_s=48 * HOUR_S, max_nodes=8),
    rules=SubmitRules(
        rejects=("--mem", "--gres", "--gpus-per-task"),
        requires=("-t", "-N"),
        gpu_option=None,
        whole_nodes=True,
        launcher="ibrun",
    ),
)
EXPANSE = Partition(
    "gpu-shared",
    NodeType("GPU", cores=40, memory_bytes=384 * GIB, device="V100 SXM2 32GB", gpus=4),
    limits=Limits(max_walltime_s=48 * HOUR_S, max_nodes=1),
    rules=SubmitRules(requires=("--account",), gpu_option="--gpus={total}"),
)
PERLMUTTER = Partition(
    "regular-gpu",
    NodeType("GPU 40GB", cores=64, memory_bytes=256 * GIB, device="A100 SXM4 40GB", gpus=4),
    queue="",
    limits=Limits(max_walltime_s=48 * HOUR_S),
    rules=SubmitRules(
        requires=("-C", "-q", "-A"),
        whole_nodes=True,
        constraint="gpu",
        qos="regular",
        notes=("the default QOS is debug",),
    ),
)


FOLDER = PurePosixPath("/scratch/me")
MEASURER = ClusterPython("/opt/python", "/opt/wrapper.py")


def script_of(spec, partition=None, key="k7f3"):
    return batch_script(Submission(key, spec), partition, FOLDER, MEASURER)


def job(*, account="PAS0001", nodes=1, gpus=1, cores=8, memory=32 * GIB, walltime=7201.0, **more):
    resources = ResourceSpec(nodes, 1, cores, gpus, memory, walltime)
    return JobSpec("digits cnn", TRAIN, resources, account=account, setup=("module load cuda",), **more)


CASES = {
    "osc-pitzer": (job(workdir="/fs/scratch/PAS0001/my run"), PITZER),
    "tacc-lonestar6": (job(account=None, gpus=3, cores=32), LONESTAR6),
    "tacc-lonestar6-two-nodes": (job(nodes=2, gpus=3, cores=32), LONESTAR6),
    "sdsc-expanse": (job(account="abc123", gpus=2), EXPANSE),
    "nersc-perlmutter": (job(account="m0001", gpus=4, environment={"OMP_NUM_THREADS": "8"}), PERLMUTTER),
    "bare-cluster": (job(account=None, gpus=0, memory=None, walltime=None, partition="batch"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_one_kept_for_the_site(name):
    spec, partition = CASES[name]
    assert (GOLDEN / f"{name}.sh").read_text() == script_of(spec, partition)


@pytest.mark.parametrize("name", CASES)
def test_no_script_has_an_empty_or_rejected_option_and_bash_reads_it(name):
    spec, partition = CASES[name]
    script = script_of(spec, partition)
    options = dict(re.findall(r"^#SBATCH (--[a-z-]+)=(.*)$", script, re.MULTILINE))
    assert len(options) == script.count("#SBATCH")
    assert "" not in options.values()
    assert not set(options) & set(partition.rules.rejects if partition else ())
    subprocess.run([BASH, "-n"], input=script.encode(), check=True)


@pytest.mark.parametrize("partition", [PITZER, EXPANSE, PERLMUTTER], ids=lambda one: one.name)
def test_a_site_that_charges_projects_gets_no_script_without_one(partition):
    with pytest.raises(
        InvalidInput, match="accepts no job without --account: name the project to charge with --account"
    ):
        script_of(job(account=None), partition)


def test_a_site_that_demands_a_time_gets_no_script_without_one():
    with pytest.raises(InvalidInput, match="accepts no job without --time"):
        script_of(job(walltime=None), LONESTAR6)


def test_limits_on_the_whole_job_count_every_node():
    shared = replace(PITZER, limits=Limits(max_cores=64, max_gpus=2))
    script_of(job(nodes=2, gpus=1, cores=32), shared)
    with pytest.raises(InvalidInput, match="66 cores are not available"):
        script_of(job(nodes=2, gpus=1, cores=33), shared)
    with pytest.raises(InvalidInput, match="4 GPUs are not available"):
        script_of(job(nodes=2, gpus=2, cores=8), shared)


def test_the_time_is_rounded_up_to_the_minute():
    assert "#SBATCH --time=02:01:00\n" in script_of(job(walltime=7201.0), PITZER)
    assert "#SBATCH --time=02:00:00\n" in script_of(job(walltime=7200.0), PITZER)


def test_a_short_job_is_not_warned_before_its_end():
    assert "--signal" not in script_of(job(walltime=300.0), PITZER)
    assert "--signal=B:USR1@300" in script_of(job(walltime=48.0 * HOUR_S), PITZER)


def test_memory_is_requested_per_core_where_sites_reject_it_per_node():
    by_core = replace(PITZER, rules=SubmitRules(rejects=("--mem",)))
    assert "#SBATCH --mem-per-cpu=4096M\n" in script_of(job(memory=32 * GIB, cores=8), by_core)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"gpus": 3}, "3 GPUs a node are not available in partition gpu: it has at most 2"),
        ({"cores": 41}, "41 cores a node"),
        ({"memory": 400 * GIB}, "400 GiB memory a node"),
        ({"walltime": 169.0 * HOUR_S}, "7d 01h walltime"),
        ({"walltime": 0.0}, "a walltime of 0.0 s is not possible"),
        ({"account": "a b"}, "'a b' cannot be the value of --account"),
        ({"account": "a\n#SBATCH --x=1"}, "cannot be the value of --account"),
        ({"environment": {"A-B": "1"}}, "'A-B' cannot be an environment variable"),
    ],
)
def test_requests_that_the_scheduler_would_refuse_are_refused_first(asked, reason):
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        script_of(job(**asked), PITZER)


WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=40)
@given(words=st.lists(WORD, min_size=1, max_size=5))
def test_any_words_reach_the_command_as_they_were_typed(words):
    spec = JobSpec("echo", ("printf", r"%s\0", *words), ResourceSpec())
    script = script_of(spec)
    ended = subprocess.run([BASH, "-c", script], env={"SLURM_JOB_NAME": "echo-k7f3"}, capture_output=True, check=True)
    assert [word.encode() for word in words] == ended.stdout.split(b"\0")[:-1]


def test_a_minimum_walltime_is_requested_if_it_is_shorter():
    asked = ResourceSpec(cores_per_task=1, walltime_s=8 * HOUR_S, least_walltime_s=2 * HOUR_S)
    spec = JobSpec("train", ("true",), asked)
    assert "#SBATCH --time-min=02:00:00\n" in script_of(spec)
    assert "--time-min" not in script_of(replace(spec, resources=replace(asked, least_walltime_s=8 * HOUR_S)))
    closed = Partition("batch", NodeType("n", cores=8), rules=SubmitRules(rejects=("--time-min",)))
    assert "--time-min" not in script_of(spec, closed)
