"""Conditions that end a training early, and what loops go over that only the run makes."""

from pathlib import Path

import pytest

from tests.support.traced_script import trace_code

BEGINNING = """
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

model = torch.nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
rows = torch.randn(105, 8)
loader = DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=4)

def step(rows):
    optimizer.zero_grad()
    model(rows.to("cuda")).mean().backward()
    optimizer.step()
"""

RUNNER = """
class Runner:
    def __init__(self, count=1):
        START
    def fit(self):
        for _ in range(3):
            if self.one_epoch():
                return
    def one_epoch(self):
        for (rows,) in loader:
            step(rows)
            if TEST:
                return True
            self.count += 1
        return False
    def is_done(self):
        if self.most < self.count:
            print("done")
            return True
        return False
    def is_over(self):
        return self.count > self.most
Runner().fit()
"""


def steps_of(folder: Path, code: str) -> float | None:
    loop = trace_code(folder, BEGINNING + code).loop
    return None if loop.steps_per_epoch is None or loop.epochs is None else loop.steps_per_epoch * loop.epochs


@pytest.mark.parametrize("start", ["self.count, self.most = 1, 12", "self.count = count; self.most = 12"])
@pytest.mark.parametrize(
    "test", ["self.count > self.most", "self.most < self.count", "self.is_done()", "self.is_over()"]
)
def test_a_counter_ends_the_training_wherever_it_is_set_and_compared(tmp_path, start, test):
    assert steps_of(tmp_path, RUNNER.replace("START", start).replace("TEST", test)) == 13


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for x in forever():\n    step(x); made += 1; done = done or made >= 41\n    if done: break", 41),
        ("while not done:\n    step(rows)\n    made += 1\n    if made >= 41:\n        done = True", 41),
        ("for x in forever():\n    if state['made'] >= 41: break\n    step(x)\n    state['made'] += 1", 41),
        ("while not state or made + first < 50:\n    step(rows)\n    made += 1", 41),
        ("for x in loader:\n    loss(x).backward()\n    for name, each in every.items(): each.step()", 5),
        ("for x in Again(loader):\n    if state['made'] >= 41: break\n    state['made'] += 1\n    step(x[0])", 41),
        ("Run(41).fit()", 41),
        ("Run(41).until()", 41),
    ],
    ids=["depends on itself", "flag", "state", "sum", "optimizers by name", "again and again", "flag of a method",
         "under a condition"],
)  # fmt: skip
def test_an_end_is_read_from_flags_states_and_sums(tmp_path, loop, steps):
    start = """
made, done, state, first, every = 0, False, {"made": 0}, 9, {"only": optimizer}
def forever():
    while True: yield rows[:16]
def loss(x):
    return model(x[0].to("cuda")).mean()
class Again:
    def __init__(self, iterable):
        self.iterable, self.current = iterable, iter(iterable)
    def __iter__(self):
        return self
    def __next__(self):
        try:
            return next(self.current)
        except StopIteration:
            self.current = iter(self.iterable)
            return next(self.current)
class Run:
    def __init__(self, last):
        self.count, self.last, self.batches, self.over = 0, last, 0, False
    def fit(self):
        while True:
            self.epoch()
            if self.over: break
    def epoch(self):
        for (x,) in loader:
            step(x)
            self.count += 1
            self.check()
            if self.over: return
    def check(self):
        if self.count >= self.last: self.over = True
    def until(self):
        while True:
            if self.last is not None and self.count == self.last: break
            self.batch()
    def batch(self):
        self.batches += 1
        is_whole = self.batches % 2 == 0
        self.count += 1 if is_whole else 0
        model(rows[:4].to("cuda")).mean().backward()
        if is_whole:
            optimizer.step()
"""
    assert steps_of(tmp_path, start + loop) == steps


