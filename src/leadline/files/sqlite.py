"""One SQLite file shared by several processes: atomic writes, and never into another program's file."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from leadline.core.errors import LeadlineError

T = TypeVar("T")

_NETWORK = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "panfs", "afs", "glusterfs", "fuse", "9p")
"""File systems on which SQLite's write-ahead log cannot be shared; fuse may hide one of them."""
_AT_ONCE = 500
"""Values in one query; SQLite allows some thousands."""
BUSY_S = 30.0
"""Time that a writer waits for another one."""


class SqliteFile:
    """The file ``path`` with ``tables``, created if missing; a context manager that closes it.

    Any thread may use it, one at a time.

    Args:
        path: the file.
        tables: SQL statements that create its tables.
        application_id: number in the file header, so that another program's database is never written.
        version: version of the tables.

    Raises:
        LeadlineError: the file cannot be used, or belongs to another program or version.
    """

    def __init__(self, path: Path, *, tables: str, application_id: int, version: int) -> None:
        self.path = path
        self._tables = tables
        self._application_id = application_id
        self._version = version
        self._connection = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing, on disk when this returns."""
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
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                # A write-ahead log needs shared memory, which network file systems lack.
                connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if _over_network(self.path) else 'WAL'}")
                connection.execute("BEGIN IMMEDIATE")
                self._make_or_check(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            return connection

    def _make_or_check(self, connection: sqlite3.Connection) -> None:
        """Create the tables in a new file; refuse one of another version or program."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and not application:
            for statement in self._tables.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {self._application_id}")
            connection.execute(f"PRAGMA user_version = {self._version}")
        elif application != self._application_id:
            raise LeadlineError(f"{self.path} is the database of another program: move it away; nothing was changed")
        elif version != self._version:
            raise LeadlineError(
                f"{self.path} has version {version}, and this Leadline reads version {self._version}: use the "
                "Leadline that wrote it, or another folder"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the database's errors."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise LeadlineError(
                f"the journal {self.path} cannot be used ({error}): check its permissions and the free space"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise LeadlineError(
                f"the journal {self.path} is damaged or not a journal ({error}); nothing was changed: move it away, or "
                f"save what it holds with sqlite3 {self.path} .recover"
            ) from error
        except OSError as error:
            raise LeadlineError(f"the journal {self.path} cannot be created ({error.strerror})") from error


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
    folder = str(path.parent.resolve())
    # The longest mount point that contains the folder is the file system in use.
    mounts = [mount for mount in psutil.disk_partitions(all=True) if _below(folder, mount.mountpoint)]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return kind.startswith(_NETWORK)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
