"""Read files that come from outside: bounded, and with one message for everything that can be wrong with a path."""

import os
from pathlib import Path

from leadline.core.documents import explain_read_error
from leadline.core.errors import InvalidInput

MOST_BYTES = 2**29
"""Size of the largest file that is read whole; its text and what is made of it must fit in memory."""


def is_file(path: str | Path) -> bool:
    """Return whether a user's word names a file; unlike ``Path.is_file``, also of a word too long for a name."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def exists(path: str | Path) -> bool:
    """Return whether a user's word names a file, a pipe or a folder, in the same way."""
    return os.path.exists(path)  # noqa: PTH110 - see above


def read_input(path: Path, *, most: int = MOST_BYTES, label: str = "", fix: str = "") -> bytes:
    """Return the content of a file; ``label`` names it in errors, and ``fix`` follows their advice.

    Raises:
        InvalidInput: the file is missing, unreadable, no file, or larger than ``most`` bytes.
    """
    name = label or str(path)
    try:
        with path.open("rb") as stream:
            # One read of ``most`` bytes would reserve them all; a pipe has no size.
            content = stream.read(min(os.fstat(stream.fileno()).st_size, most) + 1)
            while len(content) <= most and (chunk := stream.read(max(len(content), 2**20))):
                content += chunk
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be read: {explain_read_error(error)}{fix}") from error
    if len(content) > most:
        raise InvalidInput(f"{name} cannot be read: it has more than {most:,} bytes; give a smaller file{fix}")
    return content


def read_input_text(path: Path, *, most: int = MOST_BYTES, label: str = "", fix: str = "") -> str:
    """Return the text of a file in UTF-8, with line feeds at the ends of lines.

    Raises:
        InvalidInput: as in ``read_input``, or the file is not text.
    """
    return decode_input(read_input(path, most=most, label=label, fix=fix), label or str(path), fix)


def decode_input(content: bytes, label: str, fix: str = "") -> str:
    """Return the text of a content in UTF-8, with line feeds at the ends of lines; ``InvalidInput`` if it is none."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{label} cannot be read: {explain_read_error(error)}{fix}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
