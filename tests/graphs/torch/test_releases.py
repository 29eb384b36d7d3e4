"""Scripts traced by the oldest and newest releases of Python and PyTorch that users have.

``python3 dev matrix`` makes the environments and runs these tests in them; ``python3 dev test`` has one on Debian.
"""

import os
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks.corpus import CORPUS
from benchmarks.trace import wrong_facts
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch import trace

EXTRACTED = Path("/opt/leadline/python-3.13/bin/python")
"""The newer Python of Debian that ``python3 dev test`` extracts."""
GIVEN = os.environ.get("LEADLINE_PYTHONS", str(EXTRACTED) if EXTRACTED.exists() else "")
PYTHONS = [python for python in GIVEN.split(os.pathsep) if python]
NAMES = ("word_lm", "moe", "custom_function", "char_gpt", "resnet_amp", "dcgan", "ddp_mlp", "fsdp2_gpt")
SCRIPTS = {script.name: script for script in CORPUS if script.name in NAMES}
SINCE = {"char_gpt": (2, 3), "resnet_amp": (2, 3), "fsdp2_gpt": (2, 6)}
"""First release of PyTorch that has all that a script calls."""


def job(name, python, **request):
    command = (python, *SCRIPTS[name].command()[1:])
    workload = Workload(ModelSource(ModelKind.COMMAND, name, command))
    with pytest.MonkeyPatch.context() as patch:
        ask = trace.run_worker
        patch.setattr(trace, "run_worker", lambda asked, **settings: ask({**asked, **request}, **settings))
        return trace.trace_command(workload, runner=run_process)


@cache
def expected_flops(name):
    return job(name, sys.executable).step.flops


@cache
def release(python):
    printed = run_process([python, "-c", "import torch; print(torch.__version__)"]).stdout
    return tuple(map(int, printed.split(".")[:2]))


@pytest.mark.skipif(not PYTHONS, reason="LEADLINE_PYTHONS names no Python: run python3 dev matrix")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).parents[1].name)
def test_a_release_gives_the_facts_and_the_work_of_a_script(python, name):
    if release(python) < SINCE.get(name, (0, 0)):
        pytest.skip(f"PyTorch {release(python)} has not all that {name} calls")
    traced = job(name, python)
    assert wrong_facts(SCRIPTS[name], traced) == []
    assert traced.step.device_type == "cuda"
    assert traced.step.flops == pytest.approx(expected_flops(name), rel=0.01)


FSDP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456", rank=0, world_size=2)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = FullyShardedDataParallel(model, device_id=torch.cuda.current_device())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(7):
    model(torch.rand(16, 64, device="cuda")).square().mean().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
NORMS = """
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

model = nn.Sequential(
    weight_norm(nn.Conv1d(8, 16, 3)), spectral_norm(nn.Conv1d(16, 16, 3)), nn.Flatten(),
    parametrizations.weight_norm(nn.Linear(16 * 28, 32)), parametrizations.spectral_norm(nn.Linear(32, 10)),
).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(7):
    model(torch.rand(4, 8, 32, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.skipif(not PYTHONS, reason="LEADLINE_PYTHONS names no Python: run python3 dev matrix")
@pytest.mark.parametrize("code", [FSDP, NORMS], ids=["fsdp", "norms"])
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).parents[1].name)
def test_a_release_shards_and_normalizes_weights_as_the_newest_does(tmp_path, python, code):
    if code is FSDP and release(python) < (2, 10):
        pytest.skip("FullyShardedDataParallel cannot be traced where `cuda` itself is simulated")
    (tmp_path / "train.py").write_text(code)
    facts = []
    for each in (python, sys.executable):
        source = ModelSource(ModelKind.COMMAND, "train.py", (each, str(tmp_path / "train.py")))
        traced = trace.trace_command(Workload(source), runner=run_process)
        products = sum(op.flops for op in traced.step.ops if op.kind in ("gemm", "conv"))
        sent = sum(op.dims["bytes"] for op in traced.step.ops if op.kind == "communication")
        facts.append((traced.step.parameters, products, sent, traced.loop.steps_per_epoch))
    assert facts[0] == facts[1]


@pytest.mark.parametrize("name", ["word_lm", "resnet_amp"])
def test_a_gpu_without_the_spare_device_gives_the_same_work(name):
    without = job(name, sys.executable, without=["spare device"])
    assert wrong_facts(SCRIPTS[name], without) == []
    assert without.step.flops == pytest.approx(expected_flops(name), rel=0.01)
