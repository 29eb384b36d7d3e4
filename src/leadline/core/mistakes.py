"""Say what is wrong with a document that does not have the form it should: where, which value, why, what instead."""

import re
from collections.abc import Iterator
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


def explain(message: str, document: object, kind: type[Any], text: str = "") -> str:
    """Return a sentence for msgspec's ``message`` about ``document``, which should have been a ``kind``.

    With the document's ``text`` the sentence begins with the line of the mistake, where it can be told.
    """
    match = _PLACE.fullmatch(message)
    reason, path = (match["reason"], match["path"] or "") if match else (message, "")
    quoted = _QUOTED.findall(reason)
    keys = [step["key"] for step in _STEP.finditer(path) if step["key"]]
    entry = _entry(document, path)
    if reason.startswith("Object contains unknown field"):
        return _at(text, quoted[0]) + f"there is no key {quoted[0]!r}{entry}: {_near(quoted[0], _names(kind))}"
    if reason.startswith("Object missing required field"):
        return f"the key {quoted[0]!r} is missing{entry}: add it"
    value, key = _walk(document, path), keys[-1] if keys else ""
    if reason.startswith("Invalid enum value") and key:
        allowed = [member.value for member in _enum(kind, key)]
        return _at(text, key, value) + f"{key} is {value!r}{entry}: {_near(str(value), allowed)}"
    if reason.startswith("Expected") and key and quoted:
        wanted = " or ".join(_FORMS.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        return _at(text, key, value) + f"{key} is {value!r}{entry}, but it must be {wanted}"
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


def _walk(document: Any, path: str, steps: int | None = None) -> Any:  # noqa: ANN401 - a document holds anything
    """Follow a path as far as it can be followed; a table's unnamed key (``[...]``) ends it."""
    for step in list(_STEP.finditer(path))[:steps]:
        try:
            document = document[step["key"] or int(step["index"])]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return document


def _entry(document: object, path: str) -> str:
    """Return `` in 'gpu'`` for the innermost named entry around a path; nothing where none has a name."""
    for steps in range(len(_STEP.findall(path)), 0, -1):
        inside = _walk(document, path, steps)
        if isinstance(inside, dict) and isinstance(inside.get("name"), str):
            return f" in {inside['name']!r}"
    return ""


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
