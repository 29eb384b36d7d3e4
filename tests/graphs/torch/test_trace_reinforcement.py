"""Scripts that call their model many times before they train, and models that swap the axes of their batch."""

import pytest

from tests.support.traced_script import trace_code

REPLAY = """
import torch
from torch import nn
network = nn.Sequential(*[nn.Linear(4, 4) for _ in range(100)]).cuda()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
memory, state = [], torch.rand(1, 4)
for step in range(3000):
    action = network(state.cuda()).argmax()
    memory.append(int(action.item()))
    if step > 2000 and step % 10 == 0:
        network(torch.rand(32, 4).cuda()).square().mean().backward()
        optimizer.step()
"""
"""Each of the 2,000 calls that fill the memory would take a twentieth of a second."""


def test_actions_before_training_are_chosen_without_running_every_layer(tmp_path):
    job = trace_code(tmp_path, REPLAY)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (99, 1)
    note = "calls of Sequential whose results are dropped before training are assumed to be like the first 24"
    assert note in job.notes
    names = [op.name for op in job.step.ops]
    assert (names.count("aten.addmm"), names.count("aten.mm")) == (1100, 199)  # ten actions in a step


EPISODE = """
import torch
from torch import nn
policy = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2), nn.Softmax(-1)).cuda()
optimizer = torch.optim.SGD(policy.parameters(), 0.1)
for episode in range(9):
    returns = []
    for move in range(40):
        returns.append(policy(torch.rand(1, 4).cuda()).log().sum())
    torch.stack(returns).mean().backward()
    optimizer.step()
"""


def test_actions_that_are_trained_on_run_in_full(tmp_path):
    job = trace_code(tmp_path, EPISODE)
    assert [op.name for op in job.step.ops].count("aten.addmm") == 80


def test_training_on_a_call_that_did_not_run_is_calculated(tmp_path):
    code = EPISODE.replace("returns = []", "returns = []\n    for move in range(40): policy(torch.rand(1, 4).cuda())")
    notes = " ".join(trace_code(tmp_path, code).notes)
    assert "the script trains on a model's output whose first 24 values it dropped" in notes


SWAPPED = """
import torch
from torch import nn
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 8)
    def forward(self, words):
        return self.layer({words})[0]
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(9):
    model(torch.rand(10, 5, 3)).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("words", "batch"), [("words.transpose(0, 1)", 10), ("words", 5)])
def test_the_batch_is_that_of_the_recurrent_layer(tmp_path, words, batch):
    assert trace_code(tmp_path, SWAPPED.format(words=words)).loop.batch == batch


CRITIC = """
import sys, torch
from torch import nn
sys.modules["__mp_main__"] = sys.modules["__main__"]  # as the package multiprocess does
actor, critic = nn.Linear(4, 4), nn.Linear(4, 1)
slow, fast = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for epoch in range(30):
    state = torch.rand(8, 4)
    for _ in range(5):
        critic(state).mean().backward()
        fast.step()
    critic(actor(state)).mean().backward()
    slow.step()
"""


def test_the_steps_are_those_of_the_optimizer_that_steps_most_rarely(tmp_path):
    loop = trace_code(tmp_path, CRITIC).loop
    assert (loop.steps_per_epoch, loop.epochs) == (1, 30)


ROLLOUTS = """
import torch
from torch import nn
policy = nn.Linear(4, 2)
optimizer = torch.optim.SGD(policy.parameters(), 0.1)
for episode in range(30):
    chances = [[[policy(torch.rand(4)).softmax(0)[0]] for _ in range(5)] for _ in range(3)]
    old = torch.tensor(chances, dtype=torch.float)
    assert old.shape == (3, 5, 1)
    (policy(torch.rand(15, 4)).softmax(1)[:, :1] / (old.reshape(15, 1) + 1)).mean().backward()
    optimizer.step()
"""


def test_a_tensor_is_made_of_nested_lists_of_results(tmp_path):
    loop = trace_code(tmp_path, ROLLOUTS).loop
    assert loop.steps_per_epoch * loop.epochs == 30


COLLECTING = """
import torch
from torch import nn
network = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(network.parameters(), 0.1)

def step():
    optimizer.zero_grad()
    network(torch.rand(8, 4).cuda()).sum().backward()
    optimizer.step()

def train():
    for epoch in range(5):
        for part in range(4):
            step()

total = collected = 0
while total < 450:
    done = False
    while not done:
        total += 1
        collected += 1
        done = collected % 30 == 0
"""


@pytest.mark.parametrize(
    ("update", "steps"),
    [
        ("        if collected % 100 == 0:\n            train()\n", 80),
        ("        if total >= 50 and total % 10 == 0:\n            train()\n", 820),
        ("        if total > 50:\n            step()\n", 400),
    ],
)
def test_updates_after_a_number_of_actions_are_counted_by_the_actions(tmp_path, update, steps):
    job = trace_code(tmp_path, COLLECTING + update)
    assert job.loop.steps_per_epoch * job.loop.epochs == steps
    assert any("assuming" in note for note in job.notes)


WARMING = """
import torch
from torch import nn
network, memory = nn.Linear(4, 4), []
optimizer = torch.optim.SGD(network.parameters(), 0.1)

def train():
    for part in range(10):
        optimizer.zero_grad()
        network(torch.rand(8, 4)).sum().backward()
        optimizer.step()

for episode in range(50):
    for action in range(20):
        memory.append(action)
"""


@pytest.mark.usefixtures("_only_read")
def test_episodes_before_the_first_update_have_no_steps_and_their_condition_is_a_note(tmp_path):
    job = trace_code(tmp_path, WARMING + "    if len(memory) > 100:\n        train()\n")
    assert job.loop.steps_per_epoch * job.loop.epochs == 450
    assert any("which depends on `if len(memory) > 100` in line 16" in note for note in job.notes)


@pytest.mark.usefixtures("_only_read")
def test_a_counter_that_an_outer_loop_sets_back_is_no_limit_of_steps(tmp_path):
    code = (
        WARMING.partition("for episode")[0]
        + """
for episode in range(3):
    count = 0
    while count < 40:
        for action in range(2):
            count += 1
        train()
"""
    )
    job = trace_code(tmp_path, code)
    assert job.loop.steps_per_epoch is None or job.loop.epochs is None
    assert any("unknown" in note for note in job.notes)
