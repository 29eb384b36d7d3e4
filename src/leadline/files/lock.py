"""A lock on a file, released when its process ends, with a note about the holder."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from leadline.core.errors import LeadlineError
from leadline.files.private import open_private

RETRY_AFTER_S = (0.05, 0.1, 0.2)
"""Pauses between tries: ``lock_holder`` takes a lock for a moment, too."""


@contextmanager
def file_lock(path: Path, *, retry_after_s: Sequence[float] = RETRY_AFTER_S) -> Iterator[bool]:
    """Hold the lock of a file, created if missing; yield False if another process holds it.

    Raises:
        LeadlineError: the file cannot be created.
    """
    with _open(path) as stream:
        if not _try_lock(stream, retry_after_s):
            yield False
            return
        started = datetime.now().astimezone().strftime("%H:%M")
        note = f"process {os.getpid()} on {socket.gethostname()} since {started}"
        # The note only helps to find the holder: a full disk must not prevent the work.
        with suppress(OSError):
            stream.truncate(0)
            os.write(stream.fileno(), note.encode())
        try:
            yield True
        finally:
            stream.truncate(0)


def _open(path: Path) -> TextIO:
    try:
        return open(path, "a+", encoding="utf-8", opener=open_private)
    except OSError as error:
        raise LeadlineError(
            f"{path} cannot be locked ({error.strerror}): check its permissions and the free space"
        ) from error


def lock_holder(path: Path) -> str | None:
    """Return the holder, as ``process 12 on node1 since 14:02``; None if the lock is free."""
    try:
        with path.open("r+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return path.read_text(encoding="utf-8").strip() or "another process"
    return None


def _try_lock(stream: TextIO, retry_after_s: Sequence[float]) -> bool:
    for wait_s in (0.0, *retry_after_s):
        time.sleep(wait_s)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False
