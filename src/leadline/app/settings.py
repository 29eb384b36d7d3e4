"""Where Leadline keeps what it remembers: the XDG folders, or the one that LEADLINE_DATA_DIR names."""

import os
from pathlib import Path

import platformdirs

DATA_DIR_VARIABLE = "LEADLINE_DATA_DIR"


def data_dir() -> Path:
    """Return the user's data folder, absolute; it need not exist yet."""
    named = os.environ.get(DATA_DIR_VARIABLE, "").strip()
    if named:
        return Path(named).expanduser().absolute()
    return platformdirs.user_data_path("leadline", appauthor=False)


def catalog_dir() -> Path:
    """Return the folder of the user's own devices and systems."""
    return data_dir() / "catalog"


def history_path() -> Path:
    """Return the file of the measured runs."""
    return data_dir() / "history.sqlite"


def runs_dir() -> Path:
    """Return the folder that holds one folder for each local run."""
    return data_dir() / "runs"
