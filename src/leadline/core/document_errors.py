"""Faults of documents: the place, the value, the reason and the fix of each."""

import re
import reprlib
import types
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen

T = TypeVar("T")

MAX_FAULTS = 20
"""Faults that a message lists."""
MAX_NUMBER = 1e30
"""Numbers of a document are below this, so that a conversion of units stays finite."""

_PATH = re.compile(r" - at `\$(?P<path>.*)`$", re.DOTALL)
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


class Fault(Frozen):
    """One fault of a document; ``line`` is known if a single line of the text matches."""

    problem: str
    fix: str = ""
    line: int | None = None

    @property
    def sentence(self) -> str:
        """The fault for people."""
        line = f"line {self.line}: " if self.line else ""
        return f"{line}{self.problem}{f': {self.fix}' if self.fix else ''}"


class InvalidFile(InvalidInput):
    """A file with ``faults``; the message lists them, and ``label`` names the file."""

    def __init__(self, label: str, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        sentences = [fault.sentence for fault in self.faults[:MAX_FAULTS]]
        more = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        several = f"{label} has {len(faults)} faults:" + "".join(f"\n  {each}" for each in [*sentences, *more])
        super().__init__(f"{label}: {sentences[0]}" if len(sentences) == 1 else several)


def list_faults(document: object, kind: Any, text: str = "") -> list[Fault]:  # noqa: ANN401 - a type, or a union of them
    """Return every fault of ``document``, which should be a ``kind``; ``text`` gives the lines."""
    return list(_faults(document, kind, "", "", text))


def suggest(name: str, candidates: Sequence[str]) -> str:
    """Return the likely meaning of a wrong name, else the possible ones."""
    close = get_close_matches(name, candidates, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are {', '.join(candidates)}"


def has_odd_number(value: object) -> bool:
    """True if a number in a document of built-in types is infinite, not a number, or beyond ``MAX_NUMBER``."""
    if isinstance(value, dict):
        return any(map(has_odd_number, value.values()))
    if isinstance(value, list):
        return any(map(has_odd_number, value))
    return isinstance(value, int | float) and not abs(value) < MAX_NUMBER


def _faults(value: object, kind: Any, key: str, entry: str, text: str) -> Iterator[Fault]:  # noqa: ANN401 - a type
    """Yield the faults of ``value`` under ``key`` in the table ``entry``."""
    reason = ""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error)
    if reason or has_odd_number(value):
        inside = list(_faults_inside(value, kind, key, entry, text))
        yield from inside or [_explain(reason, value, kind, key, entry, text)]


def _faults_inside(value: object, kind: Any, key: str, entry: str, text: str) -> Iterator[Fault]:  # noqa: ANN401 - a type
    """Yield the faults of the parts of a table or a list."""
    if isinstance(value, dict):
        struct = next(iter(_classes(kind, msgspec.Struct)), None)
        item = next((get_args(each)[1] for each in _choices(kind) if get_origin(each) is dict), None)
        entry = value["name"] if isinstance(value.get("name"), str) else entry
        if struct is not None:
            yield from _faults_of_table(value, struct, entry, text)
        elif item is not None:
            for name, part in value.items():
                yield from _faults(part, item, name, name if isinstance(part, dict) else "", text)
    elif isinstance(value, list):
        item = next((get_args(each)[0] for each in _choices(kind) if get_origin(each) in (tuple, list)), None)
        for part in value if item is not None else ():
            yield from _faults(part, item, key, entry, text)


def _faults_of_table(table: dict[str, Any], struct: type[msgspec.Struct], entry: str, text: str) -> Iterator[Fault]:
    """Yield the faults of a table with fixed keys."""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    inside = f" in {entry!r}" if entry else ""
    misspelt: set[str] = set()
    for name in table:
        if name not in fields:
            misspelt.update(get_close_matches(name, fields, n=1, cutoff=0.6))
            yield Fault(f"there is no key {name!r}{inside}", suggest(name, list(fields)), _line(text, name))
    for name, field in fields.items():
        if name in table:
            yield from _faults(table[name], field.type, name, entry, text)
        elif field.required and name not in misspelt:
            yield Fault(f"the key {name!r} is missing{inside}", "add it")


def _explain(reason: str, value: object, kind: Any, key: str, entry: str, text: str) -> Fault:  # noqa: ANN401 - a type
    """Return the fault of a single value, for which msgspec gives ``reason``."""
    inside = f" in {entry!r}" if entry else ""
    line, written, quoted = _line(text, key, value), reprlib.repr(value), _QUOTED.findall(reason)
    if not reason or reason.startswith("Number out of range"):
        return Fault(f"{key} is {written}{inside}, but it must be a number below {MAX_NUMBER:g}", line=line)
    if reason.startswith("Invalid enum value") and key:
        members = [str(member.value) for each in _classes(kind, Enum) for member in each]
        return Fault(f"{key} is {written}{inside}", suggest(str(value), members), line)
    if reason.startswith("Expected") and len(quoted) > 1 and not _PATH.search(reason):
        expected = " or ".join(_FORMS.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        return Fault(f"{key or 'the document'} is {written}{inside}, but it must be {expected}", line=line)
    path = _PATH.search(reason)
    place = f" at {path['path'].lstrip('.')}" if path and path["path"] else ""
    return Fault(f"{_PATH.sub('', reason)}{place or (f' at {key}' if key else '')}", line=line)


def _line(text: str, key: str, value: object = None) -> int | None:
    """Return the number of the only line that assigns ``key`` (that value); ``None`` if there are several."""
    if not key:
        return None
    assignment = re.compile(rf"(?:^|[{{,.\[])\s*\"?{re.escape(key)}\"?\s*(?:=|\]|:)")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if assignment.search(line)]
    # Several tables may assign the same key; a guess at the line would send the user to the wrong one.
    if len(lines) > 1 and value is not None:
        lines = [(number, line) for number, line in lines if reprlib.repr(value).strip("'\"") in line]
    return lines[0][0] if len(lines) == 1 else None


def _choices(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type, or a union of them
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _classes(kind: Any, base: type[T]) -> list[type[T]]:  # noqa: ANN401 - a type, or a union of them
    return [each for each in _choices(kind) if isinstance(each, type) and issubclass(each, base)]
