"""The steps of the whole run follow from how a script draws its batches and ends its loops."""

from pathlib import Path

import pytest

from tests.support.traced_script import trace_code

BEGINNING = """
import torch
from itertools import cycle
from torch.utils.data import DataLoader, TensorDataset

def data(samples, batch):
    return DataLoader(TensorDataset(torch.rand(samples, 4), torch.rand(samples)), batch)

def forever(loader):
    while True:
        for x, _ in loader:
            yield x

def step(x):
    optimizer.zero_grad()
    model(x.cuda()).sum().backward()
    optimizer.step()

model, other = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda()
optimizer, rare = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
a, b = data(100, 10), data(300, 20)
"""


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        (
            """
draws = forever(a)
for epoch in range(3):
    for i in range(50):
        step(next(draws))
""",
            150,
        ),
        (
            """
for e in range(3):
    draws = iter(a)
    while True:
        try:
            x, _ = next(draws)
        except StopIteration:
            break
        step(x)
""",
            30,
        ),
        ("for epoch in range(3):\n    for (x, _), (y, _) in zip(a, b): step(torch.cat([x, y]))\n", 30),
        (
            """
class Epochs:
    stopped = False
    def __iter__(self):
        for epoch in range(3):
            yield a
            if self.stopped: break

for loader in Epochs():
    for x, _ in loader: step(x)
""",
            30,
        ),
        ("def trange(n, desc):\n    return range(n)\nfor i in trange(14, desc='steps'): step(torch.rand(2, 4))\n", 14),
        (
            """
def counted(loader):
    return zip(range(7), forever(loader))

for epoch in range(3):
    for number, x in counted(a): step(x)
""",
            21,
        ),
        ("for epoch in range(3):\n    for i, ((x, _), (y, _)) in enumerate(zip(cycle(a), b)): step(y)\n", 45),
        ("for i, x in enumerate(forever(a)):\n    if i >= 400: break\n    step(x)\n", 400),
        ("for i, x in enumerate(forever(a)):\n    step(x)\n    if x.mean() > 2: break\n", None),
        (
            """
def once():
    draws = iter(a)
    while True:
        try:
            x, _ = next(draws)
        except StopIteration:
            return
        yield x
for epoch in range(3):
    for x in once():
        step(x)
""",
            30,
        ),
        (
            """
draws = forever(a)
for iteration in range(200):
    for _ in range(5):
        step(next(draws))
    rare.zero_grad()
    model(other(torch.rand(10, 4).cuda())).sum().backward()
    rare.step()
""",
            200,
        ),
        (
            """
def train(done):
    while True:
        for x, _ in a:
            step(x)
            done = done + 1
            if done >= 37: return
train(0)
""",
            37,
        ),
        (
            """
for epoch in range(3):
    for i, (x, _) in enumerate(a):
        model(x.cuda()).sum().backward()
        if (i + 1) % 4 == 0 or i + 1 == len(a):
            optimizer.step()
""",
            9,
        ),
        (
            """
from math import ceil
for epoch in range(ceil(5 / 2)):
    for x, _ in a:
        (model(x.cuda()).sum() + other(x.cuda()).sum()).backward()
        for each in [optimizer, rare]:
            each.step()
""",
            30,
        ),
        (
            """
start = 0
for i in range(start, 40):
    step(torch.rand(2, 4))
    start = i + 1
""",
            40,
        ),
        (
            """
class Trainer:
    def _progress_bar(self, passes, hidden):
        for i in passes:
            yield i
    def fit(self, passes):
        for i in self._progress_bar(range(passes), hidden=str(self)):
            step(next(iter(a))[0])
Trainer().fit(17)
""",
            17,
        ),
        (
            """
class Rows:
    def parts(self):
        self.place = 0
        def wrapper():
            while self.place < 12:
                yield torch.rand(2, 4)
                self.place += 1
        return wrapper()
rows = {"train": Rows()}
for epoch in range(3):
    for i, x in enumerate(rows["train"].parts()): step(x)
""",
            36,
        ),
        (
            """
for epoch in range(3):
    for i in range(20):
        for _ in range(1):
            step(next(iter(a))[0])
""",
            60,
        ),
        (
            """
for epoch in range(3):
    for _ in range(20):
        for _ in range(2):
            pass
        step(next(iter(a))[0])
""",
            60,
        ),
        (
            """
passes = range(100)
for i in passes:
    if i == 0:
        with torch.no_grad():
            model(torch.rand(2, 4).cuda())
            continue
    else:
        x = torch.rand(2, 4)
    step(x)
""",
            99,
        ),
        (
            """
for i, x in zip(range(15), forever(data(100, 10))): step(x)
""",
            15,
        ),
        (
            """
import random
rows = [torch.rand(2, 4) for i in range(6)]
for epoch in range(2):
    for x in sorted(rows, key=len): step(x)
    for i, x in enumerate(random.sample(rows, 5)): pass
for x in random.sample(rows, 5): pass
""",
            12,
        ),
        (
            """
import random
rows = [torch.rand(2, 4) for i in range(6)]
for epoch in range(3):
    for i, x in enumerate(random.sample(rows, 5)):
        for y in [rows[j] for j in torch.randperm(4)]: step(y)
""",
            60,
        ),
        (
            """
rows = torch.rand(100, 4)
for epoch in range(2):
    for x, y in zip(rows.split(30), torch.chunk(rows, 3)):
        step(x)
""",
            6,
        ),
        (
            """
rows = torch.rand(100, 4)
for epoch in range(2):
    for places in torch.randperm(len(rows)).split(9): step(rows[places])
""",
            24,
        ),
        (
            """
from sklearn.model_selection import KFold
validator = KFold(5)
for fold, (train, test) in enumerate(validator.split(range(40))):
    for x, _ in a: step(x)
""",
            50,
        ),
        (
            """
import numpy as np
class Batches:
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        for places in np.array_split(np.random.permutation(len(self.rows)), 7):
            yield self.rows[places]
for epoch in range(3):
    for x in Batches(torch.rand(30, 4)): step(x)
""",
            21,
        ),
    ],
    ids=[
        "next",
        "until the end",
        "zip",
        "generator that may end",
        "trange",
        "zip with an endless generator",
        "cycle",
        "generator",
        "no end",
        "ending generator",
        "critic",
        "return",
        "rest",
        "loop over optimizers",
        "start to go on from",
        "bar of progress",
        "generator of a function within a method",
        "rounds that are one",
        "a variable of several loops",
        "first pass without a step",
        "zip with a generator that does not end",
        "sorted",
        "drawn anew",
        "parts",
        "parts of a random order",
        "folds",
        "object that was made for the loop",
    ],
)
def test_the_steps_of_a_run_are_read_from_its_loops(tmp_path: Path, loop: str, steps: int | None) -> None:
    job = trace_code(tmp_path, BEGINNING + loop)
    per_epoch, epochs = job.loop.steps_per_epoch, job.loop.epochs
    assert (None if per_epoch is None or epochs is None else per_epoch * epochs) == steps
    assert steps is not None or any("unknown" in note for note in job.notes)


