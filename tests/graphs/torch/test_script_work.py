"""The script's own work between steps is measured, and what only some steps do is spread over its period."""

import sys
import time

import pytest
import torch

from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

SCRIPT = """
import time
import torch

model = torch.nn.Linear(4, 4).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(50):
    optimizer.zero_grad()
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    {work}
"""


def script_work(folder, work):
    script = folder / "train.py"
    script.write_text(SCRIPT.format(work=work))
    workload = Workload(ModelSource(ModelKind.COMMAND, "train", (sys.executable, str(script))))
    return trace_command(workload, runner=run_forked, cwd=folder).loop.script_work


def test_a_pause_in_each_step_is_its_work(tmp_path):
    assert script_work(tmp_path, "time.sleep(0.1)").step_s == pytest.approx(0.1, rel=0.2)


def test_the_mean_of_a_counted_run_holds_what_only_later_steps_do(tmp_path):
    work = script_work(tmp_path, "time.sleep(0.01 if step < 25 else 0.05)")
    assert work.step_s == pytest.approx((22 * 0.01 + 25 * 0.05) / 47, rel=0.2)


@pytest.mark.usefixtures("_only_read")
def test_work_of_every_tenth_step_is_spread_over_ten(tmp_path):
    work = script_work(tmp_path, "if step % 10 == 0: time.sleep(0.2)")
    assert work.step_s == pytest.approx(0.02, rel=0.2)
    assert work.least_s <= work.step_s <= work.most_s


@pytest.mark.usefixtures("_only_read")
def test_two_periods_bound_the_mean(tmp_path):
    work = script_work(tmp_path, "print(step % 5); time.sleep(0.2 if step % 20 == 0 else 0)")
    assert (work.least_s, work.most_s) == pytest.approx((0.01, 0.04), rel=0.2)


def test_a_step_of_ops_alone_has_no_work_of_the_script(tmp_path):
    assert script_work(tmp_path, "pass") is None


def test_an_import_in_the_first_steps_is_no_work_of_each_step(tmp_path):
    (tmp_path / "slow_import.py").write_text("print(sum(i * i for i in range(4_000_000)))")
    assert script_work(tmp_path, "import slow_import") is None


def test_work_on_host_tensors_counts_as_the_scripts_own(tmp_path):
    work = script_work(tmp_path, "torch.randn(1500, 1500) @ torch.randn(1500, 1500)")
    assert work.step_s > 0.01


WITHIN_A_MODULE = """
import torch

class Smoothed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 4)
        self.places = torch.randint(40_000, (40_000,))

    def forward(self, x):
        for _ in range(3):
            x = x.index_select(0, self.places)  # without weights, so the tensors keep their data
        return self.linear(x)

model, nodes = Smoothed(), torch.rand(40_000, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(40):
    optimizer.zero_grad()
    model(nodes).sum().backward()
    optimizer.step()
"""


def test_what_a_module_does_with_data_is_work_although_the_rest_of_the_run_leaves_it_out(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WITHIN_A_MODULE)
    workload = Workload(ModelSource(ModelKind.COMMAND, "train", (sys.executable, str(script))))
    nodes, places = torch.rand(40_000, 64), torch.randint(40_000, (40_000,))
    began_s = time.thread_time()
    for _ in range(3):
        nodes = nodes.index_select(0, places)
    real_s = time.thread_time() - began_s
    work = trace_command(workload, runner=run_forked, cwd=tmp_path, device_type="cpu").loop.script_work
    assert work.step_s > real_s / 4


LONG = """
import time
import torch

model = torch.nn.Linear(4, 4).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(400):
    time.sleep(1.8)
    for step in range(45):
        begun_s = time.thread_time()
        while time.thread_time() < begun_s + 0.05:
            pass
        optimizer.zero_grad()
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_the_work_between_two_passes_of_a_long_run_is_spread_over_their_steps(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LONG)
    workload = Workload(ModelSource(ModelKind.COMMAND, "train", (sys.executable, str(script))))
    job = trace_command(workload, runner=run_forked, cwd=tmp_path)
    assert job.loop.script_work.step_s == pytest.approx(0.05 + 1.8 / 45, rel=0.2)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (45, 400)


EPOCHS = """
import time
import torch

model = torch.nn.Linear(4, 4).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.ones(64, 4))
loader = torch.utils.data.DataLoader(data, batch_size=2)
for epoch in range(5):
    with torch.no_grad():
        model(torch.ones(512, 4, device="cuda"))
    time.sleep(0.2)
    for step, (x,) in enumerate(loader):
        loss = model(x.to("cuda")).sum() / 2
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.usefixtures("_only_read")
def test_work_and_calls_between_epochs_are_measured(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(EPOCHS)
    workload = Workload(ModelSource(ModelKind.COMMAND, "train", (sys.executable, str(script))))
    job = trace_command(workload, runner=run_forked, cwd=tmp_path)
    assert job.loop.epoch_work_s == pytest.approx(0.2, rel=0.2)
    assert job.loop.evaluation_batches_per_epoch == 1
    assert [op.dims["m"] for op in job.evaluation.ops if "m" in op.dims] == [512]
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.loading.per_step) == (8, 5, 4)
