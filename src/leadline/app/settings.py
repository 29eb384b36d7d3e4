"""Where Leadline keeps its data: the XDG folders, or the folder in LEADLINE_DATA_DIR."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from leadline.core.errors import LeadlineError
from leadline.files.private import tighten

DATA_DIR_VARIABLE = "LEADLINE_DATA_DIR"
_FIX = f"change its permissions, or set {DATA_DIR_VARIABLE} to another folder"


def require_writable(folder: Path, fix: str = _FIX) -> None:
    """Raise unless the folder is writable or can be created; nothing is written.

    Raises:
        LeadlineError: the reason and the fix.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        raise _unwritable(folder, f"{there} is a file", fix)
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unwritable(folder, f"{there} is not writable", fix)


@contextmanager
def refuse_unwritable(folder: Path, fix: str = _FIX) -> Iterator[None]:
    """Write into a folder within this context.

    Raises:
        LeadlineError: the reason why it is not writable, and the fix.
    """
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error.strerror, fix) from error


def _unwritable(folder: Path, reason: str | None, fix: str = _FIX) -> LeadlineError:
    return LeadlineError(f"{folder} is not writable ({reason}): {fix}")


def data_dir() -> Path:
    """Return the user's data folder as an absolute path; it may not exist yet.

    Other users lose their access to an existing one, because it holds commands, environments and output.
    """
    named = os.environ.get(DATA_DIR_VARIABLE, "").strip()
    folder = Path(named).expanduser().absolute() if named else platformdirs.user_data_path("leadline", appauthor=False)
    try:
        if folder.stat().st_mode & 0o077:
            tighten(folder)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _unwritable(folder, error.strerror) from error
    return folder


def catalog_dir() -> Path:
    """Return the folder of the user's own devices and systems."""
    return data_dir() / "catalog"


def cache_dir() -> Path:
    """Return the folder of what can be made again at any time, whichever the data folder is."""
    return platformdirs.user_cache_path("leadline", appauthor=False)


def adapted_dir() -> Path:
    """Return the folder of adaptations to measured steps, one file per device."""
    return data_dir() / "adapted"


def uploads_dir() -> Path:
    """Return the folder of the files that clients of the web server handed over."""
    return data_dir() / "uploads"


def history_path() -> Path:
    """Return the file of the measured runs."""
    return data_dir() / "history.sqlite"


def runs_dir() -> Path:
    """Return the folder of local runs, one folder per run."""
    return data_dir() / "runs"
