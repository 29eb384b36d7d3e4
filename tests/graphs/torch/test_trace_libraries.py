"""Scripts that call the training loop of a library: its loops count where nothing else tells the steps."""

import textwrap
from pathlib import Path

import pytest

from leadline.core.graph import TracedJob
from tests.support.traced_script import trace_code

FITTER = """
import torch

class Fitter:
    def __init__(self, net, epochs, early=None):
        self.net, self.epochs, self.early = net, epochs, early
        self.optimizer = torch.optim.Adam(net.parameters())

    def fit(self, loader):
        for epoch in range(self.epochs):
            self.run_epoch(loader)
            if self.early is not None and self.early(epoch):
                break

    def run_epoch(self, loader):
        for number, (x, y) in enumerate(loader):
            self.train_batch(x, y)

    def train_batch(self, x, y):
        self.optimizer.zero_grad()
        (self.net(x) - y).square().mean().backward()
        self.optimizer.step()

class Runner(Fitter):
    epoch = 0

    def fit(self, loader):
        while self.epoch < self.epochs and self.early is None:
            self.run_epoch(loader)

    def run_epoch(self, loader):
        super().run_epoch(loader)
        self.epoch += 1

class OneForEach:
    def __init__(self, parameters):
        self.parts = [torch.optim.SGD([parameter], 0.1) for parameter in parameters]

    def step(self):
        for part in self.parts:
            for rounds in range(1):
                part.step()

def command_line(function):
    while True:
        function()
        break

def search(function, trials=None, stopped=False):
    done = 0
    while True:
        if stopped:
            break
        if trials is not None:
            if done >= trials:
                break
            done += 1
        function()

def backward_of(loss):
    for part in [loss]:
        part.backward()
"""
BEGINNING = """
import sys
sys.path.insert(0, "site-packages")
import torch
from fitter import Fitter, OneForEach, Runner, backward_of, command_line, search
data = torch.utils.data.TensorDataset(torch.rand(100, 8), torch.rand(100, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16)
net = torch.nn.Linear(8, 1)
"""


def trace_fit(folder: Path, code: str) -> TracedJob:
    library = folder / "site-packages" / "fitter.py"
    library.parent.mkdir()
    library.write_text(FITTER, encoding="utf-8")
    return trace_code(folder, BEGINNING + textwrap.dedent(code))


def test_the_loops_of_a_library_count(tmp_path):
    job = trace_fit(tmp_path, "Fitter(net, 5).fit(loader)")
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.batch) == (7, 5, 16)
    assert any("`range(self.epochs)` in line 10 of fitter.py" in note for note in job.notes)


def test_a_counter_that_another_method_of_a_library_increments_counts(tmp_path):
    job = trace_fit(tmp_path, "Runner(net, 5).fit(loader)")
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 5)


def test_a_loop_of_the_script_repeats_those_of_a_library(tmp_path):
    job = trace_fit(tmp_path, "for rate in (0.1, 0.2, 0.3):\n    Fitter(net, 5).fit(loader)")
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 15)


def test_a_library_that_calls_the_script_does_not_repeat_it(tmp_path):
    job = trace_fit(tmp_path, "def main():\n    Fitter(net, 5).fit(loader)\ncommand_line(main)")
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 5)


def test_a_library_that_tries_several_settings_repeats_the_training(tmp_path):
    job = trace_fit(tmp_path, "def main():\n    Fitter(net, 5).fit(loader)\nsearch(main, 4)")
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 20)


def test_a_library_that_may_end_early_is_told(tmp_path):
    job = trace_fit(tmp_path, "Fitter(net, 5, early=lambda epoch: epoch > 3).fit(loader)")
    assert job.loop.epochs == 5
    assert any("in line 10 of fitter.py may end early" in note for note in job.notes)


