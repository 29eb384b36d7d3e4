"""The one JSON form of every noun, versioned by its ``schema`` field."""

from typing import Any, TypeVar

import msgspec

from leadline.core.errors import InvalidInput

T = TypeVar("T")


def to_document(noun: object, schema: str) -> dict[str, Any]:
    """Return ``{"schema": schema, …fields}`` of a dataclass or mapping; enums become values, tuples become lists."""
    built = msgspec.to_builtins(noun, str_keys=True)
    if not isinstance(built, dict):
        raise TypeError(f"only a dataclass or a mapping has a document, not {type(noun).__name__}")
    return {"schema": schema, **built}


def to_json(document: object, *, indent: int = 2) -> str:
    """Write a document (or a dataclass) as JSON text."""
    encoded = msgspec.json.encode(document)
    return msgspec.json.format(encoded, indent=indent).decode() if indent else encoded.decode()


def from_json(text: str | bytes, kind: type[T], *, label: str) -> T:
    """Read a dataclass from JSON text; ``label`` names the text in the error.

    Raises:
        InvalidInput: the text is no JSON, or a field is missing, unknown or of the wrong type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{label} cannot be read: {error}") from error


def from_toml(text: str, kind: type[T], *, label: str) -> T:
    """Read a struct from TOML text; ``label`` names the text in the error.

    Raises:
        InvalidInput: the text is no TOML, or a key is missing, unknown or of the wrong type; with its line.
    """
    return convert_toml(parse_toml(text, label=label), kind, text=text, label=label)


def convert_toml(document: dict[str, Any], kind: type[T], *, text: str, label: str) -> T:
    """Read a struct from what was parsed of TOML; a mistake is looked up in ``text``, which ``label`` names.

    Raises:
        InvalidInput: a key is missing, unknown or of the wrong type; with its line.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        from leadline.core.document_errors import explain_validation_error  # noqa: PLC0415 - only for a document that is wrong

        raise InvalidInput(f"{label}: {explain_validation_error(str(error), document, kind, text)}") from error


def explain_read_error(error: OSError | UnicodeDecodeError) -> str:
    """Return why a text file could not be read, and what to do: ``Permission denied; make it readable``."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8; save it in that encoding"
    fix = {IsADirectoryError: "name a file in it", FileNotFoundError: "check the path"}.get(
        type(error), "make it readable"
    )
    return f"{error.strerror or error}; {fix}"


def parse_toml(text: str, *, label: str) -> dict[str, Any]:
    """Read TOML text; ``label`` names the text in the error, which gives the line.

    Raises:
        InvalidInput: the text is not TOML.
    """
    import tomllib  # noqa: PLC0415 - the wrapper starts with every job, reads no TOML, and would wait for it

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = f"at line {max(1, len(text.splitlines()))}"
        raise InvalidInput(f"{label} is not valid TOML: {str(error).replace('at end of document', last)}") from error
