"""Match the names of a checkpoint's modules with the lists of names in its configuration."""

import re
from collections.abc import Sequence

from leadline.core.errors import InvalidInput

LONGEST, MOST_REPEATS = 300, 5  # characters of a pattern, and repetitions in it
_NESTED = re.compile(r"[|*+}].*\)[*+{]")  # a repeated group that repeats within, whose search may never end
_SPELLINGS = (
    (re.compile(r"\b(?:language_model|model|transformer)(?:\\?\.)"), ""),
    (re.compile(r"\b(?:block_sparse_moe|feed_forward|ffn)\b"), "mlp"),
    (re.compile(r"\bmlp(\\?\.)router\b"), r"mlp\1gate"),
    (re.compile(r"\bshared_expert\b"), "shared_experts"),
)
"""Spellings of the same module in different families, and the name here."""


class ModulePatterns:
    """Names of modules: plain ones, which also hold all modules inside, ``*`` for any text, and ``re:`` expressions.

    Raises:
        InvalidInput: An expression is broken, too long, or repeats a repetition.
    """

    def __init__(self, patterns: Sequence[str], reference: str) -> None:
        self.plain: set[str] = set()
        self.expressions: list[re.Pattern[str]] = []
        for pattern in patterns:
            text = _respell(pattern.removeprefix("re:"))
            if not pattern.startswith("re:") and "*" not in pattern:
                self.plain.add(text.strip("."))
                continue
            if not pattern.startswith("re:"):
                text = rf"(?:.*\.)?{re.escape(text.strip('.')).replace(re.escape('*'), '.*')}(?:\.|$)"
            repeats = sum(text.count(sign) for sign in "*+{")
            if len(text) > LONGEST or repeats > MOST_REPEATS or _NESTED.search(text):
                raise InvalidInput(f"{reference}: the module pattern {pattern!r:.80} cannot be searched: simplify it")
            try:
                self.expressions.append(re.compile(text))
            except re.error as error:
                raise InvalidInput(f"{reference}: the module pattern {pattern!r:.80} is broken: {error}") from error

    def match(self, module: str) -> bool:
        """Return whether a module, such as ``layers.3.self_attn.q_proj``, is among the names or inside one of them."""
        parts = module.split(".")
        ends = range(len(parts) + 1)
        if any(".".join(parts[begin:end]) in self.plain for end in ends for begin in range(end)):
            return True
        return any(expression.match(module) for expression in self.expressions)


def _respell(text: str) -> str:
    for spelling, name in _SPELLINGS:
        text = spelling.sub(name, text)
    return text
