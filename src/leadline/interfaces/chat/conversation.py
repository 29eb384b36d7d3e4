"""A conversation: each question becomes calls of tools, by a language model or by the grammar."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from leadline.core.documents import to_json
from leadline.core.errors import LeadlineError
from leadline.core.frozen import Frozen
from leadline.interfaces.chat.grammar import Refusal, understand
from leadline.interfaces.chat.numbers import unfounded_numbers
from leadline.interfaces.chat.question import ToolCall
from leadline.interfaces.tools import Tool

MOST_ROUNDS = 6
"""Rounds of calls for one question; a model that calls on and on is stopped."""
MOST_CALLS = 8
RESULT_CHARACTERS = 12_000
"""Longest result that a model reads; the rest is cut."""


class PartKind(StrEnum):
    """What a part of an answer is."""

    CALL = "call"  # the command line that asks for the same
    RESULT = "result"  # the answer of the tool, as the command prints it
    WORDS = "words"  # of the model
    NOTE = "note"


class Part(Frozen):
    """A part of an answer, in the order in which it came."""

    kind: PartKind
    text: str


class Answering(Protocol):
    """Runs a tool's call as its command does, and returns the text for people."""

    def __call__(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return the command line and what it prints.

        Raises:
            LeadlineError: the command refused; the message says why.
        """


class Model(Protocol):
    """A language model that calls tools."""

    name: str

    def stream(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> Iterator[Any]:
        """Yield words, and calls with ``name`` and ``arguments``.

        Raises:
            LeadlineError: the model ended the answer; the message says why.
        """


class Conversation:
    """Answers one question after the other.

    Args:
        tools: The tools by name.
        systems: Names of the systems in the catalog.
        answering: Runs a call.
        agrees: Asks the user whether a call that changes something may run.
        model: The language model; without one the grammar answers.
        system_message: What the model is told first.
    """

    def __init__(
        self, tools: Mapping[str, Tool], systems: Collection[str], answering: Answering,
        agrees: Callable[[str, Mapping[str, Any]], bool], model: Model | None = None, system_message: str = "",
    ) -> None:  # fmt: skip
        self._tools = tools
        self._systems = systems
        self._answering = answering
        self._agrees = agrees
        self._model = model
        self._before: ToolCall | None = None
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system_message}]
        self.parts: list[tuple[str, list[Part]]] = []

    def ask(self, question: str) -> Iterator[Part]:
        """Yield the parts of the answer to a question; ``parts`` keeps a model's words together."""
        said: list[Part] = []
        self.parts.append((question, said))
        for part in self._by_model(question) if self._model else self._by_grammar(question):
            if said and said[-1].kind is part.kind is PartKind.WORDS:  # a model says one word at a time
                said[-1] = Part(PartKind.WORDS, said[-1].text + part.text)
            else:
                said.append(part)
            yield part

    def to_markdown(self) -> str:
        """Return the conversation as a document."""
        blocks = []
        for question, parts in self.parts:
            blocks.append(f"## {' '.join(question.split())}")
            for part in parts:
                fenced = part.kind in (PartKind.CALL, PartKind.RESULT)
                blocks.append(f"```\n{part.text.replace('```', '` ` `')}\n```" if fenced else part.text)
        return "\n\n".join(blocks) + "\n"

    def _by_grammar(self, question: str) -> Iterator[Part]:
        understood = understand(question, self._before, self._systems)
        if isinstance(understood, Refusal):
            yield Part(PartKind.NOTE, understood.why)
            return
        self._before = understood
        if understood.tool not in self._tools:
            yield Part(PartKind.NOTE, f"{understood.tool} is not allowed here.")
            return
        yield from self._run(understood.tool, understood.arguments)

    def _by_model(self, question: str) -> Iterator[Part]:
        self._messages.append({"role": "user", "content": question})
        results: list[str] = [question]
        calls_left = MOST_CALLS
        for _ in range(MOST_ROUNDS):
            words, calls = "", []
            try:
                for piece in self._model.stream(self._messages, list(self._tools.values())):  # type: ignore[union-attr]
                    if isinstance(piece, str):
                        words += piece
                        yield Part(PartKind.WORDS, piece)
                    else:
                        calls.append(piece)
            except LeadlineError as error:
                yield Part(PartKind.NOTE, str(error))
                return
            self._messages.append({
                "role": "assistant", "content": words,
                "tool_calls": [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in calls],
            })  # fmt: skip
            if not calls:
                yield from self._checked(words, results)
                return
            for call in calls:
                calls_left -= 1
                result = "error: too many calls for one question" if calls_left < 0 else ""
                if not result:
                    result, parts = self._called(call.name, call.arguments)
                    results.append(result)
                    yield from parts
                self._messages.append({"role": "tool", "tool_name": call.name, "content": result[:RESULT_CHARACTERS]})
        yield Part(PartKind.NOTE, f"The model called tools {MOST_ROUNDS} times without an answer, and was stopped.")

    def _called(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, list[Part]]:
        """Return what the model reads of a call, and what the user sees."""
        tool = self._tools.get(name)
        if tool is None:
            return f"error: there is no tool {name[:100]!r}", []
        try:
            checked = tool.check(arguments)
        except LeadlineError as error:
            return f"error: {error}", []
        parts = list(self._run(name, checked))
        refused = next((part.text for part in parts if part.kind is PartKind.NOTE), "")
        if refused:
            return f"error: {refused}", parts
        return next(part.text for part in parts if part.kind is PartKind.RESULT), parts

    def _run(self, name: str, arguments: Mapping[str, Any]) -> Iterator[Part]:
        if self._tools[name].acts and not self._agrees(name, arguments):
            yield Part(
                PartKind.NOTE, f"You did not agree, so nothing was done: {name} {to_json(dict(arguments), indent=0)}"
            )
            return
        try:
            line, text = self._answering(name, arguments)
        except LeadlineError as error:
            yield Part(PartKind.NOTE, str(error))
            return
        yield Part(PartKind.CALL, line)
        yield Part(PartKind.RESULT, text)

    def _checked(self, words: str, results: Sequence[str]) -> Iterator[Part]:
        """Yield a note about numbers in the model's words that no result has."""
        if unfounded := unfounded_numbers(words, results):
            yield Part(PartKind.NOTE, f"No tool said {', '.join(unfounded)}: do not rely on it.")


def without_marks(text: str) -> str:
    """Return a text without the control characters that move a terminal's cursor or change its colors."""
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
