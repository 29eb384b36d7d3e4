"""The errors that Leadline raises on purpose, with the exit code of the command.

LeadlineError                 1   base class; the message says what to do
├── InvalidInput              2   a value from the user is not usable
│   ├── MissingExtra          2   an optional part of Leadline is not installed
│   └── UnknownName           2   no such device, system, partition, model or run
│       └── AmbiguousName     2   the name fits several of them
├── Untraceable               1   the user's model or script cannot be traced
├── NothingFits               3   no candidate satisfies the limits
├── SchedulerUnreachable      4   the scheduler did not answer
└── JobFailed                 5   the job failed

A message is one sentence with the value, the reason and the fix.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

Choice = TypeVar("Choice", bound=StrEnum)

EXCERPT = 60
"""Characters of a long value that a message shows."""
LONGEST_VALUE, LONGEST_MESSAGE = 200, 2000
"""A longer value in a message is shown as an excerpt, and a longer message loses its middle."""

_LONG_VALUE = re.compile(
    rf"""(?<!\w)(?:'[^'\n]{{{LONGEST_VALUE},}}'|"[^"\n]{{{LONGEST_VALUE},}}")|\S{{{LONGEST_VALUE},}}"""
)


def excerpt(text: str, most: int = EXCERPT) -> str:
    """Return a text of at most ``most`` characters without control characters: its beginning and its end."""
    if len(text) > most:
        tail = most // 3
        text = f"{text[: most - tail - 1]}…{text[-tail:]}"
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def _as_message(text: str) -> str:
    """Return a message without control characters, with excerpts of the long values that input has put into it."""
    if len(text) < LONGEST_VALUE and text.isprintable():
        return text
    if len(text) > LONGEST_VALUE:
        text = _LONG_VALUE.sub(lambda match: excerpt(match[0]), text)
    if len(text) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        text = f"{text[:half]} … {text[-half:]}"
    return "\n".join(excerpt(line, len(line)) for line in text.split("\n"))


class LeadlineError(Exception):
    """Base class of errors that a user can act on; long values in the message are cut."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(_as_message(message))


class InvalidInput(LeadlineError):
    """A value from the user is not usable."""

    exit_code = 2


class MissingExtra(InvalidInput):
    """A command needs an optional part of Leadline that is not installed."""

    def __init__(self, command: str, extra: str) -> None:
        super().__init__(
            f"{command} needs the [{extra}] extra, which is not installed: pip install 'leadline[{extra}]'"
        )


class UnknownName(InvalidInput):
    """No such device, system, partition, model or run; suggests the closest names, or gives the ``hint``."""

    def __init__(self, kind: str, name: str, candidates: Iterable[str], *, fix: str = "", hint: str = "") -> None:
        self.hint = hint
        # The candidates are usually few; beyond a dozen a full list would bury the message.
        names = sorted(set(candidates))
        folded = {candidate.casefold(): candidate for candidate in names}
        close = [folded[match] for match in get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
        if close and not hint:
            hint = f"did you mean {' or '.join(repr(match) for match in close)}?"
        hint = hint or fix or f"known are {', '.join(names[:12])}{' …' if len(names) > 12 else ''}"
        super().__init__(f"unknown {kind} {name!r}: {hint}")


class AmbiguousName(UnknownName):
    """A name that fits several devices, systems or partitions."""

    def __init__(self, kind: str, name: str, candidates: Iterable[str]) -> None:
        self.hint, names = "", list(dict.fromkeys(candidates))
        listed = " or ".join([*map(repr, names[:6]), *(["another"] if len(names) > 6 else [])])
        InvalidInput.__init__(self, f"ambiguous {kind} {name!r}: write {listed}")


def choose(kind: str, name: str, choices: type[Choice]) -> Choice:
    """Return the member of an enumeration with that value; ``UnknownName`` if there is none."""
    by_value = {choice.value: choice for choice in choices}
    if name not in by_value:
        raise UnknownName(kind, name, by_value)
    return by_value[name]


class Untraceable(LeadlineError):
    """The user's model or script cannot be traced; ``location`` is the ``file:line`` where it stopped, if known.

    ``note`` says what harm the script may have done before it stopped, and ``retry`` how a trace may work.
    """

    def __init__(self, reason: str, location: str | None = None, *, note: str = "", retry: str | None = None) -> None:
        super().__init__("; ".join(filter(None, (f"{location}: {reason}" if location else reason, note))))
        self.reason, self.location, self.note, self.retry = reason, location, note, retry


class NothingFits(LeadlineError):
    """No candidate satisfies the user's limits."""

    exit_code = 3


class SchedulerUnreachable(LeadlineError):
    """The scheduler did not answer within its time limit."""

    exit_code = 4


class JobFailed(LeadlineError):
    """The job ran and failed."""

    exit_code = 5
