"""Questions of users with the call that each should become, and how many the chat without a model understands.

The sets were written by different people. The grammar was written with the development sets in view; only the held-out
sets are reported with targets, and nobody who worked on the grammar read them.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.results import BenchmarkRow, at_least
from leadline.app.composition import user_catalog
from leadline.interfaces.chat.grammar import Refusal, understand
from leadline.interfaces.chat.intent import Learned
from leadline.interfaces.chat.question import ToolCall

FOLDER = Path(__file__).with_name("questions")
UNDERSTOOD_PERCENT, REFUSED_PERCENT = 90.0, 98.0

Question = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """A question and what the chat made of it."""

    question: Question
    understood: ToolCall | Refusal

    @property
    def right(self) -> bool:
        """True if the tool and all arguments are right, or the question was rightly refused."""
        if "refuse" in self.question:
            return isinstance(self.understood, Refusal)
        return (
            isinstance(self.understood, ToolCall)
            and self.understood.tool == self.question["tool"]
            and comparable(self.understood.arguments) == comparable(self.question.get("arguments", {}))
        )


def comparable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which the case of names of places and things does not count."""
    return {
        name: [one.casefold() for one in value] if name == "on" else value.casefold() if name == "name" else value
        for name, value in arguments.items()
    }


def call_before(
    question: Question, by_id: Mapping[str, Question], understood: Mapping[str, ToolCall] = MappingProxyType({})
) -> ToolCall | None:
    """Return the right call of the question that a follow-up comes after; ``understood`` has what else was noted."""
    before = by_id.get(question.get("after", ""), {})
    if "tool" not in before:
        return None
    noted = understood.get(before["id"], ToolCall("", {}))
    return replace(noted, tool=before["tool"], arguments=before.get("arguments", {}))


def sets_of(kind: str) -> list[list[Question]]:
    """Return the questions of each set of a kind, ``held-out`` or ``development``."""
    files = sorted(FOLDER.glob(f"{kind}-*.toml"))
    return [tomllib.loads(file.read_text(encoding="utf-8"))["question"] for file in files]


def questions_of(kind: str) -> list[Question]:
    """Return the questions of all sets of a kind."""
    return [question for questions in sets_of(kind) for question in questions]


def judge(questions: Sequence[Question], systems: Sequence[str], model: Learned | None = None) -> list[Judged]:
    """Ask all questions; a follow-up comes after the right call of the question before it."""
    by_id = {question["id"]: question for question in questions}
    judged: list[Judged] = []
    calls: dict[str, ToolCall] = {}
    for question in questions:
        call = call_before(question, by_id, calls)
        understood = understand(question["text"], call, systems, model)
        if isinstance(understood, ToolCall):
            calls[question["id"]] = understood
        judged.append(Judged(question, understood))
    return judged


def rows() -> list[BenchmarkRow]:
    """Return the shares of questions understood and rightly refused, on the held-out and the development sets."""
    systems = [system.name for system in user_catalog().systems()]
    measured = []
    for kind in ("held-out", "development"):
        judged = [one for questions in sets_of(kind) for one in judge(questions, systems)]
        asked = [one for one in judged if "refuse" not in one.question]
        rest = [one for one in judged if "refuse" in one.question]
        held_out = kind == "held-out"
        measured += [
            _row(
                f"chat without a model, {kind}: right in tool and arguments",
                asked,
                UNDERSTOOD_PERCENT if held_out else None,
            ),
            _row(f"chat without a model, {kind}: others refused", rest, REFUSED_PERCENT if held_out else None),
        ]
    return measured


def _row(name: str, judged: Sequence[Judged], target: float | None) -> BenchmarkRow:
    share = 100.0 * sum(one.right for one in judged) / max(len(judged), 1)
    how = (
        f"{len({one.question.get('intent') for one in judged})} intents"
        if "refuse" not in judged[0].question
        else _kinds(judged)
    )
    if target is None:
        return BenchmarkRow(name, share, "%", n=len(judged), how=how)
    return at_least(name, share, target, "%", n=len(judged), how=how)


def _kinds(judged: Iterable[Judged]) -> str:
    kinds = [one.question["refuse"] for one in judged]
    return ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
