"""Traces of scripts that start processes, or that a launcher starts."""

import shlex
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, Stage, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

PROCESSES = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def produce(queue):
    for number in range(100):
        queue.put(number)

def train(rank, size, numbers, ended):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.rand(240, 8))
    for (x,) in DataLoader(data, 6, sampler=DistributedSampler(data)):
        if numbers is not None:
            numbers.get()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert [3.0, 2.0] == torch.tensor([torch.tensor(3.0, device="cuda"), 2.0], device="cuda").tolist()
    if ended is not None:
        ended.put(rank)
    dist.destroy_process_group()

if __name__ == "__main__":
    size = torch.cuda.device_count()
    if sys.argv[1] == "spawn":
        mp.spawn(train, args=(size, None, None), nprocs=size)
    else:
        numbers, ended = mp.Queue(), mp.Queue()
        helper = mp.Process(target=produce, args=(numbers,))
        ranks = [mp.Process(target=train, args=(rank, size, numbers, ended)) for rank in range(size)]
        for process in (helper, *ranks):
            process.start()
        assert 0 == ended.get()
        for process in ranks:
            process.join()
            assert process.exitcode == 0
        helper.terminate()
"""


@pytest.mark.parametrize("how", ["spawn", "processes beside one that makes data"])
def test_the_first_of_the_ranks_that_a_script_starts_is_traced_in_place(tmp_path: Path, how: str) -> None:
    job = _trace(tmp_path, PROCESSES, arguments=shlex.quote(how), gpus=4)
    assert [op.dims for op in _collectives(job)] == [{"bytes": 4 * 72, "ranks": 4}]
    assert (job.loop.world_size, job.loop.batch, job.loop.steps_per_epoch) == (4, 6, 10)
    assert any("the first was traced in place of all" in note for note in job.notes)


def test_a_launcher_of_a_process_for_each_gpu_sets_the_ranks_and_says_how_many(tmp_path: Path) -> None:
    code = """
    import os, torch, torch.distributed as dist
    assert "0 0 1 1" == " ".join(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    dist.init_process_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        model(torch.rand(4, 8)).sum().backward()
        optimizer.step()
    """
    job = _trace(tmp_path, code, launcher="-m torch.distributed.run --nproc_per_node=gpu")
    assert (_collectives(job), job.loop.world_size) == ([], 1)
    assert (
        "--nproc_per_node=gpu starts a process for each GPU: 1 GPUs were taken; --gpus sets another number" in job.notes
    )


def test_training_in_a_program_that_the_script_starts_is_refused_with_its_line(tmp_path: Path) -> None:
    code = """
    import subprocess, sys, torch
    subprocess.run([sys.executable, "-m", "missing.module"])
    model = torch.nn.Linear(4, 4).cuda()
    with torch.no_grad():
        for batch in range(5):
            model(torch.rand(2, 4).cuda())
    """
    with pytest.raises(Untraceable, match="trained in a child process that cannot be traced") as caught:
        _trace(tmp_path, code)
    assert f"{tmp_path}/train.py:3" == caught.value.location


def test_data_parallelism_in_one_process_splits_the_batch_among_the_gpus_of_the_machine(tmp_path: Path) -> None:
    code = """
    import torch
    from torch.utils.data import DataLoader
    model = torch.nn.DataParallel(torch.nn.Linear(8, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in DataLoader(torch.rand(96, 8), 12):
        out = model(x)
        assert out.shape == (12, 4)
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    job = _trace(tmp_path, code, gpus=3)
    assert [tuple(op.dims[axis] for axis in "mnk") for op in job.step.ops if op.name == "aten.addmm"] == [(4, 4, 8)]
    assert (job.loop.world_size, job.loop.batch, job.loop.steps_per_epoch) == (3, 4, 8)
    sent = [(op.stage, op.name, op.dims["bytes"]) for op in _collectives(job)]
    assert sent == [(Stage.FORWARD, "c10d.broadcast", 4 * 36), (Stage.BACKWARD, "c10d.reduce", 4 * 36)]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("torch.distributed.rpc.init_rpc('worker0', rank=0, world_size=2)", "trains by calls of other processes"),
        (
            "torch.distributed.pipelining.PipelineStage(None, 0, 2, 'cuda')",
            "trains in pipeline stages",
        ),
    ],
)
def test_jobs_whose_ranks_differ_are_refused(tmp_path: Path, call: str, reason: str) -> None:
    code = f"import torch.distributed.rpc\nimport torch.distributed.pipelining\n{call}\n"
    with pytest.raises(Untraceable, match=reason) as caught:
        _trace(tmp_path, code)
    assert f"{tmp_path}/train.py:3" == caught.value.location


MESH = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "tensor"))
block = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
block = parallelize_module(block.cuda(), mesh["tensor"], {
    "0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)),
    "3": RowwiseParallel(output_layouts=Shard(1)),
})
model = fully_shard(block, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    model(torch.rand(4, 5, 16, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_rank_of_a_device_mesh_has_its_share_of_work_weights_and_collectives(tmp_path: Path) -> None:
    job = _trace(tmp_path, MESH, launcher="-m torch.distributed.run --nproc_per_node=4")
    products = sum(op.flops for op in job.step.ops if op.kind is OpKind.GEMM)
    # Two products of 40 tokens (those of both tensor ranks) by 16 x 32 weights, and twice that backward.
    assert products == 2 * 3 * 2 * 40 * 16 * 32
    shards = (16 * 64 + 64 + 64 * 16) // 2 + 16 + 2 * 16  # weights of one tensor rank; FSDP halves them again
    assert shards / 2 == job.step.parameters
    assert job.loop.model_parameters == 16 * 64 + 64 + 64 * 16 + 3 * 16
    sent = Counter(
        (op.stage, op.name.rpartition(".")[2], op.dims["bytes"], op.dims["ranks"]) for op in _collectives(job)
    )
    tokens = 4 * 4 * 10 * 16
    assert Counter(
        {
            (Stage.FORWARD, "_allgather_base_", 4 * shards, 2): 1,
            (Stage.BACKWARD, "_reduce_scatter_base_", 4 * shards, 2): 1,
            (Stage.FORWARD, "all_gather_into_tensor", tokens, 2): 1,
            (Stage.FORWARD, "reduce_scatter_tensor", tokens, 2): 1,
            (Stage.BACKWARD, "all_gather_into_tensor", tokens, 2): 1,
            (Stage.BACKWARD, "reduce_scatter_tensor", tokens, 2): 1,
        }
    ) == Counter({key: count for key, count in sent.items() if key[1] != "all_reduce"})


POOLS = """
import multiprocessing, sys, torch, torch.distributed as dist
from concurrent.futures import ProcessPoolExecutor, as_completed

def prepare(number):
    return number * number

def begin(size):
    global ranks
    ranks = size

def train(rank, scale=1.0):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=ranks)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        (model(torch.rand(6, 8)).sum() * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    return rank

if __name__ == "__main__":
    settings = {"initializer": begin, "initargs": (4,)}
    with multiprocessing.Pool(2) as helpers:
        assert helpers.map(prepare, range(9)) == [number * number for number in range(9)]
        assert helpers.apply_async(prepare, (3,)).get() == 9
        assert sorted(helpers.imap_unordered(prepare, range(4), chunksize=2)) == [0, 1, 4, 9]
    with ProcessPoolExecutor(2) as helpers:
        assert list(helpers.map(prepare, range(5))) == [0, 1, 4, 9, 16]
    if sys.argv[1] == "map":
        with multiprocessing.get_context("spawn").Pool(4, **settings) as pool:
            assert pool.map(train, range(4)) == [0] * 4
    elif sys.argv[1] == "starmap":
        with torch.multiprocessing.Pool(4, **settings) as pool:
            assert pool.starmap(train, [(rank, 0.5) for rank in range(4)]) == [0] * 4
    elif sys.argv[1] == "apply_async":
        pool = multiprocessing.Pool(4, **settings)
        results = [pool.apply_async(train, (rank,), {"scale": 2.0}) for rank in range(4)]
        pool.close()
        pool.join()
        assert [result.get() for result in results] == [0] * 4
    elif sys.argv[1] == "submit":
        with ProcessPoolExecutor(4, **settings) as executor:
            tasks = [executor.submit(train, rank) for rank in range(4)]
            assert [task.result() for task in as_completed(tasks)] == [0] * 4
    else:
        with ProcessPoolExecutor(4, **settings) as executor:
            assert list(executor.map(train, range(4))) == [0] * 4
"""


@pytest.mark.parametrize("how", ["map", "starmap", "apply_async", "submit", "map of an executor"])
def test_the_first_of_the_ranks_in_a_pool_is_traced_in_place_beside_other_tasks(tmp_path: Path, how: str) -> None:
    job = _trace(tmp_path, POOLS, arguments=shlex.quote(how))
    assert [op.dims for op in _collectives(job)] == [{"bytes": 4 * 72, "ranks": 4}]
    assert (job.loop.world_size, job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (4, 6, 2, 1)
    assert "the script starts 4 training processes: the first was traced in place of all" in job.notes


HANDED_ON = """
import sys, torch
from functools import partial
from torch import multiprocessing

class Trainer:
    def step(self, model, rows):
        model(rows).sum().backward()
        optimizer.step()

def loop(rows, model, trainer):
    for i in range(0, len(rows), 8):
        trainer.step(model, rows[i : i + 8])

def call(function):
    return function()

if __name__ == "__main__":
    model = torch.nn.Linear(16, 4).share_memory()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pool = multiprocessing.get_context("spawn").Pool(1)
    for epoch in range(3):
        rows, trainer = torch.randn(56, 16), Trainer()
        if sys.argv[1] == "in its argument":
            pool.map_async(call, [partial(loop, rows, model, trainer)]).get()
        elif sys.argv[1] == "by name":
            pool.map_async(partial(loop, model=model, trainer=trainer), [rows]).get()
        else:
            pool.apply_async(loop, (rows, model), {"trainer": trainer}).get()
"""


@pytest.mark.parametrize("how", ["in its argument", "by name", "as an object"])
def test_a_task_that_is_handed_what_trains_is_traced_in_place(tmp_path: Path, how: str) -> None:
    job = _trace(tmp_path, HANDED_ON, arguments=shlex.quote(how))
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 3)
    assert job.step.parameters == 68


def test_tasks_of_a_pool_that_train_one_after_another_are_noted(tmp_path: Path) -> None:
    code = """
    import multiprocessing, torch

    def train(fold):
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(50):
            model(torch.rand(6, 8).cuda()).sum().backward()
            optimizer.step()

    if __name__ == "__main__":
        with multiprocessing.Pool(2) as pool:
            pool.map(train, range(10))
    """
    job = _trace(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (50, 1)
    assert "the 10 tasks of a pool are assumed to be 5 rounds: the steps are of one" in job.notes


GROUPS = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
three, others = dist.new_group([0, 1, 2]), dist.new_group([3, 4])
five = dist.split_group(None, [[0, 1, 2, 3, 4], [5, 6, 7]])
models = [
    DistributedDataParallel(torch.nn.Linear(10, 10).cuda(), process_group=three),
    DistributedDataParallel(torch.nn.Linear(20, 20).cuda(), device_mesh=mesh["replicate"]),
    FullyShardedDataParallel(
        torch.nn.Linear(30, 30), device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=0
    ),
]
optimizer = torch.optim.SGD([weight for model in models for weight in model.parameters()], 0.1)
for step in range(9):
    for size, model in zip((10, 20, 30), models):
        model(torch.rand(4, size).cuda()).sum().backward()
    dist.all_reduce(torch.ones(50, device="cuda"), group=five)
    dist.all_reduce(torch.ones(40, device="cuda"), group=mesh["shard"].get_group())
    dist.all_reduce(torch.ones(60, device="cuda"), group=others)
    dist.all_reduce(torch.ones(80, device="cuda"))
    optimizer.step()
    optimizer.zero_grad()
"""


def test_each_process_group_has_its_size_and_one_without_this_rank_sends_nothing(tmp_path: Path) -> None:
    job = _trace(tmp_path, GROUPS, launcher="-m torch.distributed.run --nproc_per_node=8")
    sent = sorted((op.dims["bytes"] // 4, op.dims["ranks"]) for op in _collectives(job))
    hybrid = [(233, 2), (932, 4), (932, 4)]  # reduced among replicas; gathered and scattered among shards
    assert sent == sorted([(110, 3), (420, 2), *hybrid, (50, 5), (40, 4), (80, 8)])


def _collectives(job: TracedJob) -> list:
    return [op for op in job.step.ops if op.kind is OpKind.COMMUNICATION]


def _trace(folder: Path, code: str, *, launcher: str = "", arguments: str = "", gpus: int = 1) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    words = (sys.executable, *launcher.split(), str(script), *shlex.split(arguments))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words), gpus=gpus)
    # The script's own processes start as in a fresh interpreter.
    runner = run_process if "mp.Process" in code or "Pool" in code else run_forked
    return trace_command(workload, runner=runner, cwd=folder)
