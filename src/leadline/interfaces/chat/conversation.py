"""A conversation: each question becomes calls of tools, by a language model or by the grammar."""

import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.frozen import Frozen
from leadline.interfaces.chat.command_line import shown_command
from leadline.interfaces.chat.context import Message, MessageHistory, shorten
from leadline.interfaces.chat.grammar import Refusal, understand
from leadline.interfaces.chat.numbers import unfounded_numbers
from leadline.interfaces.chat.question import ToolCall
from leadline.interfaces.tools import Tool

MOST_ROUNDS = 6
"""Rounds of calls for one question; a model that calls on and on is stopped."""
MOST_CALLS = 8
"""Calls for one question."""


class PartKind(StrEnum):
    """Kind of a part of an answer."""

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

    def message_tokens(self, tools: Sequence[Tool]) -> int:
        """Return the tokens of the context that are left for messages beside the tools and the answer."""

    def stream(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[Any]:
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
        tokens = model.message_tokens(list(tools.values())) if model else 0
        self._history = MessageHistory(system_message, tokens)
        self._sources: list[str] = []
        self.parts: list[tuple[str, list[Part]]] = []

    def ask(self, question: str) -> Iterator[Part]:
        """Yield the parts of the answer to a question; ``parts`` keeps a model's words together."""
        kept: list[Part] = []
        self.parts.append((question, kept))
        for part in self._by_model(question, self._model) if self._model else self._by_grammar(question):
            if kept and kept[-1].kind is part.kind is PartKind.WORDS:  # a model says one word at a time
                kept[-1] = Part(PartKind.WORDS, kept[-1].text + part.text)
            else:
                kept.append(part)
            yield part

    def to_markdown(self) -> str:
        """Return the conversation as a document."""
        blocks = []
        for question, parts in self.parts:
            blocks.append(f"## {' '.join(question.split())}")
            for part in parts:
                fenced = part.kind in (PartKind.CALL, PartKind.RESULT)
                blocks.append(f"```\n{part.text.replace('```', '` ` `')}\n```" if fenced else part.text)
        return without_marks("\n\n".join(blocks)) + "\n"

    def _by_grammar(self, question: str) -> Iterator[Part]:
        understood = understand(question, self._before, self._systems)
        if isinstance(understood, Refusal):
            yield Part(PartKind.NOTE, understood.why)
            return
        self._before = understood
        name, arguments = understood.tool, understood.arguments
        if name not in self._tools:
            yield Part(PartKind.NOTE, f"{name} is not allowed here: type {shown_command(name, arguments)}")
            return
        yield from self._run(name, arguments)

    def _by_model(self, question: str, model: Model) -> Iterator[Part]:
        self._history.add("user", question)
        self._sources.append(question)
        words: list[str] = []
        for part in self._rounds(model):
            if part.kind is PartKind.WORDS:
                words.append(part.text)
            yield part
        if unfounded := unfounded_numbers("".join(words), self._sources):
            yield Part(PartKind.NOTE, f"No tool said {', '.join(unfounded)}: do not rely on it.")

    def _rounds(self, model: Model) -> Iterator[Part]:
        """Let the model call tools until it answers, and yield the parts."""
        calls_left = MOST_CALLS
        for _ in range(MOST_ROUNDS):
            try:
                calls = yield from self._round(model)
            except LeadlineError as error:
                yield Part(PartKind.NOTE, str(error))
                return
            if not calls:
                return
            for call in calls:
                calls_left -= 1
                if calls_left < 0:
                    result = f"error: more than {MOST_CALLS} calls for one question"
                else:
                    result = yield from self._called(call.name, call.arguments)
                self._history.add("tool", result, tool_name=call.name)
        yield Part(PartKind.NOTE, f"The model called tools {MOST_ROUNDS} times without an answer, and was stopped.")

    def _round(self, model: Model) -> Generator[Part, None, list[Any]]:
        """Let the model read and write once, yield its words, and return its calls; ``LeadlineError`` as it raises."""
        messages, left_out = self._history.fit()
        if left_out:
            yield Part(PartKind.NOTE, left_out)
        words, calls = "", []
        try:
            for piece in model.stream(messages, list(self._tools.values())):
                if isinstance(piece, str):
                    words += piece
                    yield Part(PartKind.WORDS, piece)
                else:
                    calls.append(piece)
        except LeadlineError:
            self._history.add("assistant", words)
            raise
        tool_calls = [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in calls]
        self._history.add("assistant", words, tool_calls=tool_calls)
        return calls

    def _called(self, name: str, arguments: Mapping[str, Any]) -> Generator[Part, None, str]:
        """Check and run a call of the model, yield its parts, and return what the model reads of it."""
        try:
            if name not in self._tools:
                raise InvalidInput(f"there is no tool {name[:100]!r}")
            checked = self._tools[name].check(arguments)
        except LeadlineError as error:
            yield Part(PartKind.NOTE, f"A call of the model was refused: {error}")
            return f"error: {error}"
        parts = []
        for part in self._run(name, checked):
            parts.append(part)
            yield part
        self._sources.append(shorten(parts[-1].text, self._history.result_tokens))
        return f"error: {parts[-1].text}" if parts[-1].kind is PartKind.NOTE else parts[-1].text

    def _run(self, name: str, arguments: Mapping[str, Any]) -> Iterator[Part]:
        """Yield the command line and its result, or a note that says why nothing ran."""
        if self._tools[name].acts and not self._agrees(name, arguments):
            yield Part(PartKind.NOTE, f"You did not agree, so nothing was done: {shown_command(name, arguments)}")
            return
        try:
            line, text = self._answering(name, arguments)
        except LeadlineError as error:
            yield Part(PartKind.NOTE, str(error))
            return
        yield Part(PartKind.CALL, line)
        yield Part(PartKind.RESULT, text)


def without_marks(text: str) -> str:
    """Return a text without the control characters that move a terminal's cursor or change its colors."""
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
