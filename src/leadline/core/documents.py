"""Versioned JSON documents and TOML input."""

from typing import Any, TypeVar

import msgspec

from leadline.core.errors import InvalidInput

T = TypeVar("T")


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
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{label} cannot be read: {error}") from error


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


def explain_read_error(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason why a text file could not be read, and the fix: ``Permission denied; make it readable``."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8; save it in that encoding"
    fix = {IsADirectoryError: "name a file in it", FileNotFoundError: "check the path"}.get(
        type(error), "make it readable"
    )
    return f"{error.strerror or error}; {fix}"


def parse_toml(text: str, *, label: str) -> dict[str, Any]:
    """Parse TOML text, which ``label`` names; ``InvalidInput`` gives the line that is not TOML."""
    import tomllib  # noqa: PLC0415 - slows down the start of the job wrapper, which reads no TOML

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = f"at line {max(1, len(text.splitlines()))}"
        raise InvalidInput(f"{label} is not valid TOML: {str(error).replace('at end of document', last)}") from error
    except (ValueError, RecursionError) as error:
        # Python limits the depth of its stack and the digits of a number.
        deep = isinstance(error, RecursionError)
        reason = "its tables or lists are too deep in each other" if deep else "a number has too many digits"
        raise InvalidInput(f"{label} is not valid TOML: {reason}") from error
