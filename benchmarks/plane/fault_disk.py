"""A disk for the plane's journal that can be filled up and freed again."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from leadline.execution.processes import run_process

DISK_MIB = 48
CHUNK = bytes(1 << 16)


class Disk(Protocol):
    """The disk of the journal; ``how`` describes the way to fill it."""

    how: str

    def fill(self, process: int) -> None:
        """Fill the disk for a process."""

    def free(self, process: int) -> None:
        """Free the space."""


@contextmanager
def journal_disk(folder: Path) -> Iterator[Disk]:
    """Yield a small file system mounted at ``folder``; limit the size of files where mounting is not allowed."""
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "leadline-faults", str(folder)]
    mounted = os.geteuid() == 0 and run_process(words).returncode == 0
    try:
        yield OwnFileSystem(folder) if mounted else FileSizes()
    finally:
        if mounted:
            run_process(["umount", "--lazy", str(folder)])


@dataclass(slots=True)
class OwnFileSystem:
    """A small file system, filled by a file (implements ``Disk``)."""

    folder: Path
    how: str = f"a tmpfs of {DISK_MIB} MiB, filled to its last block"

    def fill(self, process: int) -> None:  # noqa: ARG002 - the protocol's
        """Write until the file system is full."""
        with (self.folder / "ballast").open("ab", buffering=0) as stream:
            while True:
                try:
                    stream.write(CHUNK)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def free(self, process: int) -> None:  # noqa: ARG002 - the protocol's
        """Remove the file that fills it."""
        (self.folder / "ballast").unlink(missing_ok=True)


@dataclass(slots=True)
class FileSizes:
    """A limit on the size of files, where no file system can be mounted (implements ``Disk``)."""

    how: str = "the process may write no file longer than 4 KiB (RLIMIT_FSIZE), as nothing can be mounted here"

    def fill(self, process: int) -> None:
        """Limit the process to files of 4 KiB."""
        self._limit(process, 4096)

    def free(self, process: int) -> None:
        """Remove the limit."""
        self._limit(process, None)

    def _limit(self, process: int, most_bytes: int | None) -> None:
        try:
            _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))
        except ProcessLookupError:  # it was killed, and its limit with it
            return