def test_loops_of_a_library_around_an_optimizer_or_a_backward_pass_alone_do_not_count(tmp_path):
    code = """
    optimizer = OneForEach(net.parameters())
    for epoch in range(3):
        for x, y in loader:
            backward_of((net(x) - y).square().mean())
            optimizer.step()
    """
    job = trace_fit(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 3)


@pytest.mark.parametrize(
    ("agent", "environment", "length", "steps", "batch"),
    [
        ("PPO('MlpPolicy', env, n_steps=128, batch_size=64, n_epochs=3)", "CartPole-v1", 500, 4 * 3 * 2, 64),
        ("A2C('MlpPolicy', env, n_steps=5)", "CartPole-v1", 501, 101, 5),
        ("DQN('MlpPolicy', env, learning_starts=100, train_freq=4, batch_size=32)", "CartPole-v1", 500, 100, 32),
        ("TD3('MlpPolicy', env, learning_starts=100, batch_size=32)", "Pendulum-v1", 300, 100, 32),
    ],
)
def test_agents_of_stable_baselines_tell_their_steps(tmp_path, agent, environment, length, steps, batch):
    name = agent.partition("(")[0]
    code = f"""
    import gymnasium
    from stable_baselines3 import {name}
    env = gymnasium.make("{environment}")
    {name.lower()} = {agent}
    {name.lower()}.learn(total_timesteps={length})
    """
    job = trace_code(tmp_path, code)
    assert (job.loop.steps_per_epoch * job.loop.epochs, job.loop.batch) == (steps, batch)


@pytest.mark.parametrize(
    ("run", "steps"), [("max_epochs=3", (7, 3)), ("max_epochs=3, epoch_length=5", (5, 3)), ("max_iters=21", (7, 3))]
)
def test_an_engine_of_ignite_tells_its_epochs(tmp_path, run, steps):
    code = f"""
    import torch
    from ignite.engine import Events, create_supervised_trainer
    data = torch.utils.data.TensorDataset(torch.rand(100, 8), torch.rand(100, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(net.parameters())
    trainer = create_supervised_trainer(net, optimizer, torch.nn.MSELoss())
    trainer.run(loader, {run})
    """
    job = trace_code(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.batch) == (*steps, 16)


ULTRALYTICS = """
import torch

class BaseTrainer:
    def __init__(self, args, loader):
        self.args, self.train_loader, self.test_loader = args, loader, loader
        self.batch_size, self.epochs, self.stop = loader.batch_size, 50, False

    def train(self):
        net = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        epoch = 0
        while True:
            for x, y in self.train_loader:
                (net(x) - y).square().mean().backward()
                optimizer.step()
            epoch += 1
            if self.stop or epoch >= self.epochs:
                break
"""


def test_a_trainer_of_ultralytics_tells_its_epochs(tmp_path):
    library = tmp_path / "site-packages" / "ultralytics"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(ULTRALYTICS, encoding="utf-8")
    code = """
    import sys
    from types import SimpleNamespace
    sys.path.insert(0, "site-packages")
    import torch
    from ultralytics import BaseTrainer
    data = torch.utils.data.TensorDataset(torch.rand(100, 8), torch.rand(100, 1))
    BaseTrainer(SimpleNamespace(nbs=64, val=True), torch.utils.data.DataLoader(data, batch_size=16)).train()
    """
    job = trace_code(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs, job.loop.evaluation_batches_per_epoch) == (7, 50, 7)
    assert any("one every 4 batches" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_lightning_without_the_pass_that_weight_averaging_adds(tmp_path):
    code = """
    import torch, lightning
    from lightning.pytorch.callbacks import StochasticWeightAveraging
    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        def training_step(self, batch, _):
            return (self.net(batch[0]) - batch[1]).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.rand(100, 8), torch.rand(100, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    averaging = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2)
    lightning.Trainer(max_epochs=4, callbacks=[averaging], logger=False, enable_checkpointing=False).fit(Net(), loader)
    """
    job = trace_code(tmp_path, code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (7, 4)
    assert any("StochasticWeightAveraging" in note for note in job.notes)
