"""Evaluation is counted where the script evaluates, with its loading, and nowhere else."""

import sys
import textwrap
from pathlib import Path

import pytest

from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command

DATA = """
import sys, tempfile, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
training, held_out = TensorDataset(torch.rand(160, 4)), TensorDataset(torch.rand(40, 4))
"""
TRAINER = """
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x=None, labels=None):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

def rows(count):
    return [{"x": torch.rand(4), "labels": number % 2} for number in range(count)]

strategy, evaluation_set = sys.argv[1], rows(40) if sys.argv[2] == "set" else None
arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8, per_device_eval_batch_size=8, num_train_epochs=2,
    report_to="none", save_strategy="no", disable_tqdm=True, eval_strategy=strategy, eval_steps=5)
Trainer(Net(), arguments, train_dataset=rows(160), eval_dataset=evaluation_set).train()
"""
ACCELERATED = """
from accelerate import Accelerator
accelerator = Accelerator()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(training, 8, shuffle=True))
for epoch in range(3):
    for (x,) in batches:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""
LOOP = """
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def evaluate(loader):
    with torch.no_grad():
        for (x,) in loader:
            model(x.cuda())
{before}
for epoch in range(3):
    for (x,) in DataLoader(training, 8, shuffle=True):
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    {after}
"""


def trace(folder: Path, code: str, *arguments: str) -> TracedJob:
    script = folder / "train.py"
    script.write_text(DATA + textwrap.dedent(code))
    words = (sys.executable, str(script), *arguments)
    return trace_command(
        Workload(ModelSource(ModelKind.COMMAND, "train", words)), runner=run_process, cwd=folder, timeout_s=60
    )


@pytest.mark.parametrize(
    ("strategy", "data", "batches"), [("no", "none", 0), ("no", "set", 0), ("epoch", "set", 5), ("steps", "set", 20)]
)
def test_the_hugging_face_trainer_evaluates_as_its_settings_say(tmp_path, strategy, data, batches):
    pytest.importorskip("transformers")
    job = trace(tmp_path, TRAINER, strategy, data)
    assert job.loop.evaluation_batches_per_epoch == batches
    assert (job.evaluation is not None) == bool(batches)
    assert (job.loop.evaluation_loading is not None) == bool(batches)


def test_the_loader_that_accelerate_makes_again_is_no_evaluation(tmp_path):
    pytest.importorskip("accelerate")
    job = trace(tmp_path, ACCELERATED)
    assert (job.loop.evaluation_batches_per_epoch, job.evaluation) == (None, None)
    assert not any("evaluation" in note for note in job.notes)


@pytest.mark.parametrize(
    ("before", "after", "batches", "note"),
    [
        ("", "pass", None, None),
        ("unused = DataLoader(held_out, 8)", "pass", None, None),
        ("val_loader = DataLoader(held_out, 8)", "pass", None, "evaluation is not counted: val_loader was not read"),
        ("first = DataLoader(held_out, 4); evaluate(first)", "pass", None, None),
        (
            "loaders = [DataLoader(held_out, 8), DataLoader(held_out, 20)]",
            "[evaluate(each) for each in loaders]",
            7,
            None,
        ),
    ],
)
def test_a_loop_has_the_evaluation_that_it_runs(tmp_path, before, after, batches, note):
    job = trace(tmp_path, LOOP.format(before=before, after=after))
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (20, 3)
    assert job.loop.evaluation_batches_per_epoch == batches
    assert (job.evaluation is not None) == (batches is not None) == (job.loop.evaluation_loading is not None)
    assert [text for text in job.notes if "evaluation" in text] == [f"{note} after the traced steps"] * bool(note)
