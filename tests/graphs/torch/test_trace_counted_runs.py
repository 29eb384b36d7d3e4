"""Steps that are counted by running the script on to its end, without calculations."""

from pathlib import Path

import pytest

from leadline.core.graph import TracedJob
from leadline.graphs.torch.worker.ended_runs import Guesses, StepCounts
from leadline.graphs.torch.worker.rest_of_run import ENDED, RUNNING, ForkProgress, RestOfRun
from leadline.graphs.torch.worker.session import TraceSession
from tests.support.traced_script import trace_code

BEGINNING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=4)

def step(rows=torch.randn(6, 8), optimizer=optimizer):
    optimizer.zero_grad()
    loss = model(rows.to("cuda")).mean()
    loss.backward()
    optimizer.step()
    return loss

class Judge:
    def __init__(self, most):
        self.most, self.seen, self.best, self.worse = most, 0, 1e9, 0
    def saw(self, count):
        self.seen += count
    def is_content(self):
        return self.seen >= self.most
    def is_worse(self, loss):
        if loss < self.best:
            self.best, self.worse = loss, 0
        else:
            self.worse += 1
        return self.worse > self.most
"""


def trace(folder: Path, code: str) -> TracedJob:
    return trace_code(folder, BEGINNING + code)


def steps_of(job: TracedJob) -> float | None:
    loop = job.loop
    return None if loop.steps_per_epoch is None or loop.epochs is None else loop.steps_per_epoch * loop.epochs


LONGER_FIRST = """
for task in range(3):
    for epoch in range(4 if task == 0 else 1):
        for (rows,) in loader: step(rows)
"""
GROWING = """
stored, judge = 0, Judge(1000)
while not judge.is_content():
    stored += 100
    for _ in range(int(stored * 0.01)): step()
    judge.saw(100)
"""
OWN_OPTIMIZERS = """
for task in range(3):
    own = torch.optim.SGD(model.parameters(), 0.1)
    for (rows,) in loader: step(rows, own)
"""
LEFT_AND_BEGUN_AGAIN = """
made = 0
for (rows,) in loader:
    while made < 24:
        step(rows)
        made += 1
        if made % 6 == 0: break
"""
UNTIL_CONTENT = """
judge, rows = Judge(9), torch.rand(6, 8, device="cuda", requires_grad=True)
own = torch.optim.LBFGS(model.parameters())
scaler = torch.amp.GradScaler("cuda")

def closure():
    own.zero_grad()
    loss = model(rows).mean()
    loss.backward()
    return loss

while not judge.is_content():
    optimizer.zero_grad()
    TRAIN
    judge.saw(1)
"""
SCALED = """
    with torch.autocast("cuda"): loss = model(rows).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
TWICE_DIFFERENTIATED = """
    slope, = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)
    slope.norm().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        (LONGER_FIRST, 30),
        (GROWING, 55),
        (OWN_OPTIMIZERS, 15),
        (LEFT_AND_BEGUN_AGAIN, 24),
        (UNTIL_CONTENT.replace("    TRAIN", SCALED), 9),
        (UNTIL_CONTENT.replace("    TRAIN", TWICE_DIFFERENTIATED), 9),
        (UNTIL_CONTENT.replace("TRAIN", "own.step(closure)"), 9),
    ],
    ids=["longer first", "growing", "own", "left and begun again", "scaled", "twice differentiated", "closure"],
)
def test_the_loops_of_a_script_are_run_to_their_end(tmp_path, code, steps):
    assert steps_of(trace(tmp_path, code)) == steps


def test_agreement_needs_no_note(tmp_path):
    job = trace(tmp_path, "for epoch in range(7):\n    for (rows,) in loader: step(rows)")
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (5, 7)
    assert not any("made" in note or "unknown" in note for note in job.notes)


@pytest.mark.parametrize(
    "value",
    [
        "loss.item()", "-loss.item()", "float(loss.detach().cpu().numpy())", "loss", "-(loss > 0).sum().item()",
        "-(loss.detach().expand(9).long().cpu().numpy() == [1, 0, 0] * 3).mean()",
    ],
)  # fmt: skip
def test_values_that_may_end_a_training_do_not_shorten_it(tmp_path, value):
    job = trace(
        tmp_path,
        f"judge = Judge(5)\nfor epoch in range(200):\n    loss = step()\n    if judge.is_worse({value}): break",
    )
    assert steps_of(job) == 200
    assert any("early" in note or "values" in note for note in job.notes)


def test_steps_that_only_values_decide_stay_unknown(tmp_path):
    job = trace(tmp_path, "judge, loss = Judge(5), step()\nwhile not judge.is_worse(loss.item()): loss = step()")
    assert steps_of(job) is None
    assert any("values" in note for note in job.notes)


def test_matrices_of_guessed_values_may_be_singular(tmp_path):
    code = """
