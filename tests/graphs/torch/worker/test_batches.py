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
    "made", [lambda x: x, lambda x: [x, "name"], lambda x: {"ids": x}, lambda x: Words(ids=x)],
    ids=["tensor", "list", "dictionary", "words"],
)  # fmt: skip
def test_a_batch_that_was_seen_is_gone_when_the_script_lets_it_go(made):
    held = tokens()
    gone, loader, batches = weakref.ref(held), object(), BatchPlanner()
    batches.record(loader, made(held))
    del held
    assert gone() is None


def test_a_batch_comes_back_as_it_was_whatever_the_script_did_with_it():
    batches, loader = BatchPlanner(), object()
    first = {"ids": torch.arange(40).reshape(4, 10)}
    batches.record(loader, first)
    first.pop("ids").zero_()
    batches.record(loader, {"ids": tokens()})
    assert batches.sizes_differ
    batches.plan_after(2)
    draws = iter([{"ids": tokens()}, {"ids": tokens()}])
    given = [batches.next(draws)["ids"] for _ in range(4)]
    assert [tuple(one.shape) for one in given] == [(3, 4), (3, 4), (4, 10), (4, 10)]
    assert torch.arange(40).tolist() == given[-1].flatten().tolist()
