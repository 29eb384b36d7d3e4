"""Conditions on values of the GPU: checks hold, loops end, and a loop that trains goes on."""

from pathlib import Path

import pytest

from leadline.core.graph import OpKind, TracedJob
from tests.support.traced_script import trace_code

BEGINNING = """
import torch
net = torch.nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.rand(64, 16).cuda()
"""
PRODUCT_FLOPS = 2 * 64 * 16 * 16
"""One call of the layer. A step without passes has two such products: the input needs no gradient."""


def trace(folder: Path, loop: str) -> TracedJob:
    return trace_code(folder, BEGINNING + loop)


@pytest.mark.parametrize(
    "check",
    [
        "assert y.mean() < 9, 'too large'",
        "assert (y > -9).all() and (y < 9).all()",
        "assert all(row.sum() < 9 for row in y)",
        "assert (y == 5).sum() == 0",
        "assert (y == 5).sum().item() == 0",
        "assert y.max().item() <= -3, 'too large'",
        "if (y == 5).sum(dim=0).max() > 0: raise ValueError('five')",
        "if not (y < 9).all(): raise ValueError('too large')",
        "if (y < 9).all():\n        y = y * 2\n    else:\n        raise ValueError('too large')",
    ],
)
def test_a_check_of_values_holds(tmp_path, check):
    loop = f"for step in range(9):\n    y = net(x)\n    {check}\n    y.sum().backward()\n    optimizer.step()\n"
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.step.parameters) == (9, 272)


@pytest.mark.usefixtures("_without_values")
@pytest.mark.parametrize(
    "solver",
    [
        "while y.norm() > 1:\n        y = net(y)",
        "while not (y < 1).all():\n        y = net(y)",
        "while True:\n        y = net(y)\n        if y.norm() < 1:\n            break",
    ],
)
def test_a_loop_until_a_value_is_small_makes_passes_and_ends(tmp_path, solver):
    loop = f"for step in range(9):\n    y = net(x)\n    {solver}\n    y.sum().backward()\n    optimizer.step()\n"
    job = trace(tmp_path, loop)
    assert job.loop.steps_per_epoch == 9
    assert sum(op.flops for op in job.step.ops if op.kind is OpKind.GEMM) > 2 * PRODUCT_FLOPS
    assert any("train.py" in note and "one was assumed" in note for note in job.notes)


def test_the_passes_of_a_loop_that_trains_are_unknown(tmp_path):
    loop = "loss = x.sum()\nwhile loss > 0.1:\n    loss = net(x).sum()\n    loss.backward()\n    optimizer.step()\n"
    job = trace(tmp_path, loop)
    assert job.loop.steps_per_epoch is None
    assert not any("one was assumed" in note for note in job.notes)


@pytest.mark.usefixtures("_without_values")
def test_a_solver_of_many_times_makes_few_passes_before_training(tmp_path):
    solve = "def solve(y, times):\n    for time in range(times):\n        while y.norm() > 1:\n            y = net(y)\n"
    solve += "    return y\nwith torch.no_grad():\n    solve(x, 500)\n"
    step = "for step in range(9):\n    solve(x, 5).sum().backward()\n    optimizer.step()\n"
    job = trace(tmp_path, solve + step)
    assert sum(op.flops for op in job.step.ops if op.kind is OpKind.GEMM) == 14 * PRODUCT_FLOPS


def test_a_loop_until_a_number_is_small_ends(tmp_path):
    solver = "while error > 0.001:\n        y = net(y)\n        error = y.norm().item()\n"
    step = f"for step in range(9):\n    y, error = x, 1.0\n    {solver}    y.sum().backward()\n    optimizer.step()\n"
    assert trace(tmp_path, step).loop.steps_per_epoch == 9


@pytest.mark.usefixtures("_without_values")
@pytest.mark.parametrize(
    "branches",
    [
        "if (y > 0).any():\n        y = net(y)\n    else:\n        y = x",
        "if y.mean() > 9:\n        y = x\n    else:\n        y = net(y + 1)",
        "if y.mean() > 9:\n        y = x\n    elif y.mean() > 5:\n        y = net(y + 1)\n    else:\n        y = y - 1",
    ],
)
def test_of_two_branches_the_longer_one_is_assumed(tmp_path, branches):
    loop = f"for step in range(9):\n    y = net(x)\n    {branches}\n    y.sum().backward()\n    optimizer.step()\n"
    job = trace(tmp_path, loop)
    assert sum(op.flops for op in job.step.ops if op.kind is OpKind.GEMM) == 5 * PRODUCT_FLOPS
    assert any("train.py" in note and "the longer one was assumed" in note for note in job.notes)


@pytest.mark.parametrize(
    "bad", ["torch.isnan(loss)", "loss.isinf()", "not torch.isfinite(loss)", "(~loss.isfinite()).any()"]
)
def test_a_loss_is_assumed_to_be_finite(tmp_path, bad):
    skip = f"if {bad}:\n        print('skipped', loss, step)\n        loss = None\n    else:\n        loss.backward()\n"
    job = trace(tmp_path, f"for step in range(9):\n    loss = net(x).sum()\n    {skip}        optimizer.step()\n")
    assert job.loop.steps_per_epoch == 9
    assert not any("assumed" in note for note in job.notes)


def test_a_thread_of_the_script_reads_a_number(tmp_path):
    loop = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    for step in range(9):
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
        assert isinstance(pool.submit(float, loss.detach()).result(), float)
"""
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.step.parameters) == (9, 272)
    assert not any("simulated device" in note for note in job.notes)
