"""Files that a client hands over, to be named as workloads."""

import re
import secrets
import shutil
import time
from pathlib import Path

from leadline.app import settings
from leadline.app.workloads.read import MODEL_SUFFIXES
from leadline.core.errors import InvalidInput, excerpt
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
MOST_FILES = 200
KEPT_S = 24 * 3600.0
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def keep_upload(name: str, content: bytes, *, scripts: bool = False) -> Path:
    """Keep a file for a day, in a private folder of its own; return its path.

    Raises:
        InvalidInput: the name is not one of a workload's files, or too many files are kept.
        LeadlineError: the data folder is not writable.
    """
    suffixes = (*MODEL_SUFFIXES, ".py") if scripts else MODEL_SUFFIXES
    if not _NAME.fullmatch(name) or not name.endswith(suffixes):
        raise InvalidInput(
            f"the file's name is {excerpt(name)!r}: it must end with {', '.join(suffixes)}, and have at most 100 "
            "letters, digits, dots and dashes"
        )
    folder = settings.uploads_dir()
    with settings.refuse_unwritable(folder):
        make_private_folder(folder)
        if _remove_old(folder) >= MOST_FILES:
            raise InvalidInput(f"{MOST_FILES} files of the last day are kept in {folder}: remove some")
        path = folder / secrets.token_hex(8) / name
        make_private_folder(path.parent)
        with open(path, "xb", opener=open_private) as stream:
            stream.write(content)
    return path


def _remove_old(folder: Path) -> int:
    """Remove the files that are a day old; return how many others there are."""
    kept = 0
    for each in folder.iterdir():
        if time.time() - each.stat().st_mtime < KEPT_S:
            kept += 1
        else:
            shutil.rmtree(each, ignore_errors=True)  # another server of this user may remove it, too
    return kept
