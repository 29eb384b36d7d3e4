"""Parameters are counted once, in the format and the place they end up in."""

import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from leadline.core.graph import Stage, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command

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
    assert 11110 == job.step.parameters
    assert 22220 == job.step.parameter_bytes


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
    assert (240, 480) == (job.step.parameters, job.step.parameter_bytes)


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
    assert "cpu" == job.step.device_type
    assert 11 == job.step.parameters
    assert 500 == job.loop.steps_per_epoch
    assert [{"b": 1, "m": 64, "n": 1, "k": 10}] == [
        op.dims for op in job.step.ops if op.name == "aten.mm" and op.stage is Stage.FORWARD
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


def _trace(folder: Path, code: str) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    words = (sys.executable, str(script))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_process, cwd=folder, timeout_s=60)
