"""Versioned JSON documents and TOML input."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from leadline.core.errors import InvalidInput, excerpt

T = TypeVar("T")

LARGEST_WHOLE, LARGEST = 2**63 - 1, 1e200
"""Largest whole number of TOML, and largest number that is read."""
MOST_TOML_BYTES = 2**24
"""Size of the largest TOML file that is read."""
LONGEST_COMMAND = 2**17
"""Characters of the longest command: Linux starts no program with a longer word."""

DAMAGE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that reading damaged data raises."""

_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')\s*+\.\s*+){100}""")
"""A dotted key of more than 100 parts: the parser of TOML takes quadratic time and memory for it."""


def to_document(noun: object, schema: str) -> dict[str, Any]:
    """Return ``{"schema": schema, …fields}`` of a dataclass or mapping; enums become values and tuples become lists."""
    fields = msgspec.to_builtins(noun, str_keys=True)
    if not isinstance(fields, dict):
        raise TypeError(f"expected a dataclass or a mapping, not {type(noun).__name__}")
    return {"schema": schema, **fields}


def to_json(document: object, *, indent: int = 2) -> str:
    """Encode a document or dataclass as JSON text."""
    encoded = msgspec.json.encode(document)
    return msgspec.json.format(encoded, indent=indent).decode() if indent else encoded.decode()


def from_json(text: str | bytes, kind: type[T], *, label: str) -> T:
    """Decode a frozen value from JSON text, which ``label`` names; ``InvalidInput`` if it is not such a value."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8, and deep nesting
        raise InvalidInput(f"{label} cannot be read: {error}") from error


def parse_json(text: str | bytes, *, label: str) -> Any:  # noqa: ANN401 - a document has any type
    """Parse JSON of any form, which ``label`` names; ``InvalidInput`` if it is not JSON or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{label} is not JSON: {error}") from error


def split_command(command: str | list[str], *, label: str = "") -> list[str]:
    """Return the words of a command, split as a shell does.

    Raises:
        InvalidInput: it is empty, has an open quote, or is longer than any command; ``label`` names its file.
    """
    start = f"{label}: " if label else ""
    if isinstance(command, str) and len(command) > LONGEST_COMMAND:
        # shlex takes quadratic time for a long word
        raise InvalidInput(f"{start}the command {excerpt(command)!r} has {len(command):,} characters: shorten it")
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise InvalidInput(
            f"{start}the command {excerpt(str(command))!r} cannot be split into words ({error}): close its quotes"
        ) from error
    if not words:
        raise InvalidInput(f"{start}the command is empty: write what you would type, as in python train.py --epochs 3")
    return words


@contextmanager
def refuse_damaged(message: str) -> Iterator[None]:
    """Convert the errors of reading damaged data to ``InvalidInput``; ``message`` names the input and the fix.

    A file that Leadline or a compiler wrote has hundreds of relations between its parts. Damage to any of them shows
    when the parts are put together.
    """
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise InvalidInput(f"{message} ({type(error).__name__}: {error})") from error


def from_toml(text: str, kind: type[T], *, label: str, finite: bool = False) -> T:
    """Decode a struct from TOML text as ``parse_toml`` and ``convert_toml`` do."""
    return convert_toml(parse_toml(text, label=label), kind, text=text, label=label, finite=finite)


def convert_toml(document: dict[str, Any], kind: type[T], *, text: str, label: str, finite: bool = False) -> T:
    """Convert parsed TOML to a struct; ``InvalidFile`` lists every fault with the line of ``text``.

    With ``finite``, numbers that are infinite or no numbers are faults too.
    """
    from leadline.core.document_errors import InvalidFile, has_odd_number, list_faults  # noqa: PLC0415 - TOML only

    try:
        converted = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidFile(label, list_faults(document, kind, text)) from error
    if finite and has_odd_number(document):
        raise InvalidFile(label, list_faults(document, kind, text))
    return converted


def explain_read_error(error: OSError | ValueError) -> str:
    """Return the reason why a text file could not be read, and the fix: ``Permission denied; make it readable``."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8; save it in that encoding"
    fixes: dict[type[Exception], str] = {IsADirectoryError: "name a file in it", PermissionError: "make it readable"}
    reason = error.strerror if isinstance(error, OSError) else None  # a path with a NUL is a ValueError
    return f"{reason or error}; {fixes.get(type(error), 'check the path')}"


def parse_toml(text: str, *, label: str) -> dict[str, Any]:
    """Parse TOML text, which ``label`` names; ``InvalidInput`` gives the line that is not TOML."""
    import tomllib  # noqa: PLC0415 - slows down the start of the job wrapper, which reads no TOML

    if key := _LONG_KEY.search(text):
        raise InvalidInput(f"{label} is not valid TOML: the key {excerpt(key[0])} has more than 100 parts")
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise InvalidInput(f"{label} is not valid TOML: it is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits is a plain one
        last = f"at line {max(1, len(text.splitlines()))}"
        raise InvalidInput(f"{label} is not valid TOML: {str(error).replace('at end of document', last)}") from error
    refuse_large(document, label)
    return document


def refuse_large(value: object, label: str) -> None:
    """Refuse finite numbers that TOML does not have, as those of 80 bits, or that arithmetic would make infinite.

    Raises:
        InvalidInput: it names the number; ``label`` names the input.
    """
    if isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            refuse_large(inside, label)
    elif isinstance(value, int | float):
        most = LARGEST_WHOLE if isinstance(value, int) else LARGEST
        # A reader names the key of a number that is not finite.
        if most < abs(value) < math.inf:
            raise InvalidInput(f"{label}: the number {excerpt(str(value))} is too large: check its digits")
