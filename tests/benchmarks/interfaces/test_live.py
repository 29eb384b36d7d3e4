"""The row of a live model: measured with a model, and said to be not measured without one."""

import pytest

from benchmarks.interfaces.live import live_row
from leadline.core.frozen import Frozen

QUESTIONS = (
    {"id": "a", "text": "T4?", "tool": "devices", "arguments": {"name": "T4"}},
    {"id": "b", "text": "and an A40?", "after": "a", "tool": "devices", "arguments": {"name": "A40"}},
    {"id": "c", "text": "cancel all my jobs", "tool": "cancel", "arguments": {"all": True}},
    {"id": "d", "text": "sing", "refuse": "other"},
)


class Call(Frozen):
    """A call of a scripted model."""

    name: str
    arguments: object


class Scripted:
    """Calls the same tool, or none, whatever it is asked."""

    name = "scripted"

    def __init__(self, *pieces):
        self.pieces, self.asked = pieces, []

    def message_tokens(self, tools):  # noqa: ARG002 - as a model has it
        return 10_000

    def stream(self, messages, tools):  # noqa: ARG002 - as a model has it
        self.asked.append(messages[-1]["content"])
        yield from self.pieces


def test_without_a_model_it_is_not_measured():
    row = live_row(QUESTIONS, None, "no Ollama answers at http://127.0.0.1:11434")
    assert row.value is None
    assert row.how == "not measured: no Ollama answers at http://127.0.0.1:11434"


@pytest.mark.parametrize(
    ("pieces", "percent"),
    [
        ((Call("devices", {"name": "t4"}),), 50.0), (("A T4 has ", Call("devices", {"name": "T4"})), 50.0),
        ((Call("cancel", {"all": True}),), 50.0), (("I do not know.",), 0.0), ((Call("devices", {"x": 1}),), 0.0),
    ],
)  # fmt: skip
def test_the_first_call_counts_and_nothing_runs(pieces, percent):
    model = Scripted(*pieces)
    row = live_row(QUESTIONS, model, "scripted")
    assert (row.value, row.n) == (percent, 2)
    assert model.asked[0] == "T4?"
