"""Messages for invalid documents: the place, the value, the reason and the fix."""

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from enum import Enum
from typing import Any, get_args

import msgspec

from leadline.core.frozen import Frozen

_MESSAGE = re.compile(r"(?P<reason>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
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
"""msgspec's name of a type → the name in messages."""
_KINDS = {str: "str", int: "int", float: "float", bool: "bool", list: "array", dict: "object"}
"""Python type → msgspec's name of it."""


class _Place(Frozen):
    """A value that a path may lead to, and the name of the innermost entry on the way."""

    value: Any
    entry: str = ""

    @property
    def inside(self) -> str:
        return f" in {self.entry!r}" if self.entry else ""


def explain_validation_error(message: str, document: object, kind: type[Any], text: str = "") -> str:
    """Turn msgspec's ``message`` about ``document``, which is no valid ``kind``, into a sentence for the user.

    The sentence starts with the line of the mistake if exactly one line of ``text`` matches.
    """
    match = _MESSAGE.fullmatch(message)
    reason, path = (match["reason"], match["path"] or "") if match else (message, "")
    steps = [(step["key"], step["index"]) for step in _STEP.finditer(path)]
    places, quoted = list(_walk(_Place(document), steps)), _QUOTED.findall(reason)
    key = next((name for name, _ in reversed(steps) if name), "")
    if reason.startswith("Object contains unknown field"):
        place = _first_wrong(places, lambda value: isinstance(value, dict) and quoted[0] in value)
        hint = _suggest(quoted[0], _field_names(kind))
        return f"{_line_prefix(text, quoted[0])}there is no key {quoted[0]!r}{place.inside}: {hint}"
    if reason.startswith("Object missing required field"):
        place = _first_wrong(places, lambda value: isinstance(value, dict) and quoted[0] not in value)
        return f"the key {quoted[0]!r} is missing{place.inside}: add it"
    if reason.startswith("Invalid enum value") and key:
        allowed = [member.value for member in _enum_members(kind, key)]
        place = _first_wrong(places, lambda value: value not in allowed)
        hint = _suggest(str(place.value), allowed)
        return f"{_line_prefix(text, key, place.value)}{key} is {place.value!r}{place.inside}: {hint}"
    if reason.startswith("Expected") and key and len(quoted) > 1:
        expected = " or ".join(_FORMS.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        place = _first_wrong(places, lambda value: _KINDS.get(type(value)) == quoted[1])
        if steps[-1] == (None, None):  # the error is in the table's key
            key, place = place.entry, _Place(place.value)
        return (
            f"{_line_prefix(text, key, place.value)}{key} is {place.value!r}{place.inside}, but it must be {expected}"
        )
    return f"{reason} at {path.lstrip('.')}" if path else reason


def _suggest(name: str, candidates: list[str]) -> str:
    close = get_close_matches(name, candidates, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are {', '.join(candidates)}"


def _line_prefix(text: str, key: str, value: object = None) -> str:
    """Return ``line 3: `` if exactly one line assigns ``key`` (that value), else an empty string."""
    assignment = re.compile(rf"(?:^|[{{,.\[])\s*\"?{re.escape(key)}\"?\s*(?:=|\]|:)")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if assignment.search(line)]
    # Several tables may assign the same key; a guess at the line would send the user to the wrong one.
    if len(lines) > 1 and value is not None:
        lines = [(number, line) for number, line in lines if str(value) in line]
    return f"line {lines[0][0]}: " if len(lines) == 1 else ""


def _walk(place: _Place, steps: list[tuple[str | None, str | None]]) -> Iterator[_Place]:
    """Yield each value that a path may lead to; msgspec writes ``[...]`` for any key of a table."""
    if isinstance(place.value, dict) and isinstance(place.value.get("name"), str):
        place = _Place(place.value, place.value["name"])
    if not steps:
        yield place
        return
    (key, index), remaining = steps[0], steps[1:]
    if key is None and index is None and isinstance(place.value, dict):
        for name, value in place.value.items():
            yield from _walk(_Place(value, name), remaining)
    elif key is not None and isinstance(place.value, dict) and key in place.value:
        yield from _walk(_Place(place.value[key], place.entry), remaining)
    elif index is not None and isinstance(place.value, list) and int(index) < len(place.value):
        yield from _walk(_Place(place.value[int(index)], place.entry), remaining)


def _first_wrong(places: list[_Place], is_wrong: Callable[[Any], bool]) -> _Place:
    return next((place for place in places if is_wrong(place.value)), _Place(None))


def _structs(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - a type, or a union of them
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from _structs(field.type)
    for inside in get_args(kind):
        yield from _structs(inside)


def _field_names(kind: type[Any]) -> list[str]:
    return list(dict.fromkeys(field.name for struct in _structs(kind) for field in msgspec.structs.fields(struct)))


def _enum_members(kind: type[Any], key: str) -> list[Any]:
    types = [field.type for struct in _structs(kind) for field in msgspec.structs.fields(struct) if field.name == key]
    choices = [choice for field_type in types for choice in (field_type, *get_args(field_type))]
    enums = (choice for choice in choices if isinstance(choice, type) and issubclass(choice, Enum))
    return list(next(enums, ()))
