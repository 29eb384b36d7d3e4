"""The Python files that a script may import: those around it, without installed packages."""

from contextlib import suppress
from pathlib import Path

MOST_FOLDERS = 1000
"""Folders that are searched, the nearest first: a script may lie in a home folder with all that is in it."""


def nearby_modules(folder: Path) -> list[Path]:
    """Return the Python files in a folder and below it, without those of hidden folders and virtual environments."""
    folders, modules = [folder], []
    for nearest in folders:
        with suppress(OSError):  # a folder that may not be read
            for path in sorted(nearest.iterdir()):
                if path.suffix == ".py":
                    modules.append(path)
                elif len(folders) < MOST_FOLDERS and path.is_dir() and not _holds_packages(path):
                    folders.append(path)
    return modules


def _holds_packages(folder: Path) -> bool:
    is_left_out = folder.name.startswith((".", "__")) or folder.name == "site-packages" or folder.is_symlink()
    return is_left_out or (folder / "pyvenv.cfg").is_file()
