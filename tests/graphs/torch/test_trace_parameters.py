"""Parameters are counted once, in the format and the place they end up in."""

import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from leadline.core.graph import TracedJob
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


def _trace(folder: Path, code: str) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    words = (sys.executable, str(script))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_process, cwd=folder, timeout_s=60)
