"""Scripts that the simulated device cannot run: the CPU calculates their first steps."""

from pathlib import Path

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, StorageCategory, TracedJob
from tests.support.traced_script import trace_code

SCRIPT = """
import ctypes, torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
lstm = torch.nn.LSTM(8, 8, batch_first=True).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *lstm.parameters()])
loader = DataLoader(TensorDataset(torch.rand(30, 5, 8)), batch_size=6)

def library(values):
    FAILING

for epoch in range(4):
    for (rows,) in loader:
        optimizer.zero_grad()
        states, _ = lstm(rows.to(device))
        scores = model(states[:, -1])
        library(scores)
        scores.square().mean().backward()
        optimizer.step()
"""
RAISES = "if device == 'cuda': raise RuntimeError('no kernel for this device')"
READS_MEMORY = "(ctypes.c_float * 4).from_address(values.untyped_storage().data_ptr() or 1)[0]"
WEIGHTS = 8 * 16 + 16 + 16 * 4 + 4 + 4 * 8 * (8 + 8 + 2)
GEMM_FLOPS = 3 * 2 * 6 * (8 * 16 + 16 * 4 + 5 * 4 * 8 * (8 + 8))
"""Of each layer's result, the gradient of its weights, and that of its input."""


def trace(folder: Path, failing: str) -> TracedJob:
    return trace_code(folder, SCRIPT.replace("FAILING", failing))


@pytest.mark.parametrize("failing", [RAISES, READS_MEMORY], ids=["an exception", "a crash"])
def test_the_cpu_calculates_steps_that_the_simulated_device_cannot_run(tmp_path, failing):
    job = trace(tmp_path, failing)
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.batch) == (5, 4, 6)
    assert job.step.parameters == WEIGHTS
    assert job.step.device_type == "cuda"
    assert job.low_confidence
    products = sum(op.flops * op.count for op in job.step.ops if op.kind is OpKind.GEMM)
    assert products == pytest.approx(GEMM_FLOPS, rel=0.1)
    assert any("foreach" in op.name for op in job.step.ops)
    assert any(note.startswith("the simulated device could not run the script") for note in job.notes)


def test_the_memory_of_calculated_steps_has_categories(tmp_path):
    events = trace(tmp_path, RAISES).step.events
    sizes = {
        category: sum(event.size_bytes for event in events if event.category is category and event.size_bytes > 0)
        for category in (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE)
    }
    assert sizes[StorageCategory.PARAMETER] == 4 * WEIGHTS
    assert sizes[StorageCategory.OPTIMIZER_STATE] >= 8 * WEIGHTS


def test_a_script_that_fails_on_the_cpu_too_is_refused_with_the_first_reason(tmp_path):
    with pytest.raises(Untraceable, match="no kernel for this device"):
        trace(tmp_path, RAISES + "\n    raise KeyError('and another failure')")


def test_steps_larger_than_a_trace_may_hold_are_not_calculated(tmp_path):
    large = "\n    held = [torch.zeros(3 * 2**28, device=device) for _ in range(2)]; held[0][:1].add(1)"
    with pytest.raises(Untraceable, match="no kernel for this device"):
        trace(tmp_path, RAISES + large)


def test_a_missing_file_is_no_reason_to_calculate(tmp_path):
    with pytest.raises(Untraceable, match="no/such/file") as refused:
        trace(tmp_path, "open('no/such/file')")
    assert "ran twice" not in str(refused.value)


def test_what_a_script_puts_on_a_gpu_is_calculated_on_the_cpu(tmp_path):
    script = SCRIPT.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cuda"').replace(
        ".to(device)", ".cuda()"
    )
    job = trace_code(tmp_path, script.replace("FAILING", READS_MEMORY))
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.step.parameters) == (5, 4, WEIGHTS)


def test_tensors_of_a_subclass_are_calculated(tmp_path):
    subclass = """
class Named(torch.Tensor):
    def __new__(cls, values, name): return super().__new__(cls, values)
    def __init__(self, values, name): self.title = name
def library(values):
    assert Named(values.detach(), "scores").title == "scores"
"""
    job = trace_code(tmp_path, SCRIPT.replace("def library(values):\n    FAILING\n", subclass))
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.step.parameters) == (5, 4, WEIGHTS)
