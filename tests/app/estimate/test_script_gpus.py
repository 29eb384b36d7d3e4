"""Every verb that takes a command counts the GPUs for which its script itself starts processes."""

import sys

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.fit import fit
from leadline.app.estimate.recommend import recommend
from leadline.app.jobs.job_request import JobRequest, infer_request, read_command
from leadline.app.jobs.schedulers import resolve_job_targets
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.recommendation import Constraints, RiskWeights

SPAWN = """
import torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, size):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(100):
        model(torch.rand(32, 64)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
"""
PARTITION = "Pitzer:gpu"


@pytest.fixture
def command(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    toolbox.cache_clear()
    (tmp_path / "train.py").write_text(SPAWN)
    yield (sys.executable, "train.py")
    toolbox.cache_clear()


def test_estimate_fit_and_recommend_count_the_processes_of_the_script(command):
    workload, tools = read_workload(command), toolbox()
    assert estimate(workload, tools, on=[PARTITION]).estimates[0].target.gpus == 2
    assert fit(workload, tools, on=[PARTITION], risk=0.05, changes=False)[0].estimate.target.gpus == 2
    constraints = Constraints(None, None, None, 0.05, RiskWeights())
    assert recommend(workload, tools, constraints, on=["Pitzer"]).options[0].estimate.target.gpus == 2


def test_gpus_that_the_user_gives_stay(command):
    workload = read_workload(command, WorkloadOptions(gpus=1))
    assert fit(workload, toolbox(), on=[PARTITION], risk=0.05, changes=False)[0].estimate.target.gpus == 1


def test_a_request_asks_for_the_gpus_of_the_processes_of_the_script(command):
    (target,) = resolve_job_targets([PARTITION], toolbox().catalog)
    answer = infer_request(JobRequest(command), read_command(command), target, toolbox())
    assert (answer.request.gpus, answer.request.nodes) == (2, 1)
    assert answer.notes[0] == "requesting 2 GPUs (one per process that the script starts); change it with --gpus"
    assert answer.prediction.estimate.target.gpus == 2
