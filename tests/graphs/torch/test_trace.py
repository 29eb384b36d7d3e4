import shlex
import sys
import textwrap
import time
from pathlib import Path

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, Stage, TracedJob
from leadline.core.processes import ProcessRunner
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

LOOP = """
import copy, os, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
pairs = TensorDataset(torch.rand(80, 3, 4, 4), torch.randint(0, 10, (80,)))
train = DataLoader(pairs, 8, num_workers=2, pin_memory=True)
valid = DataLoader(TensorDataset(torch.rand(20, 3, 4, 4), torch.randint(0, 10, (20,))), 12)
for epoch in range(2):
    for x, y in train:
        assert x.numpy().max() > 0
        x, y = x.to(device, non_blocking=True), y.cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        if not torch.isfinite(loss):
            raise SystemExit("diverged")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"{epoch} {loss.item():.3f} {loss:.3f} {float(loss)}")
    right = 0
    with torch.inference_mode():
        for x, y in valid:
            right += (model(x.to(device)).argmax(1).cpu().numpy() == y.numpy()).sum()
    torch.save(model.state_dict(), "model.pt")
"""


def trace(
    folder: Path, code: str, arguments: str = "", python: str = sys.executable, runner: ProcessRunner = run_forked
) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    words = (*python.split(), str(script), *shlex.split(arguments))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=runner, cwd=folder)


def test_an_unmodified_loop_gives_its_step_and_its_evaluation(tmp_path: Path) -> None:
    job = trace(tmp_path, LOOP)
    linear = [op.dims for op in job.step.ops if op.kind is OpKind.GEMM and op.stage is Stage.FORWARD]
    assert linear == [{"b": 1, "m": 8, "n": 32, "k": 48}, {"b": 1, "m": 8, "n": 10, "k": 32}]
    assert {"float16"} == {op.dtype for op in job.step.ops if op.kind is OpKind.GEMM}
    assert job.evaluation is not None
    batches = [op.dims["m"] for op in job.evaluation.ops if op.kind is OpKind.GEMM]
    assert batches == [12, 12]
    assert job.loop.evaluation_batches_per_epoch == 2
    assert not (tmp_path / "model.pt").exists()


def test_a_step_ends_with_the_rarest_of_two_optimizers(tmp_path: Path) -> None:
    job = trace(
        tmp_path,
        """
        import torch
        a, b = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda()
        oa, ob = torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1)
        for step in range(100):
            b(torch.rand(2, 4).cuda()).sum().backward()
            ob.step()
            a(torch.rand(2, 4).cuda()).sum().backward()
            oa.step()
        """,
    )
    assert sum(op.name == "aten.addmm" for op in job.step.ops) == 2