@pytest.mark.parametrize(
    ("test", "steps"), [("if trainer.made >= 41: break", 41), ("if 0 < 41 and made >= 41: break", 42)]
)
def test_a_counter_out_of_sight_is_observed(tmp_path, test, steps):
    counted = f"""
class Trainer:
    def __init__(self):
        self._made = 0
    @property
    def made(self):
        return self._made
    def step(self, rows):
        step(rows)
        setattr(self, "_made", self._made + 1)
trainer = Trainer()
def rows_without_end():
    while True:
        yield torch.randn(16, 8)
for x in rows_without_end():
    made = trainer.made
    trainer.step(x)
    {test}
"""
    job = trace_code(tmp_path, BEGINNING + counted)
    assert job.loop.steps_per_epoch == steps
    assert any(f"{steps} steps are read from the condition that ends the loop early" in note for note in job.notes)
    assert not any("unknown" in note for note in job.notes)


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("def parts(size): return torch.randperm(105).split(size)\nfor part in parts(10): step(rows[part])", 11),
        ("for (x,) in DataLoader(TensorDataset(rows), 10, drop_last=True): step(x)", 10),
        ("pairs = [[1, 2, 3], iter([4, 5])]\nfor x in zip(*pairs): step(rows)", 2),
        ("pairs = [[1, 2, 3], iter([4, 5])]\nfor i, x in enumerate(zip(*pairs)): step(rows)", 2),
        ("for i, x in enumerate(zip(iter(range(9)), enumerate([5, 6, 7]))): step(rows)", 3),
        ("for x in [x for x in range(9) if x % 2]: step(rows)", 4),
        ("runs = {'a': 4}\nfor x in runs.get('b') or list(runs) * 6: step(rows)", 6),
    ],
    ids=["a function's", "a loader", "zip of all", "counted zip of all", "iterators", "chosen", "either"],
)
def test_what_a_loop_goes_over_is_known_once_it_begins(tmp_path, loop, steps):
    assert steps_of(tmp_path, f"for epoch in range(3):\n    pass\n{loop}\n") == steps


def test_lines_and_compiled_functions_stay_as_they_are(tmp_path):
    code = """
def njit(function):
    assert "__leadline_iterated__" not in function.__code__.co_names
    return function

@njit
def total(count):
    result = 0
    for i in range(count) if count else ():
        result += i
    return result

def list_of(count):
    return list(range(count))

for x in list_of(total(3)):
    step(rows)
    import sys
    assert sys._getframe().f_lineno == 32, sys._getframe().f_lineno
"""
    assert steps_of(tmp_path, code) == 3


@pytest.mark.usefixtures("_only_read")
def test_loops_of_objects_that_differ_are_assumed_to_be_alike(tmp_path):
    clients = """
class Client:
    def __init__(self, size):
        self.data = TensorDataset(torch.randn(size, 8))
    def train(self):
        loader = DataLoader(self.data, 10)
        for (x,) in loader: step(x)
clients = [Client(size) for size in (100, 20, 50)]
for _ in range(3):
    for client in clients: client.train()
"""
    job = trace_code(tmp_path, BEGINNING + clients)
    assert any("assumed to be as long in each pass of `clients`" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_phases_that_a_counter_goes_through_train_once(tmp_path):
    phases = """
runs, place = ["train", "test"], 0
while place < len(runs):
    if runs[place] == "train":
        for epoch in range(3):
            for (x,) in loader: step(x)
    place += 1
"""
    job = trace_code(tmp_path, BEGINNING + phases)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, 3)
    assert any("one of the phases" in note for note in job.notes)


def test_what_a_worker_would_set_up_is_there(tmp_path):
    stream = """
class Lines(IterableDataset):
    def open(self, worker):
        from torch.utils.data import get_worker_info
        assert get_worker_info().dataset is self
        self.lines = torch.arange(worker, 640, get_worker_info().num_workers)
    def __iter__(self):
        for start in range(0, len(self.lines), 16):
            yield self.lines[start : start + 16, None].expand(-1, 8).float()
lines = Lines()
for epoch in range(3):
    for x in DataLoader(lines, batch_size=None, num_workers=2, worker_init_fn=lines.open): step(x)
"""
    assert trace_code(tmp_path, BEGINNING + stream).loop.batch == 16