import numpy as np
for epoch in range(9):
    loss = step()
    if epoch == 7: np.linalg.inv(np.full((2, 2), loss.item())); np.linalg.svd(np.zeros((2, 2)) / loss.item())
while not Judge(0).is_content(): pass
"""
    job = trace(tmp_path, code)
    assert steps_of(job) == 9
    assert not any("fails" in note for note in job.notes)


def test_a_saved_model_is_loaded_again(tmp_path):
    code = """
for epoch in range(9): step()
scale = torch.nn.Linear(8, 1)
scale.weight.data = torch.zeros(1, 8)
torch.save(scale.cuda().state_dict(), "scale.pt")
torch.save(model, "model.pt")
loaded = torch.load("model.pt", weights_only=False)
assert all(isinstance(weight, torch.nn.Parameter) for weight in loaded.parameters())
optimizer = torch.optim.SGD(loaded.parameters(), 0.1)
for epoch in range(3):
    loaded(torch.rand(6, 8).cuda()).mean().backward()
    optimizer.step()
"""
    job = trace(tmp_path, code)
    assert steps_of(job) == 12
    assert not any("fails" in note for note in job.notes)


@pytest.mark.parametrize(
    "loop",
    [
        "for epoch in range(9):\n    for (rows,) in loader: step(rows)",
        "judge = Judge(45)\nwhile not judge.is_content():\n    step(); judge.saw(1)",
    ],
)
def test_a_failure_after_training_is_told(tmp_path, loop):
    job = trace(tmp_path, f"{loop}\nopen('no/such/file').read()")
    assert steps_of(job) == 45
    told = next(note for note in job.notes if "fails after 45 steps" in note)
    assert "no/such/file" in told
    assert "train.py:" in told


def test_the_gradient_of_an_input_after_training_is_no_failure(tmp_path):
    attack = """
for epoch in range(9):
    for (rows,) in loader: step(rows)
for (rows,) in loader:
    rows = rows.clone().detach().cuda().requires_grad_(True)
    model(rows).sum().backward()
    print(rows.grad.size())
"""
    job = trace(tmp_path, attack)
    assert steps_of(job) == 45
    assert not any("fails after" in note or "trains again" in note for note in job.notes)


def test_results_keep_their_type_and_become_a_tensor(tmp_path):
    code = """
results = []
for epoch in range(9):
    loss = step().detach()
    if type(loss) != torch.Tensor: loss = loss.logits
    results.append([loss, loss])
print(torch.Tensor(results).shape)
"""
    job = trace(tmp_path, code)
    assert steps_of(job) == 9
    assert not any("fails" in note for note in job.notes)


def test_an_item_may_be_a_whole_batch(tmp_path):
    code = """
def collate(items):
    return torch.cat(items), torch.ones(4)

for epoch in range(3):
    for rows, _ in DataLoader([torch.rand(4, 8)] * 15, 1, collate_fn=collate): step(rows)
"""
    job = trace(tmp_path, code)
    assert (job.loop.batch, job.loop.samples) == (4, 60)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (15, 3)
    assert any("taken for whole batches" in note for note in job.notes)


def test_the_steps_of_an_epoch_are_no_epochs(tmp_path):
    code = (
        "steps_per_epoch = 15\nfor round in range(3):\n    for each in range(steps_per_epoch): step(torch.rand(6, 8))"
    )
    job = trace(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (15, 3)


def test_a_limit_that_nothing_reaches_beside_another_end_is_unknown(tmp_path):
    code = """
steps, most = 0, 10_000_000_000
while True:
    if steps % 5 == 0 and model(torch.rand(6, 8).cuda()).mean().item() < 0.01: break
    for _ in range(5):
        step()
        steps += 1
    if steps >= most: break