def test_a_data_set_that_was_loaded_as_one_batch_is_not_the_batch_of_a_step(tmp_path: Path) -> None:
    slices = "rows = next(iter(data(600, 600)))[0]\ndef parts(size):\n    place = 0\n    while place < len(rows):\n"
    slices += "        yield rows[place : place + size]\n        place += size\n"
    job = trace_code(tmp_path, BEGINNING + slices + "for epoch in range(25):\n    for x in parts(60): step(x)\n")
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (60, 10, 25)


@pytest.mark.usefixtures("_only_read")
def test_a_loader_that_a_later_epoch_replaces_is_a_note(tmp_path: Path) -> None:
    fit = "def fit(loader):\n    for x, _ in loader: step(x)\nloader = a\nfor epoch in range(6):\n"
    job = trace_code(tmp_path, BEGINNING + fit + "    if epoch == 3:\n        loader = b\n    fit(loader)\n")
    assert any("line 27 makes later is assumed" in note for note in job.notes)
    wrapped = "    if epoch > 3:\n        loader = iter(loader)\n    fit(loader)\n"
    assert not any("makes later" in note for note in trace_code(tmp_path, BEGINNING + fit + wrapped).notes)


@pytest.mark.usefixtures("_only_read")
def test_a_counter_that_goes_up_by_random_lengths_is_an_assumption(tmp_path: Path) -> None:
    loop = "place = 0\nwhile place < 300:\n    length = {length}\n    step(torch.rand(2, 4))\n    place += {added}\n"
    random = trace_code(tmp_path, BEGINNING + loop.format(length="max(5, int(torch.randn(()) + 10))", added="length"))
    assert any("assumed to go on by the same `length`" in note for note in random.notes)
    fixed = trace_code(tmp_path, BEGINNING + loop.format(length="8", added="10"))
    assert fixed.loop.steps_per_epoch == 30
    assert not any("assumed" in note for note in fixed.notes)


