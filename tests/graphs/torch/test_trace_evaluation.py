"""Evaluation is counted where the script evaluates, with its loading, and nowhere else."""

import sys
from pathlib import Path

import pytest

from benchmarks.trust.fact_scripts import ACCELERATED, DATA, LOOP, TRAINER
from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

LOOP_WITHOUT_EVALUATION = LOOP.format(before="", after="pass")


def trace(folder: Path, code: str, *arguments: str) -> TracedJob:
    script = folder / "train.py"
    script.write_text(code)
    words = (sys.executable, str(script), *arguments)
    return trace_command(Workload(ModelSource(ModelKind.COMMAND, "train", words)), runner=run_forked, cwd=folder)


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


EVERY_SO_MANY_STEPS = """
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
val_loader = DataLoader(held_out, 8)
steps = 0
for epoch in range(3):
    for (x,) in DataLoader(training, 8, shuffle=True):
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % EVERY == 0:
            with torch.no_grad():
                for (x,) in val_loader:
                    model(x.cuda())
"""


@pytest.mark.usefixtures("_only_read")
@pytest.mark.parametrize(("every", "batches"), [(4, 25), (15, 20 / 3), (100, None)])
def test_a_loop_that_evaluates_every_so_many_steps_is_traced_until_it_does(tmp_path, every, batches):
    job = trace(tmp_path, DATA + EVERY_SO_MANY_STEPS.replace("EVERY", str(every)))
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (20, 3)
    assert job.loop.evaluation_batches_per_epoch == batches
    assert {op.kind for op in job.step.ops} >= {op.kind for op in job.evaluation.ops} if batches else not job.evaluation
    assert job.step.ops == trace(tmp_path, LOOP_WITHOUT_EVALUATION).step.ops
    assert [text for text in job.notes if "evaluat" in text] == [
        f"the loop evaluates every {every} steps"
        if batches
        else "evaluation is not counted: val_loader was not read after the traced steps"
    ]


def test_evaluations_that_the_source_does_not_tell_are_counted_with_the_steps(tmp_path):
    code = EVERY_SO_MANY_STEPS.replace("steps % EVERY == 0", "steps & (steps - 1) == 0")  # 1, 2, 4 … 32 of 60 steps
    job = trace(tmp_path, DATA + code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (20, 3)
    assert job.loop.evaluation_batches_per_epoch == 6 * 5 / 3


def test_inference_has_the_length_and_the_loading_of_its_loader(tmp_path):
    model = "model = nn.Linear(4, 1).cuda().eval()\nwith torch.inference_mode():\n    "
    loop = "for (x,) in DataLoader(training, 8, num_workers=2):\n        model(x.cuda())\n"
    job = trace(tmp_path, DATA + model + loop)
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs, job.loop.loader_workers) == (8, 20, 1, 2)
    assert job.loop.loading is not None
    assert (job.evaluation, job.loop.evaluation_loading) == (None, None)


PRECOMPUTED = """
backbone = nn.Sequential(*[nn.Linear(4, 4) for _ in range(100)]).cuda().eval()
rows = []
with torch.no_grad():
    for passes in range(100):
        for (x,) in DataLoader(training, 8):
            rows.append(backbone(x.cuda()).cpu())
features = torch.cat(rows)
assert features.shape == (16000, 4)
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for (x,) in DataLoader(TensorDataset(features), 32):
        with torch.no_grad():
            teacher = backbone(x.cuda())
        (model(x.cuda()) - teacher).square().mean().backward()
        optimizer.step()
"""


def test_features_of_a_whole_data_set_are_made_without_running_every_layer(tmp_path):
    """Each of 2000 passes of 100 layers would take a tenth of a second."""
    job = trace(tmp_path, DATA + PRECOMPUTED)
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.samples) == (500, 3, 16000)
    assert sum(op.name == "aten.addmm" for op in job.step.ops) == 101  # the step runs the teacher as it is
    note = "calls of Sequential without gradients before training are assumed to be like the first 3"
    assert note in job.notes


ONE_BATCH = """
(x,) = next(iter(DataLoader(training, 8)))
layers = [nn.Linear(4, 4).cuda() for _ in range(2)]
for layer in layers:
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for step in range(25):
        layer(x.cuda()).square().mean().backward()
        optimizer.step()
"""


def test_steps_on_one_batch_load_nothing_and_are_no_passes_over_the_data_set(tmp_path):
    loop = trace(tmp_path, DATA + ONE_BATCH).loop
    assert (loop.steps_per_epoch, loop.epochs, loop.batch) == (25, 2, 8)
    assert loop.loading is None


EARLY = """
import torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rows, held = torch.randn(32, 16), torch.randn(6000, 16)
for step in range(100):
    model.train()
    model(rows).square().mean().backward()
    optimizer.step()
    if CONDITION:
        model.eval()
        with torch.no_grad():
            model(held).square().mean()
"""


def test_a_step_before_which_the_model_is_evaluated_stands_for_no_other(tmp_path):
    kept, others = (trace(tmp_path, EARLY.replace("CONDITION", when)) for when in ("step in (0, 1, 10)", "step > 99"))
    assert [op for op in kept.step.ops if op.flops] == [op for op in others.step.ops if op.flops]
    assert max(op.flops for op in kept.evaluation.ops) == 2 * 6000 * 16 * 16
    assert (kept.loop.evaluation_batches_per_epoch, others.loop.evaluation_batches_per_epoch) == (3, None)
    assert others.evaluation is None


def test_a_step_after_each_of_which_the_model_is_evaluated_has_that(tmp_path):
    job = trace(tmp_path, EARLY.replace("CONDITION", "step >= 0"))
    assert max(op.flops for op in job.step.ops) == 2 * 6000 * 16 * 16
    assert job.evaluation is None


@pytest.mark.usefixtures("_only_read")
@pytest.mark.parametrize(
    ("condition", "batches", "note"),
    [
        ("step % 20 == 0", 5, "the loop evaluates every 20 steps"),
        ("step in (0, 7)", None, "evaluation is not counted: how often the model is called for it is unknown"),
    ],
)
def test_an_evaluation_without_a_loader_has_the_period_that_its_condition_tells(tmp_path, condition, batches, note):
    job = trace(tmp_path, EARLY.replace("CONDITION", condition))
    assert job.loop.evaluation_batches_per_epoch == batches
    assert note in job.notes


def test_an_evaluation_before_the_first_step_tells_its_calls(tmp_path):
    code = EARLY.replace("if CONDITION:", "if False:").replace(
        "    model.train()\n",
        """    if step % 25 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(8): model(held)
    model.train()
""",
    )
    job = trace(tmp_path, code)
    assert job.loop.evaluation_batches_per_epoch == 32
    assert max(op.flops for op in job.evaluation.ops) == 2 * 6000 * 16 * 16
