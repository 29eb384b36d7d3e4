"""Write the kit as one file that any Python with torch can run, on a machine without Leadline."""

import zipfile
from pathlib import Path

from leadline.kit import KitError

HERE = Path(__file__).parent
MAIN = "import sys\n\nfrom leadline.kit.command import main\n\nsys.exit(main())\n"
EPOCH = (2020, 1, 1, 0, 0, 0)
"""Date of every file within, so that one version is one sequence of bytes."""


def pack_kit(path: str) -> int:
    """Write the kit to ``path``, whole or not at all, and return its size in bytes.

    Raises:
        KitError: the file cannot be written.
    """
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
    """Return every module of this room under its usual name, and what makes the archive run."""
    found = {"__main__.py": MAIN, "leadline/__init__.py": '"""The measuring kit of Leadline."""\n'}
    for file in sorted(HERE.rglob("*.py")):
        found[f"leadline/kit/{file.relative_to(HERE).as_posix()}"] = file.read_text(encoding="utf-8")
    return found
