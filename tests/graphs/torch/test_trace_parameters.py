"""Parameters are counted once, in the format and the place they end up in."""

import shlex
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from leadline.core.graph import OpKind, Stage, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

CONVERTED = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model = model.{conversion}
for step in range(9):
    model(torch.rand(8, 100, device="cuda", dtype=torch.{dtype})).float().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("conversion", "dtype"),
    [("to(torch.bfloat16)", "bfloat16"), ("half()", "float16"), ("half().to(torch.bfloat16)", "bfloat16")],
)
def test_a_converted_model_is_counted_once(tmp_path: Path, conversion: str, dtype: str) -> None:
    job = _trace(tmp_path, CONVERTED.format(conversion=conversion, dtype=dtype))
    assert job.step.parameters == 11110
    assert job.step.parameter_bytes == 22220


def test_tied_weights_stay_tied_when_the_model_moves_twice(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30, bias=False))
        model[1].weight = model[0].weight
        model.cuda().to(torch.bfloat16)
        assert model[0].weight is model[1].weight
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.ones(2, 5, dtype=torch.long, device="cuda")).sum().backward()
            optimizer.step()
        """,
    )
    assert (job.step.parameters, job.step.parameter_bytes) == (240, 480)


def test_bare_tensors_on_the_cpu_are_traced_as_they_run(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        x, y = torch.rand(64, 10), torch.rand(64, 1)
        w, b = torch.randn(10, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
        for step in range(500):
            loss = ((x @ w + b - y) ** 2).mean()
            loss.backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
                b -= 0.1 * b.grad
                w.grad.zero_()
                b.grad.zero_()
        """,
    )
    assert job.step.device_type == "cpu"
    assert job.step.parameters == 11
    assert job.loop.steps_per_epoch == 500
    assert [op.dims for op in job.step.ops if op.name == "aten.mm" and op.stage is Stage.FORWARD] == [
        {"b": 1, "m": 64, "n": 1, "k": 10}
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bare_tensors_that_an_optimizer_updates_are_parameters(tmp_path: Path, device: str) -> None:
    job = _trace(
        tmp_path,
        f"""
        import torch
        x, y = torch.rand(64, 10, device="{device}"), torch.rand(64, 1, device="{device}")
        w = torch.randn(10, 1, requires_grad=True, device="{device}")
        b = torch.zeros(1, requires_grad=True, device="{device}")
        optimizer = torch.optim.Adam([w, b])
        for step in range(9):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(x @ w + b, y).backward()
            optimizer.step()
        """,
    )
    assert (device, 11, 44) == (job.step.device_type, job.step.parameters, job.step.parameter_bytes)


SHARDED = """
import functools, os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = nn.Sequential(Block(), Block())
{wrap}
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    model(torch.rand(8, 64, device="cuda")).float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
CLASSIC = "FullyShardedDataParallel(model{}, auto_wrap_policy=ModuleWrapPolicy({{Block}}), {})"
WRAPS = {
    "moved before": "model = " + CLASSIC.format(".cuda()", ""),
    "moved by number": "model = " + CLASSIC.format("", "device_id=torch.cuda.current_device()"),
    "moved by name": "model = " + CLASSIC.format("", "device_id=torch.device('cuda', rank), use_orig_params=True"),
    "per parameter": "[fully_shard(part) for part in (*model, model)]",
    "half": "model = "
    + CLASSIC.format("", "device_id=rank, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"),
}
BLOCK = 2 * 64 * 256 + 64 + 256


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sharded_model_is_counted_once_on_its_device_and_its_collectives_have_sizes(
    tmp_path: Path, wrap: str, ranks: int
) -> None:
    job = _trace(tmp_path, SHARDED.format(wrap=WRAPS[wrap]), ranks=ranks)
    assert (2 * BLOCK // ranks, 8 * BLOCK // ranks) == (job.step.parameters, job.step.parameter_bytes)
    sent = Counter(
        (op.name.rpartition(".")[2], op.dims["bytes"], op.dims["ranks"])
        for op in job.step.ops
        if op.kind is OpKind.COMMUNICATION
    )
    gathered = (2 if wrap == "half" else 4) * BLOCK
    assert {("_allgather_base_", gathered, ranks): 4, ("_reduce_scatter_base_", gathered, ranks): 2} == sent
    multiplied = {op.dtype for op in job.step.ops if op.kind is OpKind.GEMM}
    assert {"bfloat16" if wrap == "half" else "float32"} == multiplied


def test_a_collective_in_a_group_is_among_the_ranks_of_the_group(tmp_path: Path) -> None:
    wrap = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
fully_shard(model, mesh=mesh)
"""
    job = _trace(tmp_path, SHARDED.format(wrap=wrap), ranks=8)
    sent = [op for op in job.step.ops if op.kind is OpKind.COMMUNICATION]
    assert {op.name.rpartition(".")[2]: op.dims["ranks"] for op in sent} == {
        "_allgather_base_": 4,
        "_reduce_scatter_base_": 4,
        "all_reduce": 2,
    }


@pytest.mark.parametrize("conversion", ["p.data.cuda()", "p.data.to(torch.bfloat16).to('cuda')"])
def test_parameters_whose_data_is_replaced_stay_the_same_objects(tmp_path: Path, conversion: str) -> None:
    job = _trace(
        tmp_path,
        f"""
        import torch
        model = torch.nn.Linear(10, 10)
        model.register_buffer("offset", torch.ones(10))
        weights = list(model.parameters())
        for p in weights:
            p.data = {conversion}
        model.offset.data = model.offset.data.to(weights[0])
        assert weights[0] is model.weight and model.weight.is_cuda and model.offset.is_cuda
        model.cuda().half()
        optimizer = torch.optim.SGD(weights, 0.1)
        for step in range(9):
            (model(torch.rand(2, 10).cuda().half()) + model.offset).sum().backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
        """,
    )
    assert (job.step.parameters, job.step.parameter_bytes) == (110, 220)
    assert any("norm" in op.name for op in job.step.ops)


def _trace(folder: Path, code: str, *, ranks: int = 0) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    launcher = ("-m", "torch.distributed.run", f"--nproc_per_node={ranks}") if ranks else ()
    words = (sys.executable, *launcher, str(script))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_forked, cwd=folder)


LOOSE = """
import torch
model, scale = torch.nn.Linear(8, 4), torch.zeros(3, requires_grad=True)
optimizers = [torch.optim.Adam(model.parameters()), torch.optim.Adam([scale])]
for step in range(9):
    (model(torch.rand(2, 8)).sum() * scale.exp().sum()).backward()
    for optimizer in optimizers: optimizer.step()
"""


def test_a_trained_tensor_without_a_module_counts_on_the_cpu(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LOOSE)
    words = (sys.executable, str(script))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    job = trace_command(workload, runner=run_forked, cwd=tmp_path, device_type="cpu")
    assert job.step.parameters == 36 + 3
