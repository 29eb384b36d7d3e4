"""Where Leadline keeps what it remembers: the XDG folders, or the one that LEADLINE_DATA_DIR names."""

import os
from pathlib import Path

import platformdirs

from leadline.core.errors import LeadlineError

DATA_DIR_VARIABLE = "LEADLINE_DATA_DIR"


def require_writable(folder: Path) -> None:
    """Refuse a folder in which nothing can be written, or which cannot be made; nothing is written to find out.

    Raises:
        LeadlineError: and what to do about it.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        raise unwritable(folder, f"{there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise unwritable(folder, f"{there} may not be written to")


def unwritable(folder: Path, reason: str | None) -> LeadlineError:
    """Return the error of a folder that cannot be written to."""
    return LeadlineError(
        f"{folder} cannot be written to ({reason}): make it writable, or name another folder with {DATA_DIR_VARIABLE}"
    )


def data_dir() -> Path:
    """Return the user's data folder, absolute; it need not exist yet."""
    named = os.environ.get(DATA_DIR_VARIABLE, "").strip()
    if named:
        return Path(named).expanduser().absolute()
    return platformdirs.user_data_path("leadline", appauthor=False)


def catalog_dir() -> Path:
    """Return the folder of the user's own devices and systems."""
    return data_dir() / "catalog"


def adapted_dir() -> Path:
    """Return the folder of what own measured steps made of the estimators, a file for each device."""
    return data_dir() / "adapted"


def swept_dir() -> Path:
    """Return the folder of what the sweeps of GPUs made of the shipped kernels; anything in it can be made again."""
    return data_dir() / "swept"


def waits_dir() -> Path:
    """Return the folder that keeps what was learned of waits in the queues of systems."""
    return data_dir() / "waits"


def history_path() -> Path:
    """Return the file of the measured runs."""
    return data_dir() / "history.sqlite"


def runs_dir() -> Path:
    """Return the folder that holds one folder for each local run."""
    return data_dir() / "runs"
