"""Keep the messages of a conversation within the context of a language model."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput
from leadline.core.units import pluralize

Message = dict[str, Any]

RESULT_SHARE = 0.5
"""Largest part of the context that the result of one call may take."""
SHORT_TOKENS = 60
"""Length to which an older result is shortened."""
CUT = "\n… (shortened: call the tool again for the rest)"
# Four letters, two ASCII signs, or any other character. Tokenizers need no more tokens than that for English, tables
# and JSON: some have a token for each digit, most have one for a word of five letters.
_TOKEN = re.compile(r"[A-Za-z]{1,4}|[!-/:-@\[-`{-~]{1,2}| {2,16}|[^A-Za-z ]")
_CUT_TOKENS = sum(1 for _ in _TOKEN.finditer(CUT))


def count_tokens(text: str) -> int:
    """Return the estimated number of a model's tokens in a text, rather too many than too few."""
    return sum(1 for _ in _TOKEN.finditer(text))


def shorten(text: str, tokens: int) -> str:
    """Return a text, cut to an estimated number of tokens including the sentence that says so."""
    if count_tokens(text) <= tokens:
        return text
    end = next(islice(_TOKEN.finditer(text), max(tokens - _CUT_TOKENS, 0), None))
    return text[: end.start()] + CUT


class MessageHistory:
    """The messages that a model reads, at most as many as its context holds.

    The rule: the oldest results of tools are shortened first, then the oldest questions are left out with their
    answers, then the newest result is shortened. The system message and the newest question always stay.

    Args:
        system_message: What the model is told first.
        tokens: Estimated tokens that all messages may take.

    Attributes:
        result_tokens: Estimated tokens that the result of one call may take.
    """

    def __init__(self, system_message: str, tokens: int) -> None:
        self._tokens = tokens
        self.result_tokens = int(RESULT_SHARE * tokens)
        self._messages: list[Message] = [{"role": "system", "content": system_message}]
        self._shortened = 0

    def add(self, role: str, content: str, **fields: Any) -> None:  # noqa: ANN401 - as Ollama defines them
        """Append a message; the result of a tool is cut to its share of the context."""
        self._messages.append({"role": role, "content": content, **fields})
        if role == "tool":
            self._shorten(self._messages[-1], self.result_tokens)

    def fit(self) -> tuple[Sequence[Message], str]:
        """Return the messages, and a sentence about what was left out since the last call; empty if nothing was.

        Raises:
            InvalidInput: the system message and the newest question are longer than the context.
        """
        newest = max(at for at, message in enumerate(self._messages) if message["role"] in ("system", "user"))
        last = self._messages[-1]
        for message in self._messages:
            if self._excess() > 0 and message["role"] == "tool" and message is not last:
                self._shorten(message, SHORT_TOKENS)
        left_out = 0
        while self._excess() > 0 and newest > 1:
            end = next(at for at in range(2, newest + 1) if self._messages[at]["role"] == "user")
            del self._messages[1:end]
            newest -= end - 1
            left_out += 1
        if last["role"] == "tool" and (excess := self._excess()) > 0:
            self._shorten(last, max(SHORT_TOKENS, count_tokens(last["content"]) - excess))
        if (excess := self._excess()) > 0:
            raise InvalidInput(
                f"this is about {excess:,} tokens longer than the model reads: shorten the question, or name a model "
                "with a longer context"
            )
        parts = [f"{pluralize(self._shortened, 'result')} shortened"] * (self._shortened > 0)
        parts += [f"{pluralize(left_out, 'older question')} left out"] * (left_out > 0)
        self._shortened = 0
        return self._messages, f"The model cannot read all of this: {', '.join(parts)}." if parts else ""

    def _shorten(self, message: Message, tokens: int) -> None:
        content = shorten(message["content"], tokens)
        self._shortened += content != message["content"]
        message["content"] = content

    def _excess(self) -> int:
        return sum(map(_length, self._messages)) - self._tokens


def _length(message: Message) -> int:
    """Return the estimated tokens of a message, with its calls and its frame."""
    return count_tokens(message["content"]) + count_tokens(to_json(message.get("tool_calls", ()), indent=0)) + 8
