"""What questions look like: the patterns of ``cues.toml`` and the words of ``words.toml``."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_REFERENCE = re.compile(r"(?<!P)<([a-z]+(?:-[a-z]+)*)>")


def says(cue: str, text: str) -> bool:
    """Tell whether a text matches an alternative of a cue."""
    return pattern(cue).search(text) is not None


@cache
def pattern(cue: str) -> re.Pattern[str]:
    """Return all alternatives of a cue as one pattern."""
    return _compiled("|".join(_file("cues")[cue]))


@cache
def alternatives(cue: str) -> tuple[re.Pattern[str], ...]:
    """Return the alternatives of a cue one by one."""
    return tuple(_compiled(text) for text in _file("cues")[cue])


@cache
def by_value(table: str, row: str = "") -> Mapping[str, tuple[re.Pattern[str], ...]]:
    """Return the alternatives of each value of a table, or of a table in it."""
    rows = _file("cues")[table][row] if row else _file("cues")[table]
    return {value: tuple(_compiled(text) for text in texts) for value, texts in rows.items()}


def options() -> tuple[str, ...]:
    """Return the options of a workload in the order in which they are read."""
    return tuple(_file("cues")["options"])


def table(name: str) -> Mapping[str, str]:
    """Return a table of words."""
    rows: Mapping[str, str] = _file("words")[name]
    return rows


@cache
def words(name: str) -> frozenset[str]:
    """Return a list of words."""
    return frozenset(_file("words")[name])


@cache
def _file(name: str) -> Mapping[str, Any]:
    text = files("leadline.interfaces.chat").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(_expanded(text), re.IGNORECASE)


def _expanded(text: str) -> str:
    """Return a pattern with the alternatives of the cues that it names."""
    return _REFERENCE.sub(lambda match: f"(?:{_expanded('|'.join(_file('cues')[match[1]]))})", text)
