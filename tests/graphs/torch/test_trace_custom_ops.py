"""Operators and kernels that a script brings: by their Python function, by their arguments, or refused by name."""

import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, Stage, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

LOOP = """
import torch
{definition}
model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10):
    scale(model(torch.rand(8, 64).cuda()), 2.0).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OPERATOR = """
@torch.library.custom_op("mine::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    BODY
scale.register_autograd(lambda ctx, grad: (grad * 2.0, None))
"""
LIBRARY = """
library = torch.library.Library("mine", "DEF")
library.define("scale(Tensor x, float factor) -> Tensor")
library.impl("scale", lambda x, factor: x * factor, "CUDA")
scale = torch.ops.mine.scale
"""
EXTENSION = """
from torch.utils.cpp_extension import load
scale = load(name="mine", sources=["scale.cpp", "scale_kernel.cu"], extra_cuda_cflags=["-O3"]).scale
"""
FALLBACK = """
from torch.utils.cpp_extension import load
try:
    scale = load(name="mine", sources=["scale.cu"]).scale
except RuntimeError:
    def scale(x, factor):
        return x * factor
"""


def _trace(folder: Path, definition: str) -> TracedJob:
    script = folder / "train.py"
    script.write_text(LOOP.format(definition=textwrap.dedent(definition)))
    words = (sys.executable, str(script))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_forked, cwd=folder)


def _forward(job: TracedJob) -> list[str]:
    return [op.name for op in job.step.ops if op.stage is Stage.FORWARD]


def test_an_operator_without_a_shape_rule_runs_its_python_function(tmp_path: Path) -> None:
    body = "assert x.is_cuda\n    return torch.nn.functional.linear(x, x.new_ones(32, 32)) * factor"
    job = _trace(tmp_path, OPERATOR.replace("BODY", body))
    flops = [op.flops for op in job.step.ops if op.kind is OpKind.GEMM and op.stage is Stage.FORWARD]
    assert flops == [2 * 8 * 64 * 32, 2 * 8 * 32 * 32]
    assert "mine.scale" not in _forward(job)


def test_an_operator_with_a_shape_rule_counts_by_its_arguments_with_a_note(tmp_path: Path) -> None:
    rule = "scale.register_fake(lambda x, factor: torch.empty_like(x))"
    job = _trace(tmp_path, OPERATOR.replace("BODY", "return x.unknown()") + rule)
    (op,) = [op for op in job.step.ops if op.name == "mine.scale"]
    assert (op.bytes_read, op.bytes_written) == (4 * 8 * 32, 4 * 8 * 32)
    assert any("the operator mine.scale is assumed to read and write" in note for note in job.notes)
    assert job.low_confidence


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (LIBRARY, "the operator mine::scale has no shape rule: give it a shape rule"),
        (
            OPERATOR.replace("BODY", "return x.unknown()"),
            r"the operator mine::scale has no shape rule, and its Python function fails \(AttributeError\)",
        ),
        (EXTENSION, "the script builds the extension mine for GPUs, whose kernels have no shapes here"),
    ],
)
def test_an_operator_without_a_rule_is_refused_by_its_name(tmp_path: Path, definition: str, reason: str) -> None:
    with pytest.raises(Untraceable, match=reason):
        _trace(tmp_path, definition)


def test_a_script_with_another_way_goes_on_without_its_extension(tmp_path: Path) -> None:
    job = _trace(tmp_path, FALLBACK)
    assert "aten.mul" in _forward(job)
    assert "the extension mine for GPUs is not built here: the script goes on without it" in job.notes


TRITON = """
import triton, triton.language as tl

assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cuda", 0)

@triton.autotune(configs=[triton.Config({"SIZE": 128}), triton.Config({"SIZE": 256})], key=["count"])
@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, count, SIZE: tl.constexpr):
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out_ptr + places, tl.load(x_ptr + places, mask=places < count) * factor, mask=places < count)

@triton.jit
def product_kernel(x_ptr, out_ptr):
    block = tl.load(x_ptr)
    tl.store(out_ptr, tl.dot(block, block))

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        out = torch.empty_like(x)
        scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["SIZE"]),)](x, out, factor, x.numel())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        product_kernel[(1,)](grad, out)
        return out, None

scale = Scale.apply
"""


def test_kernels_of_triton_count_by_their_arguments(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    job = _trace(tmp_path, TRITON)
    kernels = [op for op in job.step.ops if op.name.startswith("triton.")]
    traffic = [(op.name, op.stage, op.bytes_read, op.bytes_written) for op in kernels]
    size = 4 * 8 * 32
    assert traffic == [
        ("triton.scale_kernel", Stage.FORWARD, 2 * size, size),
        ("triton.product_kernel", Stage.BACKWARD, 2 * size, size),
    ]
    assert any("product_kernel" in note and "its matrix products are not counted" in note for note in job.notes)