"""
    job = trace(tmp_path, code)
    assert steps_of(job) is None
    assert any("hardly meant to be reached" in note for note in job.notes)


def test_a_failure_within_training_leaves_its_steps_unknown(tmp_path):
    loop = "judge = Judge(45)\nwhile not judge.is_content():\n    step(); judge.saw(1)\n"
    job = trace(tmp_path, loop + "    if judge.seen > 20: open('none')")
    assert steps_of(job) is None
    assert any("fails after 21 steps" in note for note in job.notes)


def test_a_failure_within_later_training_leaves_the_steps_unknown(tmp_path):
    later = "for epoch in range(9): step()\nfor epoch in range(9):\n    step()\n    if epoch > 4: open('none')"
    job = trace(tmp_path, later)
    assert steps_of(job) is None
    assert any("more than 15 steps" in note for note in job.notes)
    assert any("fails after 15 steps" in note for note in job.notes)


def test_a_run_beyond_what_was_read_has_unknown_steps(tmp_path):
    job = trace(
        tmp_path,
        "rounds = iter([3] + [400_000] * 9)\nfor count in rounds:\n    for _ in range(count): step()",
    )
    steps = steps_of(job)
    assert steps is None or steps >= 3_600_003


def test_a_long_run_is_not_run_to_its_end(tmp_path):
    job = trace(tmp_path, "for _ in range(10**7): step()")
    assert steps_of(job) == 10**7


def test_steps_of_optimizers_add_up_or_the_rarest_counts():
    def total(order: str) -> int | None:
        counts = StepCounts()
        for name in order:
            counts.add(ord(name))
        return counts.total()

    assert total("aaaaabbbccc") == 11
    assert total("ddgddgddgddg") == 4
    assert total("a" * 20 + "ababa") is None
    assert total("dgdgdgaaa") == 6
    assert total("") == 0
    assert total("\0\0\0aaaaa") == 5
    assert total("\0\0\0") == 3


def test_a_failure_after_a_trainer_leaves_its_counted_steps(tmp_path):
    pytest.importorskip("transformers")
    job = trace_code(
        tmp_path,
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

        class Texts(torch.utils.data.Dataset):
            def __len__(self): return 80
            def __getitem__(self, index): return dict.fromkeys(["input_ids", "labels"], torch.full((16,), index))

        class Early(TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                control.should_training_stop = state.global_step == 7

        sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
        settings = TrainingArguments("out", num_train_epochs=3, report_to="none", save_strategy="no")
        model = LlamaForCausalLM(LlamaConfig(vocab_size=100, **sizes))
        Trainer(model, settings, train_dataset=Texts(), callbacks=[Early()]).train()
        raise KeyError("no folder for the weights")
        """,
    )
    assert steps_of(job) == 7
    assert any("fails after 7 steps" in note for note in job.notes)


COUNTER_OF_STEPS = """
last, wait = -1, 1
for epoch in range(6):
    for number, (rows,) in enumerate(loader):
        seen = number + 5 * epoch
        wait = 1 + seen // 10
        model(rows.to("cuda")).mean().backward()
        if seen - last >= wait:
            optimizer.step()
            last = seen
"""


def test_steps_that_become_rarer_are_counted(tmp_path):
    job = trace(tmp_path, COUNTER_OF_STEPS)
    assert steps_of(job) == 18
    assert not any("assumed to train" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_steps_that_become_rarer_are_assumed_where_nothing_counts_them(tmp_path):
    job = trace(tmp_path, COUNTER_OF_STEPS)
    assert any("assumed to train, which depends on `if seen - last >= wait`" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_trainings_of_a_search_are_assumed_to_be_alike(tmp_path):
    code = """
class Search:
    def __init__(self, epochs):
        self.epochs, self.optimizer = epochs, torch.optim.Adam(model.parameters())
    def fit(self):
        for _ in range(self.epochs):
            for (rows,) in loader: step(rows, self.optimizer)

for epochs in (2, 5, 3): Search(epochs).fit()
"""
    notes = trace(tmp_path, code).notes
    assert any("all trainings of the loop over `(2, 5, 3)`" in note for note in notes)


def test_an_argument_with_the_shape_of_a_number_need_not_be_one(tmp_path):
    code = """
class Box:
    shape = torch.Size([])

class Value(torch.nn.Linear):
    def forward(self, rows, box=None):
        return super().forward(rows)

value, box = Value(8, 1).to("cuda"), Box()
for epoch in range(9):
    step()
    with torch.no_grad():
        value(torch.randn(6, 8).to("cuda"), box=box)
"""
    job = trace(tmp_path, code)
    assert steps_of(job) == 9
    assert not any("fails" in note for note in job.notes)


def test_a_generator_that_reads_the_loader_by_next_ends_without_a_failure(tmp_path):
    code = """
class Again(DataLoader):
    def __iter__(self):
        self.batches = super().__iter__()
        for _ in range(len(self)):
            yield next(self.batches)

for epoch in range(5):
    for (rows,) in Again(TensorDataset(torch.randn(20, 8)), batch_size=4): step(rows)
"""
    job = trace(tmp_path, code)
    assert steps_of(job) == 25
    assert not any("StopIteration" in note for note in job.notes)


@pytest.mark.parametrize(("steps", "guesses"), [(3, Guesses.ONE), (7, Guesses.DIFFERENT)])
def test_a_second_run_that_is_too_slow_contradicts_only_by_more_steps(steps, guesses):
    ended = ForkProgress(ENDED, 5, 0, has_guessed=True, used_s=1, work_s=0, work_steps=0, rounds=0, projection=None)
    slow = ended._replace(state=RUNNING, steps=steps)
    run = RestOfRun(TraceSession(), None)._compare(ended, slow, None)
    assert run.guesses is guesses
    assert run.steps == 5
