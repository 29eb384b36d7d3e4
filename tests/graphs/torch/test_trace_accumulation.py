"""Several batches or optimizers to a step: what accumulates, and what only happens at the same time."""

from pathlib import Path

import pytest

from leadline.core.graph import OpKind, TracedJob
from tests.support.traced_script import trace_code

BEGINNING = """
import torch
def loader_of(samples):
    data = torch.utils.data.TensorDataset(torch.rand(samples, 8), torch.rand(samples, 1))
    return torch.utils.data.DataLoader(data, batch_size=8)
first, second = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
optimizers = [torch.optim.Adam(net.parameters()) for net in (first, second)]
loader, other = loader_of(40), loader_of(56)
def step(net, optimizer, x):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
def both(x, y):
    step(first, optimizers[0], x)
    step(second, optimizers[1], y)
"""


def trace(folder: Path, loop: str) -> TracedJob:
    return trace_code(folder, BEGINNING + loop)


def test_two_loaders_give_the_batches_of_one_step_of_two_optimizers(tmp_path):
    loop = "for epoch in range(3):\n    for (x, _), (y, _) in zip(loader, other):\n        both(x, y)\n"
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, 3)
    assert not any("one of the optimizers" in note or "trains again" in note for note in job.notes)


def test_batches_drawn_from_two_loaders_are_one_step(tmp_path):
    loop = "batches, others = iter(loader), iter(other)\nfor i in range(5):\n"
    loop += "    (x, _), (y, _) = next(batches), next(others)\n    both(x, y)\n"
    job = trace(tmp_path, loop)
    assert job.loop.steps_per_epoch * job.loop.epochs == 5


@pytest.mark.parametrize(
    ("count", "steps"),
    [
        ("i + 1", 3 * 2),
        ("len(loader) * epoch + i + 1", 7),
        ("seen", 7),
    ],
)
def test_what_accumulates_may_go_on_in_the_next_epoch(tmp_path, count, steps):
    loop = f"""
seen = 0
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        seen += 1
        first(x).square().mean().backward()
        if ({count}) % 2 == 0:
            optimizers[0].step()
            optimizers[0].zero_grad()
"""
    job = trace(tmp_path, loop)
    assert (job.loop.accumulation, round(job.loop.steps_per_epoch * job.loop.epochs)) == (2, steps)


def test_a_counter_with_the_name_of_a_part_of_the_batch_counts_nothing(tmp_path):
    loop = "for epoch in range(3):\n    for _, (x, _) in enumerate(loader):\n        step(first, optimizers[0], x)\n"
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, 3)


def test_a_counter_that_the_loop_assigns_otherwise_counts_nothing(tmp_path):
    loop = "batches = iter(loader)\nfor _ in range(5):\n    x, _ = next(batches)\n    step(first, optimizers[0], x)\n"
    job = trace(tmp_path, loop)
    assert job.loop.steps_per_epoch * job.loop.epochs == 5


def test_a_copy_that_refers_to_itself_is_no_weight(tmp_path):
    counting = "import copy\ncopied = copy.deepcopy(first)\ncopied.report = copied.parameters\ndel copied\n"
    loop = "for epoch in range(3):\n    for x, _ in loader:\n        step(first, optimizers[0], x)\n"
    assert trace(tmp_path, counting + loop).step.parameters == 9 + 9


def test_a_step_is_without_the_evaluation_between_short_epochs(tmp_path):
    loop = """
for epoch in range(4):
    for number, (x, _) in enumerate(loader):
        if number < 2:
            step(first, optimizers[0], x)
    with torch.no_grad():
        for y, _ in other:
            second(y)
"""
    job = trace(tmp_path, loop)
    assert sum(op.flops for op in job.step.ops if op.kind is OpKind.GEMM) == 2 * 2 * 8 * 8


@pytest.mark.usefixtures("_only_read")
def test_the_passes_of_an_iterator_of_the_script_are_unknown(tmp_path):
    loop = """
class Epochs:
    passes = 0
    def __iter__(self):
        return self
    def __next__(self):
        self.passes += 1
        if self.passes > 10:
            raise StopIteration
for epoch in Epochs():
    batches, done = iter(loader), 0
    while not done >= len(loader):
        step(first, optimizers[0], next(batches)[0])
        done += 1
"""
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, None)


@pytest.mark.usefixtures("_only_read")
def test_epochs_that_a_function_calculates_from_its_argument_may_vary(tmp_path):
    loop = """
def train(most):
    epochs = most // len(loader) + 1
    for epoch in range(epochs):
        for x, _ in loader:
            step(first, optimizers[0], x)
for rate, last in [(0.1, 20), (0.2, 50)]:
    train(last)
"""
    job = trace(tmp_path, loop)
    assert any("assumed to be as long in each pass of `[(0.1, 20), (0.2, 50)]`" in note for note in job.notes)


@pytest.mark.parametrize(("later", "trains"), [("run(other, False)", False), ("run(other, train=True)", True)])
@pytest.mark.usefixtures("_only_read")
def test_a_later_call_that_only_evaluates_is_no_training(tmp_path, later, trains):
    loop = f"""
def run(batches, train):
    for x, _ in batches:
        if train:
            step(first, optimizers[0], x)
for epoch in range(9):
    run(loader, train=True)
{later}
"""
    job = trace(tmp_path, loop)
    assert any("trains again" in note for note in job.notes) == trains


@pytest.mark.parametrize(
    ("following", "epochs"),
    [
        (
            "if self.passes < self.most:\n            self.passes += 1\n        else:\n            raise StopIteration",
            10,
        ),
        ("if self.passes >= self.most:\n            raise StopIteration()\n        self.passes += 1", 10),
        ("self.passes += 1\n        if self.passes >= self.most:\n            raise StopIteration", 9),
        ("self.passes += 1\n        if self.passes ** 2 > 99 * self.most:\n            raise StopIteration", None),
    ],
)
@pytest.mark.usefixtures("_only_read")
def test_an_iterator_of_the_script_that_counts_its_passes_gives_the_epochs(tmp_path, following, epochs):
    loop = f"""
class Epochs:
    def __init__(self, most):
        self.passes, self.most = 0, most
    def __iter__(self):
        return self
    def __next__(self):
        {following}
epochs = Epochs(10)
for epoch in epochs:
    for x, _ in loader:
        step(first, optimizers[0], x)
"""
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, epochs)


def test_a_limit_that_a_setting_turns_off_is_none(tmp_path):
    loop = """
class Settings:
    debug, most = False, 2
settings, steps = Settings(), 0
for epoch in range(3):
    for x, _ in loader:
        steps += 1
        step(first, optimizers[0], x)
        if settings.debug and steps == settings.most:
            break
"""
    job = trace(tmp_path, loop)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, 3)
