"""Package the kit as one file that any Python with torch can run, without Leadline."""

import zipfile
from pathlib import Path

from leadline.kit import KitError

PACKAGE = Path(__file__).parent
EPOCH = (2020, 1, 1, 0, 0, 0)
"""Date of every archived file, which makes the archive reproducible."""


def pack_kit(path: str) -> int:
    """Write the kit to ``path`` atomically and return its size in bytes; ``KitError`` if it cannot be written."""
    target = Path(path)
    draft = target.with_name(target.name + ".part")
    try:
        with draft.open("wb") as stream:
            stream.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, text in _contents().items():
                    archive.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED)
        draft.chmod(0o755)
        draft.replace(target)
    except OSError as error:
        raise KitError(f"{path} cannot be written ({error.strerror}): name another file with --kit") from error
    return target.stat().st_size


def _contents() -> "dict[str, str]":
    """Return every module and table of this package by archive name, and the archive's entry point."""
    files = [file for file in sorted(PACKAGE.rglob("*")) if file.suffix in (".py", ".json")]
    texts = {f"leadline/kit/{file.relative_to(PACKAGE).as_posix()}": file.read_text(encoding="utf-8") for file in files}
    start = texts["leadline/kit/__main__.py"]
    return {"__main__.py": start, "leadline/__init__.py": '"""The measuring kit of Leadline."""\n', **texts}
