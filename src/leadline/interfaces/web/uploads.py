"""Files that a client hands over, to be named as workloads."""

import asyncio
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from leadline.app import settings
from leadline.app.workloads.read import MODEL_SUFFIXES
from leadline.core.errors import InvalidInput, excerpt
from leadline.core.units import format_bytes
from leadline.files.private import make_private_folder, open_private

UPLOAD = "leadline.upload/1"
UPLOAD_SCHEMA = {
    "title": UPLOAD,
    "type": "object",
    "properties": {
        "schema": {"const": UPLOAD}, "workload": {"type": "string", "description": "Its name for the tools."},
    },
    "required": ["schema", "workload"],
}  # fmt: skip
UPLOADS = "/api/v1/uploads"
MOST_FILES, MOST_FULL_FILES = 200, 8
"""Files that are kept at a time; those of the largest size that would have as many bytes together."""
KEPT_S = 24 * 3600.0
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


class Uploads:
    """Keeps uploaded files until the server ends, each in a private folder of its own; at most a day after a crash."""

    def __init__(self, most_bytes: int, *, scripts: bool = False) -> None:
        self._most_bytes = most_bytes
        self._suffixes = (*MODEL_SUFFIXES, ".py") if scripts else MODEL_SUFFIXES
        self._kept: list[Path] = []
        self._begun = 0

    async def keep(self, name: str, pieces: AsyncIterable[bytes]) -> Path:
        """Write a file piece by piece and return its path; nothing is left of one whose pieces end in an error.

        Raises:
            InvalidInput: the name is not one of a workload's files, or too many files are kept.
            LeadlineError: the data folder is not writable.
        """
        # A file that is being written may get the largest size, and counts as that for the ones after it.
        reserved = self._begun * self._most_bytes
        self._begun += 1
        try:
            return await self._write(await asyncio.to_thread(self._create, name, reserved), pieces)
        finally:
            self._begun -= 1

    def close(self) -> None:
        """Remove the files of this server, which nobody can name any more."""
        for folder in self._kept:
            shutil.rmtree(folder, ignore_errors=True)

    async def _write(self, stream: IO[bytes], pieces: AsyncIterable[bytes]) -> Path:
        """Write all pieces and return the path, or remove the file."""
        path = Path(stream.name)
        try:
            with settings.refuse_unwritable(path.parents[1]), stream:
                async for piece in pieces:
                    await asyncio.to_thread(stream.write, piece)
        except BaseException:  # also where the server ends, or the client has gone
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        self._kept.append(path.parent)
        return path

    def _create(self, name: str, reserved_bytes: int) -> IO[bytes]:
        """Return a new file with a name, open to be written."""
        if not _NAME.fullmatch(name) or not name.endswith(self._suffixes):
            raise InvalidInput(
                f"the file's name is {excerpt(name)!r}: it must end with {', '.join(self._suffixes)}, and have at most "
                "100 letters, digits, dots and dashes"
            )
        folder = settings.uploads_dir()
        with settings.refuse_unwritable(folder):
            make_private_folder(folder)
            sizes = _remove_old(folder)
            if len(sizes) >= MOST_FILES or sum(sizes) + reserved_bytes >= MOST_FULL_FILES * self._most_bytes:
                raise InvalidInput(
                    f"{len(sizes)} files of {format_bytes(sum(sizes))} are kept in {folder}: wait for "
                    "other uploads, remove some, or start the server again"
                )
            path = folder / secrets.token_hex(8) / name
            make_private_folder(path.parent)
            return open(path, "xb", opener=open_private)


def _remove_old(folder: Path) -> list[int]:
    """Remove the files that are a day old; return the sizes of the others in bytes."""
    sizes = []
    for each in folder.iterdir():
        with suppress(FileNotFoundError):  # another server of this user may remove it, too
            if time.time() - each.stat().st_mtime < KEPT_S:
                sizes.append(sum(file.stat().st_size for file in each.iterdir()))
            else:
                shutil.rmtree(each, ignore_errors=True)
    return sizes
