"""Idioms of public training scripts are traced with their facts right."""

import shlex
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.corpus import CORPUS
from benchmarks.trace import wrong_facts
from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, Stage, StorageCategory, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked


@pytest.mark.parametrize("name", ["skipgram", "convnext_ema", "ddp_resnet"])
def test_a_script_is_traced_with_every_fact_right_and_its_evaluation(tmp_path: Path, name: str) -> None:
    script = next(script for script in CORPUS if script.name == name)
    job = _run(script.command(), tmp_path)
    assert wrong_facts(script, job) == []
    assert (script.evaluation_batches is not None) == (job.evaluation is not None and bool(job.evaluation.ops))
    assert list(tmp_path.iterdir()) == []


def test_sparse_gradients_are_traced_as_dense_with_low_confidence(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        table = torch.nn.EmbeddingBag(100, 8, mode="sum", sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
        for step in range(9):
            table(torch.ones(4, 3, dtype=torch.long, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert job.low_confidence
    assert any("sparse gradients" in note for note in job.notes)
    assert job.step.parameters == 800


def test_synchronised_batch_norm_sends_its_statistics_both_ways(tmp_path: Path) -> None:
    code = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("nccl")
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
        model = torch.nn.parallel.DistributedDataParallel(model)
        dist.group.WORLD.monitored_barrier()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.rand(2, 3, 8, 8).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    job = _trace(tmp_path, code, ranks=4)
    sent = [op for op in job.step.ops if op.kind is OpKind.COMMUNICATION]
    weights = 3 * 8 * 9 + 8 + 8 + 8
    assert Counter({(Stage.FORWARD, 4 * 4 * 17): 1, (Stage.BACKWARD, 64): 1, (Stage.BACKWARD, 4 * weights): 1}) == (
        Counter((op.stage, op.dims["bytes"]) for op in sent)
    )
    assert {4} == {op.dims["ranks"] for op in sent}


def test_values_sent_to_the_device_come_back_unchanged(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        counts = torch.tensor([3.0, 4.0], device="cuda")
        assert [3.0, 4.0] == counts.tolist() and 3 == torch.tensor(3).cuda().item()
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.rand(4, 4).cuda()).sum().backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 20


def test_values_on_the_device_are_known_through_views(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        both = torch.tensor([3.0, 4.0], device="cuda")
        total, count = both
        assert 3 == total.item() and 4 == count.item() and [[3.0, 4.0]] == both[None].cpu().tolist()
        both[0] = 1
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.rand(4, 4).cuda()).sum().backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 20


LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, in DataLoader(TensorDataset(torch.rand(80, 4)), 8):
    model(x.cuda()).sum().backward()
    optimizer.step()
"""


def test_old_tensor_types_construct_on_the_device_and_support_isinstance(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        weight = torch.nn.Parameter(torch.cuda.FloatTensor(3, 4))
        optimizer = torch.optim.SGD([weight], 0.1)
        labels = torch.cuda.LongTensor([1, 2])
        assert isinstance(labels, (torch.LongTensor, torch.cuda.LongTensor))
        assert not isinstance(labels, torch.cuda.FloatTensor)
        assert not isinstance(torch.ones(2, dtype=torch.long), torch.cuda.LongTensor)
        for name in (torch.cuda.FloatTensor, "torch.cuda.FloatTensor"):
            assert isinstance(torch.ones(2, dtype=torch.long).type(name), torch.cuda.FloatTensor)
        assert isinstance(torch.ones(2).type(torch.LongTensor), torch.LongTensor)
        for step in range(9):
            (weight[labels] ** 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert job.step.parameters == 12


def test_a_default_tensor_type_of_the_gpu_puts_new_tensors_on_it(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        assert torch.rand(2).is_cuda and torch.Tensor([1.0]).is_cuda and torch.rand(2).dtype == torch.float64
        torch.set_default_tensor_type("torch.FloatTensor")
        assert not torch.rand(2).is_cuda and not torch.Tensor([1.0]).is_cuda
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            scaled = torch.rand(2, 4) * torch.FloatTensor([0.5, 2.0])[1]  # a view of a tensor on the host
            torch.cat([model(scaled), torch.Tensor([[1.0] * 4])]).sum().backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 20


def test_an_error_after_the_traced_steps_is_a_note_that_names_its_line(tmp_path: Path) -> None:
    job = _trace(tmp_path, LOOP + "raise ValueError('no score')\n")
    assert job.step.parameters == 20
    notes = [note for note in job.notes if "not traced" in note]
    assert [f"code after training is not traced: {tmp_path}/train.py:9 raised ValueError: no score"] == notes


def test_hydra_is_asked_for_the_error_of_the_script_itself(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match="full error: 1"):
        _trace(tmp_path, "import os, torch\nraise ValueError('full error: ' + os.environ['HYDRA_FULL_ERROR'])\n")


def test_an_error_before_enough_steps_stays_an_error(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match="no score"):
        _trace(tmp_path, LOOP.replace("80", "16") + "raise ValueError('no score')\n")


def test_a_model_whose_graph_is_logged_is_traced(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter()\n"
    log += "writer.add_graph(model, torch.rand(8, 4).cuda())\n"
    job = _trace(tmp_path, LOOP.replace("for x, in", log + "for x, in"))
    assert job.step.parameters == 20


def test_a_trainer_that_stops_early_and_keeps_the_best_is_traced_with_its_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    job = _trace(
        tmp_path,
        """
        import torch
        from transformers import (BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer,
                                  TrainingArguments)
        items = [{"input_ids": torch.arange(16), "labels": torch.tensor(i % 2)} for i in range(80)]
        config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=64)
        settings = TrainingArguments(
            output_dir="out", num_train_epochs=3, per_device_train_batch_size=8, per_device_eval_batch_size=16,
            eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, load_best_model_at_end=True,
            report_to="none", fp16=True)
        score = lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}
        trainer = Trainer(model=BertForSequenceClassification(config), args=settings, train_dataset=items,
                          eval_dataset=items[:32], compute_metrics=score, callbacks=[EarlyStoppingCallback(2)])
        trainer.train()
        trainer.save_model("final")
        """,
    )
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.evaluation_batches_per_epoch) == (10, 3, 2)
    assert not [note for note in job.notes if "not traced" in note]
    _same_kernels_forward(job)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_lightning_trainer_that_stops_early_is_traced_with_its_validation(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    job = _trace(
        tmp_path,
        """
        import torch
        import lightning
        from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
        from torch.utils.data import DataLoader, TensorDataset

        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Linear(20, 3)
            def training_step(self, batch, _):
                return torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])
            def validation_step(self, batch, _):
                self.log("val_loss", self.training_step(batch, _))
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())

        def data(items):
            return DataLoader(TensorDataset(torch.rand(items, 20), torch.randint(0, 3, (items,))), 32)
        callbacks = [EarlyStopping("val_loss"), ModelCheckpoint(monitor="val_loss")]
        options = {"accelerator": "gpu", "devices": 1, "limit_train_batches": 0.5}
        trainer = lightning.Trainer(max_epochs=4, callbacks=callbacks, **options)
        trainer.fit(Net(), data(320), data(64))
        """,
    )
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.evaluation_batches_per_epoch) == (5, 4, 2)
    assert not any("not traced" in note for note in job.notes)
    _same_kernels_forward(job)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def _same_kernels_forward(job: TracedJob) -> None:
    """Check that a batch of evaluation multiplies as often as a forward pass of training."""
    assert job.evaluation is not None
    trained = sum(op.kind is OpKind.GEMM and op.stage is Stage.FORWARD for op in job.step.ops)
    assert trained == sum(op.kind is OpKind.GEMM for op in job.evaluation.ops)


def _trace(folder: Path, code: str, *, ranks: int = 0) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    launcher = ("-m", "torch.distributed.run", f"--nproc_per_node={ranks}") if ranks else ()
    return _run((sys.executable, *launcher, str(script)), folder)


def _run(words: tuple[str, ...], folder: Path) -> TracedJob:
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_forked, cwd=folder)


ENDLESS = """
import argparse, torch
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--OPTION", type=float, default=float("VALUE"))
args = parser.parse_args()
net = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(torch.rand(80, 4), 8)
while True:
    for x in loader:
        net(x.cuda()).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("option", "value"), [("epochs", "inf"), ("max_steps", "nan"), ("epochs", "1e300")])