def test_batches_are_drawn_in_the_loop_within_that_over_data_sets(tmp_path: Path) -> None:
    loops = """
sets = [TensorDataset(torch.rand(200, 4), torch.rand(200)) for _ in range(5)]
for task, data_set in enumerate(sets, 1):
    left = 1
    for i in range(1, 101):
        left -= 1
        if left == 0:
            loader = iter(DataLoader(data_set, 10))
            left = len(loader)
        step(next(loader)[0])
"""
    loop = trace_code(tmp_path, BEGINNING + loops).loop
    assert loop.steps_per_epoch * loop.epochs == 500


@pytest.mark.usefixtures("_only_read")
def test_a_pass_that_continues_without_a_step_is_a_note(tmp_path: Path) -> None:
    loop = "rows = torch.rand(95, 4)\nfor i in range(10):\n    x = rows[i * 10 : i * 10 + 10]\n"
    job = trace_code(tmp_path, BEGINNING + loop + "    if len(x) < 10:\n        continue\n    step(x)\n")
    assert any("assumed to train, which depends on `if len(x) < 10`" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_training_after_the_loop_is_a_note(tmp_path: Path) -> None:
    fit = "def fit(loader):\n    for x, _ in loader: step(x)\n"
    again = trace_code(tmp_path, BEGINNING + fit + "for epoch in range(3): fit(a)\nfor epoch in range(2): fit(b)\n")
    assert any("trains again in line " in note for note in again.notes)
    either = "if optimizer:\n    for epoch in range(3): fit(a)\nelse:\n    fit(b)\n"
    assert not any("trains again" in note for note in trace_code(tmp_path, BEGINNING + fit + either).notes)


FOLDS = """
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def training_step(self, batch, number):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def fit(loader, quiet=dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)):
    lightning.Trainer(max_epochs=3, **quiet).fit(Net(), loader)

for fold in range(5):
    fit(a)
"""


@pytest.mark.usefixtures("_only_read")
def test_a_trainer_that_a_loop_calls_again_repeats_its_epochs(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    job = trace_code(tmp_path, BEGINNING + FOLDS)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (10, 15)
    assert not any("trains again" in note for note in job.notes)
    again = trace_code(tmp_path, BEGINNING + FOLDS + "fit(b)\n")
    assert any("trains again in line " in note for note in again.notes)


def test_a_range_under_another_name_counts_from_its_first_step(tmp_path):
    loop = """
each = range
for number in each(1, 10**7 + 1):
    if number > 1000: step(torch.rand(6, 4))
"""
    job = trace_code(tmp_path, BEGINNING + loop)
    assert job.loop.steps_per_epoch * job.loop.epochs == 10**7 - 1000


def test_the_batch_of_a_loader_without_one_is_that_of_the_model(tmp_path):
    loop = """
import numpy as np
class Rows:
    def __getitem__(self, index): return {"rows": np.zeros(4, dtype=np.float32)}
class Numbers:
    def __iter__(self): return iter([[0] * 6] * 7)
    def __len__(self): return 7
def collate(rows): return {"rows": np.stack([row["rows"] for row in rows])}
for batch in DataLoader(Rows(), batch_sampler=Numbers(), collate_fn=collate): step(torch.tensor(batch["rows"]))
"""
    job = trace_code(tmp_path, BEGINNING + loop)
    assert (job.loop.batch, job.loop.steps_per_epoch) == (6, 7)