def test_a_mask_on_the_host_selects_as_many_as_on_the_device(tmp_path):
    masked = """
rows = torch.randn(4000, 8)
rows = rows[(rows[:, 0].to("cuda") > 0).cpu()]
for _ in range(61): step(rows[:64])
"""
    job = trace_code(tmp_path, BEGINNING + masked)
    assert (job.loop.batch, job.loop.steps_per_epoch) == (64, 61)


def test_a_step_of_several_batches_has_their_samples(tmp_path):
    grouped = """
samples = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=1, collate_fn=lambda items: items[0][0])
def grouped():
    group = []
    for sample in samples:
        group.append(sample)
        if len(group) == 3:
            yield group
            group = []
class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, pictures):
        return self.inner(torch.stack([picture["image"] for picture in pictures]).to("cuda"))
detector = Detector()
for group in grouped():
    optimizer.zero_grad()
    detector([{"image": picture} for picture in group]).mean().backward()
    optimizer.step()
"""
    job = trace_code(tmp_path, BEGINNING + grouped)
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (3, 13, 1)
    assert "each step takes 3 batches of the loader" in job.notes


def test_weights_that_are_frozen_at_first_are_a_note(tmp_path):
    frozen = "for epoch in range(3):\n    model.bias.requires_grad_(epoch > 0)\n    for (x,) in loader: step(x)\n"
    job = trace_code(tmp_path, BEGINNING + frozen)
    assert any("assumed to stay frozen" in note for note in job.notes)
    assert not any("frozen" in note for note in trace_code(tmp_path, BEGINNING + "for (x,) in loader: step(x)\n").notes)


@pytest.mark.usefixtures("_only_read")
def test_an_option_that_a_condition_may_not_mean_is_assumed(tmp_path):
    ended = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
options = parser.parse_args()
class Trainer:
    last = -1
    def terminate(self):
        Trainer.last += 1
        return Trainer.last + 1 >= options.epochs
trainer = Trainer()
while not trainer.terminate():
    for (x,) in loader: step(x)
"""
    job = trace_code(tmp_path, BEGINNING + ended)
    assert any("assuming that it ends `while not trainer.terminate()`" in note for note in job.notes)


def test_a_process_group_needs_a_rank_from_somewhere(tmp_path):
    alone = """
try:
    torch.distributed.init_process_group("gloo", init_method="env://")
except ValueError as error:
    assert "RANK expected" in str(error)
assert not torch.distributed.is_initialized()
for (x,) in loader: step(x)
"""
    assert steps_of(tmp_path, alone) == 5


def test_clients_that_are_left_out_do_not_train(tmp_path):
    clients = """
import numpy as np
chosen, others, nets = np.arange(10)[:3], [1, 2], {number: model for number in range(10)}
for round_ in range(2):
    for number, client in nets.items():
        if number not in chosen:
            continue
        for (x,) in loader: step(x)
    for number in range(5):
        if number in others: continue
"""
    assert steps_of(tmp_path, clients) == 2 * 3 * 5


@pytest.mark.usefixtures("_only_read")
def test_rounds_that_grow_are_unknown(tmp_path):
    grown = """
stored = 0
while stored < 5000:
    stored += 512
    for _ in range(int(stored / 256)): step(rows)
"""
    job = trace_code(tmp_path, BEGINNING + grown)
    assert job.loop.steps_per_epoch is None or any("assumed to be as long" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_patience_is_no_limit(tmp_path):
    patience = """
best = 0
for made in range(2000):
    step(rows)
    if rows.sum() < 0:
        best = made
    if made - best > 100:
        break
"""
    job = trace_code(tmp_path, BEGINNING + patience)
    assert job.loop.steps_per_epoch == 2000
    assert any("may end early" in note for note in job.notes)