def test_an_optimizer_that_steps_every_few_batches_divides_the_steps_of_an_epoch(tmp_path: Path) -> None:
    job = trace(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader
        often, seldom = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda()
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (often, seldom)]
        for epoch in range(2):
            for number, x in enumerate(DataLoader(torch.rand(93, 4), 1)):
                often(x.cuda()).sum().backward()
                optimizers[0].step()
                if number % 5 == 0:
                    seldom(x.cuda()).sum().backward()
                    optimizers[1].step()
        """,
    )
    assert sum(op.name == "aten.addmm" for op in job.step.ops) == 6
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.accumulation) == (19, 2, 1)


def test_a_loop_without_an_optimizer_object_ends_and_counts_its_updates(tmp_path: Path) -> None:
    job = trace(
        tmp_path,
        """
        import torch
        w = torch.randn(5, 3, device="cuda", requires_grad=True)
        while True:
            loss = (torch.randn(7, 5, device="cuda:0") @ w).pow(2).sum()
            loss.backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
                w.grad.zero_()
        """,
    )
    assert {Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER} == {op.stage for op in job.step.ops}
    assert job.step.parameters == 15


def test_data_parallel_ranks_sum_their_gradients(tmp_path: Path) -> None:
    job = trace(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("nccl")
        rank = int(os.environ["LOCAL_RANK"])
        model = DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(9):
            model(torch.rand(4, 8).to(rank)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        python=f"{sys.executable} -m torch.distributed.run --nproc_per_node=4",
    )
    sent = [op for op in job.step.ops if op.kind is OpKind.COMMUNICATION]
    assert [op.dims for op in sent] == [{"bytes": 4 * 72, "ranks": 4}]
    assert job.loop.world_size == 4


def test_a_failed_assertion_without_a_message_names_its_condition(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match=r"AssertionError: no message at `assert sum\(\[1, 2\]\) == 4`"):
        trace(tmp_path, "import torch\nassert sum([1, 2]) == 4\n")


def test_a_failing_script_is_untraceable_with_the_users_line(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match="ZeroDivisionError: division by zero") as caught:
        trace(tmp_path, "import torch\nscale = 1 / 0\n")
    assert f"{tmp_path}/train.py:2" == caught.value.location


def test_a_message_that_is_no_text_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match=r"ValueError: no file \?\.txt") as caught:
        trace(tmp_path, "import torch\nraise ValueError('no \\x1b[1mfile\\x1b[0m \\udcff.txt')\n")
    assert f"{tmp_path}/train.py:2" == caught.value.location


def test_a_long_message_ends_with_a_whole_sentence(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match=r"ValueError: The format is old\. Convert it; the trace stopped here"):
        trace(tmp_path, "import torch\nraise ValueError('The format is old. Convert it. ' + 400 * 'Or ' + 'not.')\n")


def test_a_script_that_trains_nothing_is_untraceable(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match="without a backward pass"):
        trace(tmp_path, "import torch\nprint(torch.rand(3))\n")


def test_a_script_that_only_knows_the_cpu_is_traced_as_such(tmp_path: Path) -> None:
    job = trace(
        tmp_path,
        """
        import os, torch
        model = torch.nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            model(torch.rand(3, 6)).sum().backward()
            assert os.environ["LEADLINE_TRACE"] == "cpu"  # the first backward pass shows it
            optimizer.step()
        """,
    )
    assert job.step.device_type == "cpu"
    assert any("trains on the CPU" in note for note in job.notes)


def test_the_scripts_own_imports_and_its_loader_are_timed(tmp_path: Path) -> None:
    slow = """
    import time, torch
    from torch.utils.data import DataLoader, Dataset
    begun = time.process_time()
    while time.process_time() < begun + 0.3:
        pass

    class Slow(Dataset):
        def __len__(self):
            return 80
        def __getitem__(self, place):
            time.sleep(0.01)
            return torch.rand(4), torch.rand(1)

    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(Slow(), 8, num_workers=4):
        (model(x.cuda()) - y.cuda()).square().mean().backward()
        optimizer.step()
    """
    loop = trace(tmp_path, slow, runner=run_process).loop
    assert loop.loading is not None
    assert loop.script_s is not None
    assert loop.framework_s is not None
    assert loop.loading.batches == 6  # after the traced steps, in half a second
    assert 0.08 <= loop.loading.batch_s <= 0.12
    assert loop.loading.cpu_s < 0.02
    assert 0.3 <= loop.script_s <= 3.0
    assert loop.framework_s > 0.1


def test_a_data_set_that_computes_on_the_gpu_is_loaded_under_the_recorder(tmp_path: Path) -> None:
    on_gpu = """
    import torch
    from torch.utils.data import DataLoader, Dataset
    class OnGpu(Dataset):
        def __len__(self):
            return 80
        def __getitem__(self, place):
            kept = torch.rand(4).to("cuda")
            return HERE, torch.rand(1)
    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(OnGpu(), 8):
        (model(x.cuda()) - y.cuda()).square().mean().backward()
        optimizer.step()
    """
    for result in ("kept", "torch.rand(4)"):
        job = trace(tmp_path, on_gpu.replace("HERE", result), runner=run_process)
        assert job.loop.loading is not None
        assert job.loop.loading.batches > 1
        assert not any("cannot be loaded" in note for note in job.notes)


def test_recurrent_layers_are_traced_by_a_torch_that_has_cudnn(tmp_path: Path) -> None:
    recurrent = """
    import torch
    torch.backends.cudnn.is_acceptable = lambda *_: True  # as in a CUDA build, which most users have
    torch._use_cudnn_rnn_flatten_weight = lambda: True
    model = torch.nn.LSTM(8, 16, batch_first=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        out, _ = model(torch.rand(4, 10, 8).cuda())
        out.square().mean().backward()
        optimizer.step()
    """
    job = trace(tmp_path, recurrent)
    assert {"aten.lstm", "aten.lstm_backward"} == {op.name for op in job.step.ops if op.kind is OpKind.RNN}


def test_a_script_that_sleeps_ends_at_its_limit(tmp_path: Path) -> None:
    words = (sys.executable, str(tmp_path / "train.py"))
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1000)\n")
    workload = Workload(ModelSource(ModelKind.COMMAND, "train", words), trace_limit_s=1)
    began = time.monotonic()
    with pytest.raises(Untraceable, match="did not reach its second training step in 1 s") as caught:
        trace_command(workload, runner=run_process, cwd=tmp_path)
    assert f"{tmp_path}/train.py:2" == caught.value.location
    assert time.monotonic() - began < 60  # the wall-clock limit, 64 s, was not needed