def test_an_option_without_an_end_leaves_the_epochs_unknown(tmp_path: Path, option: str, value: str) -> None:
    job = _trace(tmp_path, ENDLESS.replace("OPTION", option).replace("VALUE", value))
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.samples) == (10, None, 80)
    assert any("the number of epochs is unknown" in note for note in job.notes)


def test_a_data_set_without_an_end_is_of_unknown_length(tmp_path: Path) -> None:
    code = """
    import sys, torch
    from torch.utils.data import DataLoader, Dataset
    class Stream(Dataset):
        def __len__(self):
            return sys.maxsize
        def __getitem__(self, index):
            return torch.rand(4)
    net = torch.nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in DataLoader(Stream(), 8):
        net(x.cuda()).sum().backward()
        optimizer.step()
    """
    loop = _trace(tmp_path, code).loop
    assert (loop.batch, loop.samples, loop.steps_per_epoch) == (8, None, None)


PADDED = """
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

LENGTHS = [3, 5, 4, 6, 5, 40, 7, 5, 4, 6, 5, 3] * 2
data = [torch.zeros(length, dtype=torch.long) for length in LENGTHS]
loader = DataLoader(data, batch_size=2, collate_fn=lambda batch: {"x": pad_sequence(batch, batch_first=True)})
table = torch.nn.Embedding(1000, 64).cuda()
optimizer = torch.optim.SGD(table.parameters(), 0.1)
for epoch in range(3):
    for batch in loader:
        table(batch.pop("x").cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_longest_of_padded_batches_is_traced_beside_a_mean_one(tmp_path: Path) -> None:
    job = _trace(tmp_path, PADDED)
    looked_up = [
        next(op.outputs[0].shape for op in step.ops if "embedding" in op.name and op.stage is Stage.FORWARD)
        for step in (job.step, job.largest_step)
    ]
    assert looked_up[1] == (2, 40, 64)
    assert looked_up[0][1] <= 7
    assert any("the largest of all 12" in note and "2 × 40" in note for note in job.notes)


def test_the_longest_batch_may_be_the_first_one(tmp_path: Path) -> None:
    job = _trace(tmp_path, PADDED.replace("[3, 5, 4, 6, 5, 40, 7,", "[40, 5, 4, 6, 5, 3, 7,").replace("* 2\n", "\n"))
    assert any("the largest of all 6 (2 × 40)" in note for note in job.notes)
    assert any(output.shape == (2, 40, 64) for op in job.largest_step.ops for output in op.outputs)


AHEAD = """
def ahead(batches):
    batches = iter(batches)
    held = next(batches)
    for batch in batches:
        yield held
        held = batch
    yield held
