"""One SQLite file shared by several processes: atomic writes, and never into another program's file."""

import errno
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from leadline.core.errors import LeadlineError, excerpt
from leadline.core.units import KIB
from leadline.files.private import make_private_file, make_private_folder, tighten

T = TypeVar("T")

_NETWORK = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "panfs", "afs", "glusterfs", "fuse", "9p")
"""File systems on which SQLite's write-ahead log cannot be shared; fuse may hide one of them."""
_AT_ONCE = 500
"""Values in one query; SQLite allows some thousands."""
BUSY_S = 30.0
"""Time that a writer waits for another one."""
LEAST_FREE_BYTES = 256 * KIB
"""With less free space, SQLite's errors are due to the full disk. It reports some of them as input or output errors."""
_USE_ERRORS = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
"""Errors that do not come from the content of the file."""


class UnusableFile(LeadlineError):
    """A file cannot be opened or written for now; its content is not the reason."""


class SqliteFile:
    """The file ``path`` with ``tables``, created if missing; a context manager that closes it.

    Only the owner can read the file. Any thread may use it, one at a time. If the file cannot be written, for example
    because the disk is full, it is opened for reading, and each write tries to open it as usual.

    Args:
        path: the file.
        tables: files of SQL statements that create its tables, read only for a new file.
        application_id: number in the file header, so that another program's database is never written.
        version: version of the tables.
        noun: name of the content, for messages.

    Raises:
        LeadlineError: the file cannot be used, or belongs to another program or version.
    """

    def __init__(
        self, path: Path, *, tables: Sequence[Path], application_id: int, version: int, noun: str = "journal"
    ) -> None:
        self.path = path
        self._tables = tables
        self._application_id = application_id
        self._version = version
        self._noun = noun
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._readable_only = False
        self._identity: tuple[int, int] | None = None
        self._log_identities: dict[str, tuple[int, int] | None] = {}
        try:
            self._connection = self._open()
        except UnusableFile:
            if not path.exists() or not path.stat().st_size:
                raise
            self._readable_only = True
            self._connection = self._open_to_read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    def is_replaced(self) -> bool:
        """True if the file was removed, emptied, or replaced by another one since it was opened."""
        try:
            is_empty = not self.path.stat().st_size
        except OSError:
            return True
        return is_empty or _identity(self.path) != self._identity

    def start_again(self) -> None:
        """Close a file that was removed, emptied or replaced, and open the one that is there, created if missing.

        Raises:
            LeadlineError: it cannot be used; call this again.
        """
        self._connection.close()
        self._remove(self._log_identities)
        # If opening fails, the file still counts as replaced.
        self._identity = None
        self._connection = self._open()

    def reopen(self) -> None:
        """Open the file again, created if missing.

        Raises:
            LeadlineError: it cannot be used; the last connection stays open.
        """
        connection = self._open()
        self.close()
        self._connection, self._copy, self._readable_only = connection, None, False

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing, on disk when this returns."""
        if self.is_replaced():
            raise UnusableFile(f"the {self._noun} {self.path} was removed or replaced while it was in use")
        if self._readable_only:
            self.reopen()
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _open(self) -> sqlite3.Connection:
        with self._errors():
            make_private_folder(self.path.parent)
            make_private_file(self.path)
            opened = _identity(self.path)
            # SQLite gives its other files the permissions of this one.
            for suffix in ("", "-wal", "-shm", "-journal"):
                tighten(self._beside(suffix))
            with _connection(str(self.path)) as connection:
                # A write-ahead log needs shared memory, which network file systems lack.
                connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if _over_network(self.path) else 'WAL'}")
                connection.execute("BEGIN IMMEDIATE")
                logs = self._logs()
                self._make_or_check(connection)
                connection.execute("COMMIT")
                # Otherwise all writes would go into a file that nobody can find.
                if _identity(self.path) != opened:
                    self._remove(logs)
                    raise self._unusable("it was replaced meanwhile", is_full=False)
            self._identity, self._log_identities = opened, logs
            return connection

    def _logs(self) -> dict[str, tuple[int, int] | None]:
        return {suffix: _identity(self._beside(suffix)) for suffix in ("-wal", "-shm")}

    def _remove(self, logs: Mapping[str, tuple[int, int] | None]) -> None:
        """Remove the logs of a file that was replaced; SQLite would apply them to the new one."""
        for suffix, identity in logs.items():
            log = self._beside(suffix)
            if _identity(log) == identity:
                log.unlink(missing_ok=True)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _open_to_read(self) -> sqlite3.Connection:
        """Open an existing file without writing anything next to it.

        Raises:
            LeadlineError: it cannot be read.
        """
        log = self._beside("-wal")
        with self._errors():
            self._identity, self._log_identities = _identity(self.path), self._logs()
            try:
                return self._readable(self.path, "mode=ro")
            except sqlite3.OperationalError:
                # Without its shared memory, a file with a write-ahead log can only be read where that can be made.
                if not log.exists() or not log.stat().st_size:
                    return self._readable(self.path, "mode=ro&immutable=1")
            self._copy = tempfile.TemporaryDirectory(prefix="leadline-")
            copy = Path(self._copy.name) / self.path.name
            shutil.copyfile(self.path, copy)
            shutil.copyfile(log, copy.with_name(log.name))
            return self._readable(copy, "mode=rw")

    def _readable(self, path: Path, mode: str) -> sqlite3.Connection:
        with _connection(f"{path.absolute().as_uri()}?{mode}", uri=True) as connection:
            self._check(connection)
        return connection

    def _make_or_check(self, connection: sqlite3.Connection) -> None:
        """Create the tables in a new file; refuse one of another version or program."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (table_count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if table_count or application:
            self._check(connection)
            return
        for tables in self._tables:
            for statement in tables.read_text(encoding="utf-8").split(";")[:-1]:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {self._application_id}")
        connection.execute(f"PRAGMA user_version = {self._version}")

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file of another version or program."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != self._application_id:
            raise LeadlineError(f"{self.path} is the database of another program: move it away; nothing was changed")
        if version != self._version:
            raise LeadlineError(
                f"{self.path} has version {version}, and this Leadline reads version {self._version}: use the "
                "Leadline that wrote it, or another folder"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the database's errors."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise self.damaged(str(error)) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code not in _USE_ERRORS:
                raise self.damaged(str(error)) from error
            raise self._unusable(str(error), is_full=code == sqlite3.SQLITE_FULL) from error
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise self._unusable(error.strerror or str(error), is_full=is_full) from error

    def damaged(self, why: str) -> LeadlineError:
        """Return the error for content that cannot be right."""
        return LeadlineError(
            f"the {self._noun} {self.path} is damaged or not a {self._noun} ({excerpt(why)}); nothing was changed: "
            f"move it away, or save what it holds with sqlite3 {self.path} .recover"
        )

    def _unusable(self, why: str, *, is_full: bool) -> "UnusableFile":
        if is_full or _free_bytes(self.path) < LEAST_FREE_BYTES:
            return UnusableFile(
                f"disk full: the {self._noun} {self.path} cannot be written; free some space on its disk"
            )
        return UnusableFile(
            f"the {self._noun} {self.path} cannot be used ({why}): check its permissions and the free space"
        )


@contextmanager
def _connection(database: str, *, uri: bool = False) -> Iterator[sqlite3.Connection]:
    """Yield a connection, which is closed if the context fails, and else stays open."""
    connection = sqlite3.connect(database, uri=uri, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _free_bytes(path: Path) -> float:
    """Return the free space for this user on the file system of a file; infinite if it is unknown."""
    try:
        usage = shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists()))
    except OSError:
        return float("inf")
    # File systems without blocks, such as /proc, never fill up.
    return usage.free if usage.total else float("inf")


def chunks(values: Iterable[T], size: int = _AT_ONCE) -> Iterator[list[T]]:
    """Yield the values in lists of at most ``size``; by default as many as one query can name."""
    remaining = iter(values)
    while chunk := list(islice(remaining, size)):
        yield chunk


def marks(values: Sequence[object]) -> str:
    """Return a question mark for each value."""
    return ",".join("?" * len(values))


def _over_network(path: Path) -> bool:
    """True if a file is on a network file system, where SQLite's shared memory does not work."""
    folder = path.parent.resolve()
    # The longest mount point that contains the folder is the file system in use.
    mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.is_relative_to(mount.mountpoint)]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return kind.startswith(_NETWORK)
