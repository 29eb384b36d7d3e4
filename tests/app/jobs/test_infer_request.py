"""What a request leaves open is filled in from the workload, the partition and the prediction, and it is said."""

import sys
from dataclasses import replace

import pytest

from leadline.app.composition import toolbox
from leadline.app.jobs.job_request import JobRequest, infer_request, read_command, resolve_request
from leadline.app.jobs.plane_options import PlaneOptions
from leadline.app.jobs.schedulers import resolve_job_targets
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.units import GIB

SAID = JobRequest(cores=4, memory_bytes=GIB, walltime_s=600.0)
TRAIN = """
import torch
device = torch.device("cuda")
model = torch.nn.Linear(64, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(100):
    optimizer.zero_grad()
    model(torch.randn(32, 64, device=device)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    toolbox.cache_clear()
    yield
    toolbox.cache_clear()


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return "train.py"


def filled(request, place, *command):
    request, (target,) = (
        replace(request, subject=command or ("./job",)),
        resolve_job_targets([place], toolbox().catalog),
    )
    return infer_request(request, read_command(request.subject), target, toolbox())


def test_a_gpu_partition_gives_one_gpu_by_default():
    answer = filled(SAID, "Pitzer:gpu")
    assert (answer.request.gpus, answer.request.nodes) == (1, 1)
    assert (answer.notes) == (
        "requesting 1 GPU (Pitzer:gpu has GPUs, and the job does not say how many it uses); change it with --gpus",
    )


def test_a_partition_of_whole_nodes_gives_all_its_gpus():
    answer = filled(SAID, "Perlmutter:regular-gpu80")
    assert answer.request.gpus == 4
    assert "whole nodes" in answer.notes[0]


@pytest.mark.parametrize("place", ["Pitzer:cpu", "slurm:batch"])
def test_no_gpu_is_requested_on_a_partition_without_gpus(place):
    answer = filled(SAID, place)
    assert not answer.request.gpus
    assert answer.notes == ()


def test_the_users_own_request_stays_even_zero_gpus():
    assert filled(replace(SAID, gpus=0), "Pitzer:gpu").request.gpus == 0
    two = filled(replace(SAID, gpus=4), "Pitzer:gpu")
    assert (two.request.gpus, two.request.nodes) == (4, 2)
    assert two.notes == ()


def test_a_workload_file_sets_the_gpus(tmp_path):
    (tmp_path / "job.toml").write_text('command = "./job --x"\ngpus = 2\n')
    answer = filled(SAID, "Pitzer:gpu", "job.toml")
    assert (answer.request.gpus, answer.request.nodes) == (2, 1)
    assert answer.notes == ()


def test_a_launcher_asks_for_a_gpu_a_process_on_its_own_nodes(script):
    answer = filled(SAID, "Pitzer:gpu", "torchrun", "--nnodes=2", "--nproc_per_node=2", script)
    assert (answer.request.gpus, answer.request.nodes) == (4, 2)
    assert "one per process of the command" in answer.notes[0]


def test_more_processes_than_a_node_has_gpus_are_refused_by_the_script(script):
    words = ("torchrun", "--nproc_per_node=4", script)
    request = replace(SAID, subject=words, on=("Pitzer:gpu",), account="A")
    with pytest.raises(InvalidInput, match="4 GPUs a node are not available in partition gpu: it has at most 2"):
        resolve_request(request, toolbox())


def test_a_command_that_cannot_be_predicted_leaves_the_rest_to_the_site():
    answer = filled(JobRequest(), "Pitzer:gpu")
    assert (answer.request.cores, answer.request.memory_bytes, answer.request.walltime_s) == (None, None, None)
    assert "unset resources are left to the site: './job' is not a Python command" in answer.notes[-1]


def test_a_script_brings_the_cores_the_memory_and_the_time_that_are_predicted(script):
    pytest.importorskip("torch")
    answer = filled(JobRequest(cores=6), "Pitzer:gpu", sys.executable, script)
    assert answer.request.cores == 6
    assert GIB <= answer.request.memory_bytes <= 8 * GIB
    assert answer.request.walltime_s == 300
    assert answer.notes[-1].startswith("requesting, at 5% risk: ")
    assert "(--cores)" not in answer.notes[-1]
    assert "00:05:00 of walltime (--time)" in answer.notes[-1]


def test_a_job_whose_request_is_complete_has_a_prediction_too(script):
    pytest.importorskip("torch")
    answer = filled(SAID, "Pitzer:gpu", sys.executable, script)
    assert answer.prediction.estimate is not None
    assert [note for note in answer.notes if note.startswith("requesting, at")] == []


def test_no_shorter_limit_is_offered_where_the_partition_rejects_it(script):
    pytest.importorskip("torch")
    (target,) = resolve_job_targets(["Pitzer:gpu"], toolbox().catalog)
    rules = replace(target.partition.rules, rejects=("--time-min",))
    closed = replace(target, partition=replace(target.partition, rules=rules))
    request = JobRequest((sys.executable, script), walltime_s=8 * 3600.0)
    answer = infer_request(request, read_command(request.subject), closed, toolbox())
    assert answer.request.least_walltime_s is None
    assert not any("--time-min" in note for note in answer.notes)


def test_the_limit_follows_the_users_risk(script):
    pytest.importorskip("torch")
    (target,) = resolve_job_targets(["Pitzer:gpu"], toolbox().catalog)
    request = JobRequest((sys.executable, script), options=PlaneOptions(risk=0.25))
    notes = infer_request(request, read_command(request.subject), target, toolbox()).notes
    assert notes[-1].startswith("requesting, at 25% risk: ")


def test_a_place_that_does_not_exist_is_named():
    with pytest.raises(UnknownName, match="did you mean 'Pitzer'"):
        filled(SAID, "Pizter:gpu")


def test_a_job_too_large_for_the_device_is_reported(script, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / script).write_text(TRAIN.replace("(64, 10)", "(64, 100_000_000)"))
    notes = filled(JobRequest(), "Pitzer:gpu", sys.executable, script).notes
    assert "of GPU memory, but a V100" in notes[-1]
    assert "leadline recommend shows where it fits" in notes[-1]


def test_a_shorter_limit_is_allowed_if_it_is_expected_to_be_enough(script):
    answer = filled(JobRequest(walltime_s=8 * 3600.0), "Pitzer:gpu", sys.executable, script)
    assert answer.request.walltime_s == 8 * 3600.0
    assert answer.request.least_walltime_s < answer.request.walltime_s
    assert any("the scheduler may set a limit of" in note for note in answer.notes)
    whole = replace(SAID, walltime_s=8 * 3600.0, gpus=1)
    assert filled(whole, "Pitzer:gpu", sys.executable, script).request.least_walltime_s == 300
    fixed = replace(whole, options=PlaneOptions(resizes=False))
    assert filled(fixed, "Pitzer:gpu", sys.executable, script).request.least_walltime_s is None
    least = JobRequest(walltime_s=8 * 3600.0, least_walltime_s=7 * 3600.0)
    assert filled(least, "Pitzer:gpu", sys.executable, script).request.least_walltime_s == 7 * 3600.0
