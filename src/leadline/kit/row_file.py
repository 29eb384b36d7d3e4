"""The measurement file: JSON lines after a header; a kill at any moment loses no complete line."""

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
"""Properties shared by all rows of a file: path in the header, and name in messages."""


class RowFile:
    """A file being written by one process.

    Usage: ``open``, inspect ``header`` and ``rows``, ``begin`` with this machine's header, ``append``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.header: Optional[Dict[str, Any]] = None
        self.rows: List[Dict[str, Any]] = []
        self.unlocked = ""
        self._file = -1

    def open(self) -> "RowFile":
        """Open, lock and read the file; ``KitError`` if it is not writable, in use, or no file of measurements."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise KitError(f"{self.path} cannot be written ({error.strerror}): name another file with --out") from error
        self._lock()
        lines = self._read().split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            self._parse_line(number, line, last=number == len(lines))
        return self

    def begin(self, header: Dict[str, Any]) -> None:
        """Write the header of a new file; ``KitError`` if an existing one is of another device, torch or kit."""
        if self.header is None:
            self.header = {"kind": "header", "schema": SCHEMA, "kit": KIT_VERSION, **header}
            self._write(self.header)
            return
        current = {"kit": KIT_VERSION, **header}
        for path, label in IDENTITY:
            stored, actual = _at(self.header, path), _at(current, path)
            if stored != actual:
                raise KitError(
                    f"{self.path} holds rows of another {label} ({stored}, here {actual}): give --out another file"
                )

    def append(self, row: Dict[str, Any]) -> None:
        """Write one row, and wait until it is on disk."""
        self._write(row)
        self.rows.append(row)

    def close(self) -> None:
        """Close the file and release the lock."""
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
        """Return the complete lines, and truncate the file after the last."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            content = file.read()
        complete = content.rfind(b"\n") + 1
        self._cut(complete, len(content))
        return content[:complete]

    def _cut(self, complete: int, size: int) -> None:
        if complete < size:
            # A file without a complete line may only be cut if that line could become a header.
            begin = b'{"kind": "header"'
            if not complete and not os.pread(self._file, len(begin), 0).startswith(begin[:size]):
                raise KitError(f"{self.path} is no file of measurements: give --out another file")
            os.ftruncate(self._file, complete)
        os.lseek(self._file, complete, os.SEEK_SET)

    def _parse_line(self, number: int, line: bytes, *, last: bool) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if last and number > 1:  # blocks that a failing machine did not write whole
                size = os.fstat(self._file).st_size
                self._cut(os.pread(self._file, size, 0).rfind(b"\n", 0, size - 1) + 1, size)
                return
            raise KitError(
                f"line {number} of {self.path} is no JSON: delete that line, or give --out another file"
            ) from error
        if number > 1 and isinstance(row, dict):
            self.rows.append(row)
        elif number > 1:
            raise KitError(f"line {number} of {self.path} is no row: delete that line, or give --out another file")
        elif isinstance(row, dict) and row.get("schema") == SCHEMA:
            self.header = row
        else:
            schema = str(row.get("schema", "none"))[:60] if isinstance(row, dict) else "none"
            raise KitError(f"{self.path} has the schema {schema}, not {SCHEMA}: give --out another file")

    def _write(self, row: Dict[str, Any]) -> None:
        line = (json.dumps(row, separators=(", ", ": ")) + "\n").encode()
        try:
            while line:
                line = line[os.write(self._file, line) :]
            # A batch system kills the node's processes at the limit; only synced rows survive a node failure.
            os.fsync(self._file)
        except OSError as error:
            raise KitError(f"{self.path} cannot be written further ({error.strerror}): make room and resume") from error


def _at(document: Dict[str, Any], place: str) -> Any:
    for part in place.split("."):
        document = document.get(part, {}) if isinstance(document, dict) else {}
    return None if document == {} else document
