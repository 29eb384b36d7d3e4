"""A script whose course the values of tensors decide is traced again with values, which the CPU calculates."""

from pathlib import Path

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import TracedJob
from leadline.graphs.torch.trace import VALUES_NOTE
from tests.support.traced_script import trace_code

BEGINNING = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(64, 8, device="cuda")

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def shapes_of(job: TracedJob, kind: str) -> list[tuple[int, ...]]:
    return [spec.shape for op in job.step.ops if op.name == kind for spec in op.outputs]


def test_parts_as_long_as_the_counts_of_experts(tmp_path: Path) -> None:
    experts = """
for _ in range(6):
    gates = model(x).argmax(1)
    counts = torch.zeros(4, dtype=torch.long, device="cuda").scatter_add_(0, gates, torch.ones_like(gates)).tolist()
    parts = x[gates.argsort()].split(counts)
    assert sum(map(len, parts)) == 64 and len(set(counts)) > 1
    step(torch.cat([model(part) for part in parts]).mean())
"""
    job = trace_code(tmp_path, BEGINNING + experts)
    assert VALUES_NOTE in job.notes
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (6, 1)


def test_what_a_mask_selects_is_counted_not_assumed(tmp_path: Path) -> None:
    mask = """
model = nn.Linear(8, 4).cuda()
for _ in range(6):
    chosen = x[x[:, 0] > x[:, 0].sort().values[-10]]
    assert chosen.shape == (9, 8), chosen.shape
    step(model(chosen).mean())
"""
    job = trace_code(tmp_path, BEGINNING + mask)
    assert VALUES_NOTE in job.notes
    assert not any("assumed" in note for note in job.notes)
    assert (9, 4) in [op.outputs[0].shape for op in job.step.ops if op.outputs]


LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.attention = nn.TransformerEncoderLayer(4, 2, batch_first=True)
        self.lstm, self.gru = nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
        self.table = nn.Embedding(8, 4)
    def forward(self, image, words):
        words = self.attention(self.table(words))
        words = self.gru(self.lstm(words)[0])[0]
        return self.image(image).mean(1) + words.mean((1, 2))
net = Net().cuda()
optimizer = torch.optim.AdamW([*net.parameters(), *model.parameters()], 0.1)
losses = []
with torch.no_grad():
    model.weight[1:].copy_(model.weight[:1].expand(3, -1))
assert len(model.weight.cpu().unique(dim=0)) == 1
for i in range(6):
    out = net(torch.randn(16, 1, 10, 10, device="cuda"), torch.randint(8, (16, 5), device="cuda"))
    loss = out.square().mean() + model(x).square().mean()
    step(loss)
    losses.append(loss.item())
    if not 0 < losses[-1] < 1e6 or len(set(losses)) <= i:
        raise ValueError(losses)
"""


def test_layers_have_values_in_both_directions(tmp_path: Path) -> None:
    job = trace_code(tmp_path, BEGINNING + LAYERS)
    assert VALUES_NOTE in job.notes
    plain = "".join(line for line in LAYERS.splitlines(keepends=True) if "assert" not in line and "raise" not in line)
    plain = plain.replace("    if not 0 < losses[-1] < 1e6 or len(set(losses)) <= i:\n", "")
    without = trace_code(tmp_path, BEGINNING + plain)
    assert VALUES_NOTE not in without.notes
    assert job.step.ops == without.step.ops


def test_an_error_of_the_script_is_told_once(tmp_path: Path) -> None:
    code = (
        BEGINNING + "for _ in range(6):\n    step(model(x).mean())\n    model(x).sum().item(); raise ValueError('no')\n"
    )
    with pytest.raises(Untraceable, match="ValueError: no; the trace stopped here"):
        trace_code(tmp_path, code)


def test_reading_a_loss_needs_no_values(tmp_path: Path) -> None:
    job = trace_code(
        tmp_path, BEGINNING + "for _ in range(6):\n    loss = model(x).mean()\n    step(loss)\n    print(loss.item())\n"
    )
    assert VALUES_NOTE not in job.notes


def test_a_large_model_gets_no_values(tmp_path: Path) -> None:
    large = """
model = nn.Linear(8, 80_000_000).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    step(model(x[x[:, 0] > 0]).mean())
"""
    job = trace_code(tmp_path, BEGINNING + large)
    assert VALUES_NOTE not in job.notes
    assert any("all was assumed" in note for note in job.notes)
