"""The batch of a script without a loader is that of its model's inputs, however the script passes them."""

from pathlib import Path

import pytest

from tests.support.traced_script import trace_code

SCRIPT = """
import numpy as np
import torch

class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.tags = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 5)
        {layer}

    def forward(self, tokens, scale=1.0):
        return self.tags(self.words(torch.as_tensor(tokens).cuda())) * scale

model, loss = Tagger().cuda(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(20):
    tokens = np.random.randint(0, 50, (6, 7))
    logits = {call}
    optimizer.zero_grad()
    loss(logits.reshape(-1, 5), torch.zeros(42, dtype=torch.long).cuda()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "layer", "batch"),
    [
        ("model(tokens)", "", 6),
        ("model(tokens=torch.from_numpy(tokens))", "", 6),
        ("model(scale=2.0, tokens=torch.from_numpy(tokens))", "", 6),
        ("model(tokens=torch.from_numpy(tokens))", "self.rnn = torch.nn.GRU(8, 8)", 7),
    ],
    ids=["array", "keyword", "keywords", "sequence first"],
)
def test_inputs_that_are_no_positional_tensors_give_the_batch(
    tmp_path: Path, call: str, layer: str, batch: int
) -> None:
    job = trace_code(tmp_path, SCRIPT.format(call=call, layer=layer))
    assert job.loop.batch == batch
    assert any(f"batch {batch} is read from the input of Tagger" in note for note in job.notes)


SWAPPED = """
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.attend = torch.nn.Embedding(50, 8), torch.nn.MultiheadAttention(8, 2)

    def forward(self, tokens):
        x = self.words(tokens).transpose(0, 1)
        return self.attend(x, x, x)[0]

model = Encoder().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(20):
    optimizer.zero_grad()
    model(torch.randint(0, 50, (6, 7)).cuda()).sum().backward()
    optimizer.step()
"""


def test_a_model_that_swaps_the_axes_before_its_attention_takes_the_batch_first(tmp_path: Path) -> None:
    assert trace_code(tmp_path, SWAPPED).loop.batch == 6
