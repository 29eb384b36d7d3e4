"""A cache of parsed files: msgpack decodes in 1 ms what TOML takes 150 ms for.

It is used only if it was made from the same bytes by the same code; whatever else it holds is parsed again.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

Noun = TypeVar("Noun")

DIGEST_BYTES = 32
CODE = (
    "catalog/networks.py",
    "catalog/toml_files.py",
    "core/documents.py",
    "core/hardware.py",
    "core/systems.py",
    "core/units.py",
)
"""Files of the package that decide what a source is parsed to."""


def read_cached(
    sources: Sequence[tuple[str, bytes]], kind: type[Noun], file: Path | None, parse: Callable[[str, str], list[Noun]]
) -> list[Noun]:
    """Return the nouns of all ``sources`` (name, content), which ``parse`` reads from a content and a name.

    They come from ``file`` if it is valid, and are written there otherwise; an unwritable folder is no error.
    """
    if file is None:
        return _parse(sources, parse)
    key = _key(sources)
    try:
        cached = file.read_bytes()
        payload = cached[2 * DIGEST_BYTES :]
        if cached[: 2 * DIGEST_BYTES] == key + _digest(payload):
            return msgspec.msgpack.decode(payload, type=list[kind])  # type: ignore[valid-type]
    except (OSError, msgspec.MsgspecError):
        pass
    nouns = _parse(sources, parse)
    payload = msgspec.msgpack.encode(nouns)
    with suppress(OSError):
        from leadline.files.atomic import write_atomically  # noqa: PLC0415 - only where something is written

        write_atomically(file, key + _digest(payload) + payload)
    return nouns


def _parse(sources: Sequence[tuple[str, bytes]], parse: Callable[[str, str], list[Noun]]) -> list[Noun]:
    return [noun for name, content in sources for noun in parse(content.decode(), name)]


def _key(sources: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a digest of the sources and of the code that converts them; a version would not change with it."""
    package = Path(__file__).parents[1]
    texts = [file.read_bytes() for name in CODE if (file := package / name).is_file()]
    return _digest(msgspec.msgpack.encode((sources, texts)))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