"""


@pytest.mark.parametrize("passes", [1, 3])
def test_a_loop_that_fetches_a_batch_ahead_still_trains_on_the_longest(tmp_path: Path, passes: int) -> None:
    code = AHEAD + PADDED.replace("in loader", "in ahead(loader)").replace("* 2\n", "* 8\n").replace(
        "    for batch", "    for number, batch"
    ).replace("in ahead(loader)", "in enumerate(ahead(loader), 1)").replace(
        "        optimizer.step()\n        optimizer.zero_grad()",
        f"        if number % {passes} == 0:\n            optimizer.step()\n            optimizer.zero_grad()",
    )
    job = _trace(tmp_path, code)
    widths = [
        {op.outputs[0].shape[1] for op in step.ops if "embedding" in op.name and op.stage is Stage.FORWARD}
        for step in (job.step, job.largest_step)
    ]
    assert (1, {40}) == (len(widths[0]), widths[1])
    assert max(widths[0]) <= 7
    assert passes == job.loop.accumulation


def test_batches_of_one_size_have_no_longer_step(tmp_path: Path) -> None:
    job = _trace(tmp_path, PADDED.replace("[3, 5, 4, 6, 5, 40, 7, 5, 4, 6, 5, 3] * 2", "[5] * 25"))
    assert job.longer == ()


def test_the_memory_of_a_loader_on_the_host_is_a_fact(tmp_path: Path) -> None:
    keeps = "num_workers=3, prefetch_factor=5, pin_memory=True, collate_fn"
    loop = _trace(tmp_path, PADDED.replace("collate_fn", keeps)).loop
    assert (loop.loader_workers, loop.prefetch, loop.pinned) == (3, 5, True)
    assert loop.batch_tensor_bytes == (2 * 5 * 8,)
    assert 24 * 50 < (loop.object_bytes or 0) < 24 * 500


@pytest.mark.parametrize(("settings", "times"), [("", 1), (", gradient_as_bucket_view=True", 0)])
def test_gradients_are_held_again_in_buckets_unless_they_are_views(tmp_path: Path, settings: str, times: int) -> None:
    code = f"""
        import torch, torch.distributed as dist
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda(){settings})
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.rand(2, 1024).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    events = _trace(tmp_path, code, ranks=2).step.events
    standing = [event.size_bytes for event in events if event.op == 0 and event.category is StorageCategory.GRADIENT]
    assert times * 4 * 1024 * 1025 == sum(standing)


