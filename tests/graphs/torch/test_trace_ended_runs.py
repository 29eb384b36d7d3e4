"""Scripts that end by themselves before a trace has three steps."""

from pathlib import Path

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, StorageCategory, TracedJob
from tests.support.traced_script import trace_code

SCRIPT = """
import sys, torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.Adam(model.parameters())

def step():
    optimizer.zero_grad()
    model(torch.rand(6, 8).cuda()).square().mean().backward()
    optimizer.step()

{training}
"""
GEMM_FLOPS = 2 * 6 * (8 * 16 + 16 * 4) + 2 * 6 * (8 * 16 + 2 * 16 * 4)
"""Two layers forward, their weights' gradients, and the gradient of the second one's input."""


def _gemm_flops(job: TracedJob) -> float:
    return sum(op.flops * op.count for op in job.step.ops if op.kind is OpKind.GEMM)


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ("step()", 1),
        ("step()\nstep()", 2),
        ("for epoch in range(2):\n    step()", 2),
        ("for batch in range(100):\n    step()\n    if len(sys.argv) > 1:\n        sys.exit()", 1),
    ],
)  # fmt: skip
def test_the_steps_of_a_script_that_ends_are_those_that_it_made(tmp_path: Path, training: str, steps: int) -> None:
    job = trace_code(tmp_path, SCRIPT.format(training=training), "--dry-run")
    assert (job.loop.steps_per_epoch or 0) * (job.loop.epochs or 0) == steps
    assert job.loop.batch == 6
    assert job.step.parameters == 8 * 16 + 16 + 16 * 4 + 4
    assert _gemm_flops(job) == GEMM_FLOPS
    assert any(note.startswith("the script ended after") for note in job.notes)


def test_the_only_step_of_a_script_begins_without_the_state_of_its_optimizer(tmp_path: Path) -> None:
    events = trace_code(tmp_path, SCRIPT.format(training="step()")).step.events
    state = [event for event in events if event.category is StorageCategory.OPTIMIZER_STATE]
    assert sum(event.size_bytes for event in state if event.op) == 2 * 4 * 212
    assert {event.op for event in events if event.category is StorageCategory.PARAMETER} == {0}


DRY = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--dry-run", action="store_true")
args = parser.parse_args()
for epoch in range({epochs}):
    for number, x in enumerate(torch.utils.data.DataLoader(torch.rand(600, 8), 6)):
        step()
        if number % 10 == 0:
            print(number)
            if args.dry_run:
                break
"""


@pytest.mark.parametrize(("epochs", "arguments", "steps"), [(1, "--dry-run", 1), (7, "--dry-run", 7), (7, "", 700)])
def test_a_setting_that_ends_each_epoch_after_its_first_step_counts(
    tmp_path: Path, epochs: int, arguments: str, steps: int
) -> None:
    job = trace_code(tmp_path, SCRIPT.format(training=DRY.format(epochs=epochs)), arguments)
    assert (job.loop.steps_per_epoch or 0) * (job.loop.epochs or 0) == steps
    assert not any("may end early" in note for note in job.notes)


def test_a_script_that_ends_by_values_keeps_the_steps_of_its_loop_with_a_note(tmp_path: Path) -> None:
    training = """
before = 9.0
for batch in range(100):
    step()
    loss = model(torch.rand(6, 8).cuda()).mean().item()
    if abs(before - loss) < 1e-3:
        break
    before = loss
"""
    job = trace_code(tmp_path, SCRIPT.format(training=training))
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (100, 1)
    assert any("100 steps are assumed" in note for note in job.notes)


def test_a_script_that_loops_until_values_are_right_has_unknown_steps(tmp_path: Path) -> None:
    training = """
accuracy = 0.0
while accuracy < 0.9:
    step()
    accuracy = model(torch.rand(6, 8).cuda()).mean().item()
"""
    job = trace_code(tmp_path, SCRIPT.format(training=training))
    assert job.loop.epochs is None or job.loop.steps_per_epoch is None
    assert any("depends on the run" in note for note in job.notes)


def test_a_step_counts_all_optimizers_of_a_script_that_ends(tmp_path: Path) -> None:
    training = """
critic = nn.Linear(8, 1).cuda()
other = torch.optim.Adam(critic.parameters())
for batch in range(3):
    critic(torch.rand(6, 8).cuda()).mean().backward()
    other.step()
    other.zero_grad()
step()
"""
    with pytest.raises(Untraceable, match="without a whole training step"):
        trace_code(tmp_path, SCRIPT.format(training=training))
