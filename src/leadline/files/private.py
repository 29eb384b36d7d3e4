"""Folders and files that only their owner can read, from their creation on and whatever the umask."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Create a folder and the missing ones above it; existing folders stay as they are.

    Raises:
        OSError: it cannot be created.
    """
    if not folder.exists():
        make_private_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file as an ``opener`` of ``open`` does; a new file can only be read by its owner.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, flags, 0o600)


def make_private_file(path: Path) -> None:
    """Create an empty file unless it exists.

    Raises:
        OSError: it cannot be created.
    """
    # Without O_EXCL, the descriptor of a file that exists is closed, which drops all locks of this process on it.
    with suppress(FileExistsError):
        os.close(os.open(os.path.realpath(path), os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600))


def tighten(path: Path) -> None:
    """Take the permissions of all other users from this user's file or folder, if it exists.

    A device keeps them: for root, ``/dev/null`` is a file of its own.
    """
    with suppress(OSError):
        status = path.stat()
        is_data = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if is_data and status.st_uid == os.geteuid() and status.st_mode & 0o077:
            path.chmod(stat.S_IMODE(status.st_mode) & 0o700)