def test_a_loop_that_trains_in_every_tenth_pass_has_that_many_steps(tmp_path: Path) -> None:
    code = """
    import torch
    policy = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).cuda()
    optimizer = torch.optim.Adam(policy.parameters())
    memory = []
    for global_step in range(1200):
        memory.append(torch.rand(4))
        policy(memory[-1][None].cuda()).argmax()
        if global_step > 100 and global_step % 10 == 0:
            loss = policy(torch.stack(memory[-64:]).cuda()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
    job = _trace(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (109, 1)  # 110, 120, …, 1190
    assert job.loop.batch == 64
    assert any("every 10 passes from pass 111" in note for note in job.notes)


def test_a_progress_bar_that_asks_for_the_size_of_the_terminal_has_one(tmp_path: Path) -> None:
    code = """
    import os, torch
    _, columns = os.popen("stty size", "r").read().split()
    model = torch.nn.Linear(4, int(columns)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.rand(2, 4).cuda()).sum().backward()
        optimizer.step()
    """
    assert _trace(tmp_path, code).step.parameters == 80 * 5


def test_a_sampler_that_calls_the_model_after_the_first_step_is_not_run_to_its_end(tmp_path: Path) -> None:
    code = """
    import torch
    class Sampler(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net
        def forward(self, x):
            for _ in range(10 ** 5):
                x = x - self.net(x)
            return x
    net = torch.nn.Linear(8, 8).cuda()
    sampler, optimizer = Sampler(net).cuda(), torch.optim.Adam(net.parameters())
    for step in range(200):
        optimizer.zero_grad()
        net(torch.rand(16, 8).cuda()).sum().backward()
        optimizer.step()
        if step % 100 == 0:
            with torch.no_grad():
                assert sampler(torch.rand(4, 8).cuda()).shape == (4, 8)
    """
    job = _trace(tmp_path, code)
    assert any("calls of Linear without gradients" in note and "assumed" in note for note in job.notes)
    assert [op.flops for op in job.step.ops if op.kind is OpKind.GEMM] == [2048.0, 2048.0]


def test_a_backward_pass_through_weights_that_a_step_changed_fails_as_on_a_gpu(tmp_path: Path) -> None:
    code = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(9):
        loss = net(torch.rand(4, 8).cuda()).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        (2 * loss).backward()
    """
    (script := tmp_path / "train.py").write_text(textwrap.dedent(code))
    words = (sys.executable, str(script))
    with pytest.raises(Untraceable, match="modified by an inplace operation"):
        trace_command(Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words)), runner=run_process)


def test_a_scripted_model_is_one_to_the_script(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        net = torch.jit.script(torch.nn.Linear(8, 4))
        assert isinstance(net, torch.jit.ScriptModule) and not isinstance(torch.nn.Linear(1, 1), torch.jit.ScriptModule)
        net = net.cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.rand(2, 8, device="cuda")).sum().backward()
            optimizer.step()
        """,
    )
    assert (job.step.parameters, job.loop.steps_per_epoch) == (36, 5)
