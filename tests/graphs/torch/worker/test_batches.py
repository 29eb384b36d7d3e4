"""What is kept of a script's batches is no part of what the script holds."""

import weakref
from collections import UserDict

import pytest

torch = pytest.importorskip("torch")

from leadline.graphs.torch.worker.batches import BatchPlanner  # noqa: E402 - needs torch


class Words(UserDict):
    """A mapping with its values in ``data``, as tokenizers give them."""


def tokens():
    return torch.arange(12).reshape(3, 4)


@pytest.mark.parametrize(
    "make_batch", [lambda x: x, lambda x: [x, "name"], lambda x: {"ids": x}, lambda x: Words(ids=x)],
    ids=["tensor", "list", "dictionary", "words"],
)  # fmt: skip
def test_a_recorded_batch_is_freed_when_the_script_drops_it(make_batch):
    batch = tokens()
    gone, loader, batches = weakref.ref(batch), object(), BatchPlanner()
    batches.record(loader, make_batch(batch))
    del batch
    assert gone() is None


def test_a_planned_batch_is_unchanged_by_the_script():
    batches, loader = BatchPlanner(), object()
    first = {"ids": torch.arange(40).reshape(4, 10)}
    batches.record(loader, first)
    first.pop("ids").zero_()
    batches.record(loader, {"ids": tokens()})
    assert batches.sizes_differ
    batches.plan_after(2)
    draws = iter([{"ids": tokens()}, {"ids": tokens()}])
    planned = [batches.next(draws)["ids"] for _ in range(4)]
    assert [tuple(batch.shape) for batch in planned] == [(3, 4), (3, 4), (4, 10), (4, 10)]
    assert torch.arange(40).tolist() == planned[-1].flatten().tolist()
