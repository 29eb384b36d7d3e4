"""How many questions a language model on a live Ollama server turns into the right call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.interfaces.questions import Judged, Question
from benchmarks.results import BenchmarkRow
from leadline.core.errors import LeadlineError
from leadline.interfaces.chat.conversation import Conversation, Model
from leadline.interfaces.chat.grammar import Refusal
from leadline.interfaces.chat.question import ToolCall
from leadline.interfaces.tools import tools

NAME = "chat with a model on Ollama, held-out: right in tool and arguments"


def live_row(questions: Sequence[Question], model: Model | None, where: str, system_message: str = "") -> BenchmarkRow:
    """Return the share of questions that a model turns into the right call; no value without a model.

    Follow-ups are left out, because a call that is wrong would also make the next wrong.

    Args:
        questions: Questions with the right call each.
        model: The model.
        where: Name and server of the model, or why there is none.
        system_message: What the model is told first.
    """
    if model is None:
        return BenchmarkRow(NAME, None, "%", how=f"not measured: {where}")
    asked = [question for question in questions if "refuse" not in question and "after" not in question]
    right = sum(Judged(question, first_call(question["text"], model, system_message)).right for question in asked)
    return BenchmarkRow(NAME, 100.0 * right / max(len(asked), 1), "%", n=len(asked), how=where)


def first_call(text: str, model: Model, system_message: str = "") -> ToolCall | Refusal:
    """Return the first call that a model makes for a question; no tool runs."""
    calls: list[ToolCall] = []

    def note(tool: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        calls.append(ToolCall(tool, arguments))
        raise LeadlineError("the call is noted, and not run")

    conversation = Conversation(tools(Path()), (), note, lambda *_: True, model, system_message)
    for _ in conversation.ask(text):
        if calls:
            return calls[0]
    return Refusal("the model called no tool")
