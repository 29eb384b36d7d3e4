"""The file of measurements: JSON lines, a header first, written so that a kill at any moment loses no whole line."""

import fcntl
import json
import os
from typing import Any, Dict, List, Optional

from leadline.kit import KIT_VERSION, SCHEMA, KitError

IDENTITY = (
    ("kit", "kit version"), ("device.type", "device type"), ("device.name", "device"),
    ("device.memory_bytes", "device memory"), ("device.threads", "number of threads"),
    ("software.torch", "torch"), ("software.runtime", "CUDA or ROCm version"), ("software.driver", "driver"),
    ("software.cudnn", "cuDNN"),
)  # fmt: skip
"""What rows of one file have in common: its place in the header, and how it is called in a sentence."""


class RowFile:
    """A file that is being written; one process at a time.

    Use: ``open``, look at ``header`` and ``rows``, ``begin`` with this machine's header, ``append``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.header: Optional[Dict[str, Any]] = None
        self.rows: List[Dict[str, Any]] = []
        self.unlocked = ""
        self._file = -1

    def open(self) -> "RowFile":
        """Open or make the file, lock it, and read what is there; a half-written last line is dropped.

        Raises:
            KitError: it cannot be written, is being written by another process, or is no file of measurements.
        """
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise KitError(f"{self.path} cannot be written ({error.strerror}): name another file with --out") from error
        self._lock()
        whole = self._read()
        lines = whole.split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            self._take(number, line, last=number == len(lines))
        return self

    def begin(self, header: Dict[str, Any]) -> None:
        """Write the header of a new file; of one that is there, refuse another machine's.

        Raises:
            KitError: the file's rows come from another device, another torch or another kit.
        """
        if self.header is None:
            self.header = {"kind": "header", "schema": SCHEMA, "kit": KIT_VERSION, **header}
            self._write(self.header)
            return
        here = {"kit": KIT_VERSION, **header}
        for place, words in IDENTITY:
            kept, found = _at(self.header, place), _at(here, place)
            if kept != found:
                raise KitError(
                    f"{self.path} holds rows of another {words} ({kept}, here {found}): give --out another file"
                )

    def append(self, row: Dict[str, Any]) -> None:
        """Write one row, and wait until it is on disk."""
        self._write(row)
        self.rows.append(row)

    def close(self) -> None:
        """Close the file and give up the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise KitError(
                f"{self.path} is being written by another run: wait for it, or give --out another file"
            ) from error
        except OSError as error:  # a file system without locks, as some parallel ones are
            self.unlocked = f"{self.path} cannot be locked ({error.strerror}): start no second run on it"

    def _read(self) -> bytes:
        """Return the whole lines of the file, and cut off what stands behind the last."""
        held = b""
        while True:
            part = os.read(self._file, 1 << 20)
            if not part:
                break
            held += part
        kept = held.rfind(b"\n") + 1
        self._cut(kept, len(held))
        return held[:kept]

    def _cut(self, kept: int, size: int) -> None:
        if kept < size:
            if not kept and not self._begins_like_ours():
                raise KitError(f"{self.path} is no file of measurements: give --out another file")
            os.ftruncate(self._file, kept)
        os.lseek(self._file, kept, os.SEEK_SET)

    def _begins_like_ours(self) -> bool:
        """Tell whether a file without a whole line may be a header that was cut off, so that it may be cut."""
        begin = b'{"kind": "header"'
        return os.pread(self._file, len(begin), 0).startswith(begin[: os.fstat(self._file).st_size])

    def _take(self, number: int, line: bytes, *, last: bool) -> None:
        try:
            row = json.loads(line)
        except ValueError as error:
            if last and number > 1:  # blocks that a failing machine did not write whole
                self._cut(*_last_line(self._file))
                return
            raise KitError(
                f"line {number} of {self.path} is no JSON: delete that line, or give --out another file"
            ) from error
        if number > 1:
            self.rows.append(row)
        elif isinstance(row, dict) and row.get("schema") == SCHEMA:
            self.header = row
        else:
            found = row.get("schema", "none") if isinstance(row, dict) else "none"
            raise KitError(f"{self.path} has the schema {found}, not {SCHEMA}: give --out another file")

    def _write(self, row: Dict[str, Any]) -> None:
        line = (json.dumps(row, separators=(", ", ": ")) + "\n").encode()
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise KitError(f"{self.path} cannot be written further ({error.strerror}): make room and resume") from error


def _last_line(file: int) -> "tuple[int, int]":
    """Return where the last whole line begins, and where the file ends."""
    size = os.fstat(file).st_size
    return os.pread(file, size, 0).rfind(b"\n", 0, size - 1) + 1, size


def _at(document: Dict[str, Any], place: str) -> Any:
    for part in place.split("."):
        document = document.get(part, {})
    return None if document == {} else document
