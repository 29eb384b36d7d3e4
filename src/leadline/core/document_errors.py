"""Say what is wrong with a document that does not have the form it should: where, which value, why, what instead."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, get_args

import msgspec

_PLACE = re.compile(r"(?P<reason>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_QUOTED = re.compile(r"`([^`]*)`")
_FORMS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "datetime": "a date",
}
"""msgspec's name of a type → ours."""
_KINDS = {str: "str", int: "int", float: "float", bool: "bool", list: "array", dict: "object"}
"""Type in a document → msgspec's name of it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A value that a path may lead to, and the innermost name on the way: an entry's own, or a table's key."""

    value: Any
    entry: str = ""

    @property
    def inside(self) -> str:
        return f" in {self.entry!r}" if self.entry else ""


def explain_validation_error(message: str, document: object, kind: type[Any], text: str = "") -> str:
    """Return a sentence for msgspec's ``message`` about ``document``, which should have been a ``kind``.

    With the document's ``text`` the sentence begins with the line of the mistake, where it can be told.
    """
    match = _PLACE.fullmatch(message)
    reason, path = (match["reason"], match["path"] or "") if match else (message, "")
    steps = [(step["key"], step["index"]) for step in _STEP.finditer(path)]
    found, quoted = list(_walk(_Found(document), steps)), _QUOTED.findall(reason)
    key = next((name for name, _ in reversed(steps) if name), "")
    if reason.startswith("Object contains unknown field"):
        at = _first(found, lambda value: isinstance(value, dict) and quoted[0] in value)
        return f"{_at(text, quoted[0])}there is no key {quoted[0]!r}{at.inside}: {_near(quoted[0], _names(kind))}"
    if reason.startswith("Object missing required field"):
        at = _first(found, lambda value: isinstance(value, dict) and quoted[0] not in value)
        return f"the key {quoted[0]!r} is missing{at.inside}: add it"
    if reason.startswith("Invalid enum value") and key:
        allowed = [member.value for member in _enum(kind, key)]
        at = _first(found, lambda value: value not in allowed)
        return f"{_at(text, key, at.value)}{key} is {at.value!r}{at.inside}: {_near(str(at.value), allowed)}"
    if reason.startswith("Expected") and key and len(quoted) > 1:
        wanted = " or ".join(_FORMS.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        at = _first(found, lambda value: _KINDS.get(type(value)) == quoted[1])
        if steps[-1] == (None, None):  # the table's own key is what is wrong
            key, at = at.entry, _Found(at.value)
        return f"{_at(text, key, at.value)}{key} is {at.value!r}{at.inside}, but it must be {wanted}"
    return f"{reason} at {path.lstrip('.')}" if path else reason


def _near(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are {', '.join(known)}"


def _at(text: str, key: str, value: object = None) -> str:
    """Return ``line 3: `` for the only line that gives ``key`` (that value); nothing where there are several."""
    said = re.compile(rf"(?:^|[{{,.\[])\s*\"?{re.escape(key)}\"?\s*(?:=|\]|:)")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if said.search(line)]
    if len(lines) > 1 and value is not None:
        lines = [(number, line) for number, line in lines if str(value) in line]
    return f"line {lines[0][0]}: " if len(lines) == 1 else ""


def _walk(at: _Found, steps: list[tuple[str | None, str | None]]) -> Iterator[_Found]:
    """Yield what a path may lead to: msgspec does not say under which key of a table (``[...]``), so under each."""
    if isinstance(at.value, dict) and isinstance(at.value.get("name"), str):
        at = _Found(at.value, at.value["name"])
    if not steps:
        yield at
        return
    (key, index), rest = steps[0], steps[1:]
    if key is None and index is None and isinstance(at.value, dict):
        for name, value in at.value.items():
            yield from _walk(_Found(value, name), rest)
    elif key is not None and isinstance(at.value, dict) and key in at.value:
        yield from _walk(_Found(at.value[key], at.entry), rest)
    elif index is not None and isinstance(at.value, list) and int(index) < len(at.value):
        yield from _walk(_Found(at.value[int(index)], at.entry), rest)


def _first(found: list[_Found], wrong: Callable[[Any], bool]) -> _Found:
    """Return the first value that is wrong, else an empty one."""
    return next((one for one in found if wrong(one.value)), _Found(None))


def _structs(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - a type, or a union of them
    """Yield a struct and those within it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from _structs(field.type)
    for inside in get_args(kind):
        yield from _structs(inside)


def _names(kind: type[Any]) -> list[str]:
    return list(dict.fromkeys(field.name for one in _structs(kind) for field in msgspec.structs.fields(one)))


def _enum(kind: type[Any], key: str) -> list[Any]:
    """Return the members that a field of that name may have."""
    types = [field.type for one in _structs(kind) for field in msgspec.structs.fields(one) if field.name == key]
    found = [
        one for each in types for one in (each, *get_args(each)) if isinstance(one, type) and issubclass(one, Enum)
    ]
    return list(found[0]) if found else []
