"""The batch of a script without a loader is that of its model's inputs, however the script passes them."""

from pathlib import Path

import pytest

from leadline.core.graph import OpKind
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


@pytest.mark.parametrize("sample", ["Graph(5 + n)", "'a' * (5 + n)", "{'features': torch.rand(5 + n, 4)}"])
def test_a_list_of_objects_is_as_many_samples(tmp_path: Path, sample: str) -> None:
    code = f"""
    import torch

    class Graph:
        def __init__(self, nodes):
            self.features = torch.rand(nodes, 4)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, samples):
            return self.layer(torch.rand(20 + len(samples), 4))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(9):
        model([{sample} for n in range(6)]).sum().backward()
        optimizer.step()
    """
    assert trace_code(tmp_path, code).loop.batch == 6


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("Named()", "({'a': torch.rand(6, 4), 'b': torch.rand(6, 4)}, {'y': torch.rand(6, 1)})"),
        ("Folding()", "torch.rand(6, 4)"),
    ],
)
def test_named_inputs_and_rows_that_a_model_folds_itself_are_no_samples(
    tmp_path: Path, model: str, inputs: str
) -> None:
    code = f"""
    import torch

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, both):
            return self.layer(both[0]["a"] + both[0]["b"]) - both[1]["y"]

    class Folding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = torch.nn.GRU(4, 1)

        def forward(self, rows):
            return self.rnn(rows.view(2, 3, 4))[0]

    model = {model}.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(9):
        model(torch.utils._pytree.tree_map(lambda x: x.cuda(), {inputs})).sum().backward()
        optimizer.step()
        print(torch.cuda.memory_stats()["reserved_bytes.all.allocated"])
    """
    assert trace_code(tmp_path, code).loop.batch == 6


def test_a_step_has_a_full_batch_where_an_epoch_ends_with_a_smaller_one(tmp_path: Path) -> None:
    code = """
    import torch
    data = torch.utils.data.TensorDataset(torch.rand(80, 64), torch.rand(80, 1))
    loader = torch.utils.data.DataLoader(data, 32)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(4):
        for x, y in loader:
            (model(x) - y).square().mean().backward()
            optimizer.step()
    """
    job = trace_code(tmp_path, code)
    assert sum(op.flops for op in job.step.ops if op.kind is OpKind.GEMM) == 2 * 2 * 32 * 64


def test_a_batch_whose_keys_are_a_property_is_one_object(tmp_path: Path) -> None:
    code = """
    import torch

    class Graph:
        keys = property(lambda self: ["x"])

        def __init__(self, x):
            self.x = x

        def __getitem__(self, name):
            return getattr(self, name)

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    graphs = [Graph(torch.rand(1, 3)) for _ in range(12)]
    collate = lambda some: Graph(torch.cat([graph["x"] for graph in some]))
    for epoch in range(4):
        for batch in torch.utils.data.DataLoader(graphs, 4, collate_fn=collate):
            model(batch["x"]).sum().backward()
            optimizer.step()
    """
    job = trace_code(tmp_path, code)
    assert (job.loop.batch, job.step.parameters) == (4, 4)


def test_a_step_on_a_small_batch_is_not_kept_if_the_next_one_was_fetched_before(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8], [9, 10, 11, 12], [13, 14, 15, 16]]
        loader = DataLoader(TensorDataset(torch.randn(17, 8)), batch_sampler=rows)

        def ahead(batches):
            batches = iter(batches)
            current = next(batches)
            for following in batches:
                yield current
                current = following
            yield current

        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(3):
            for (x,) in ahead(loader):
                model(x.cuda()).sum().backward()
                optimizer.step()
        """,
    )
    assert job.loop.batch == 4
    assert max(op.flops for op in job.step.ops) == 2 * 4 * 8 * 8
