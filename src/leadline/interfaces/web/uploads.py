"""Files that a client hands over, to be named as workloads."""

import re
import secrets
import time
from pathlib import Path

from leadline.app import settings
from leadline.app.workloads.read import MODEL_SUFFIXES
from leadline.core.errors import InvalidInput, excerpt
from leadline.files.private import make_private_folder, open_private

MOST_FILES = 200
KEPT_S = 24 * 3600.0
_NAME = re.compile(r"[\w][\w.-]{0,99}")


def keep_upload(name: str, content: bytes, *, scripts: bool = False) -> Path:
    """Keep a file for a day, in a private folder of its own; return its path.

    Raises:
        InvalidInput: the name is not one of a workload's files, or too many files are kept.
    """
    suffixes = (*MODEL_SUFFIXES, ".py") if scripts else MODEL_SUFFIXES
    if not _NAME.fullmatch(name) or not name.endswith(suffixes):
        raise InvalidInput(
            f"the file's name is {excerpt(name)!r}: it must end with {', '.join(suffixes)}, without folders"
        )
    folder = settings.uploads_dir()
    make_private_folder(folder)
    kept = [path for path in folder.glob("*/*") if not _remove_old(path)]
    if len(kept) >= MOST_FILES:
        raise InvalidInput(f"{MOST_FILES} files of the last day are kept in {folder}: remove some")
    path = folder / secrets.token_hex(8) / name
    make_private_folder(path.parent)
    with open(path, "xb", opener=open_private) as stream:
        stream.write(content)
    return path


def _remove_old(path: Path) -> bool:
    """Remove a file that is a day old, and its folder; return whether it was."""
    if time.time() - path.stat().st_mtime < KEPT_S:
        return False
    path.unlink()
    path.parent.rmdir()
    return True
