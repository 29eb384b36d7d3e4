"""Store runs in one SQLite file, safe for several writers; damage is reported, never ignored."""

import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.runs import Run

VERSION = 1  # version of the table, in the file's `user_version`
APPLICATION_ID = 0x4C45_4144  # `LEAD` in the file's header, so that another program's database is never written to
BUSY_S = 30.0

_TABLE = """
CREATE TABLE run (
    id TEXT PRIMARY KEY,
    started_at TEXT NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    host TEXT,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX run_started_at ON run (started_at);
CREATE INDEX run_name ON run (name);
"""


class SqliteHistory:
    """The history in a file of runs, which the first ``add`` creates."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, run: Run) -> None:
        """Add a run, in place of one with the same id."""
        self.add_all([run])

    def add_all(self, runs: Iterable[Run]) -> None:
        """Add all of the runs or none, in place of those with the same ids."""
        rows = [
            (run.id, run.started_at, run.state.value, run.job.name, run.host, to_json(run, indent=0)) for run in runs
        ]
        if not rows:
            return
        with self._open(create=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?)", rows)
            connection.execute("COMMIT")

    def runs(self, *, limit: int | None = None) -> Iterator[Run]:
        """Yield runs, newest first."""
        query = "SELECT id, document FROM run ORDER BY started_at DESC, rowid DESC LIMIT ?"
        yield from (self._read(*row) for row in self._rows(query, -1 if limit is None else limit))

    def get(self, run_id: str) -> Run:
        """Return the run of an id, or of the only id with this beginning; ``UnknownName`` unless one matches."""
        exact = self._rows("SELECT id, document FROM run WHERE id = ?", run_id)
        prefixed = "SELECT id, document FROM run WHERE substr(id, 1, length(?1)) = ?1"
        rows = exact or (self._rows(prefixed, run_id) if run_id else [])
        if len(rows) == 1:
            return self._read(*rows[0])
        ids = [name for name, _ in rows or self._rows("SELECT id, document FROM run ORDER BY rowid DESC LIMIT ?", 50)]
        raise UnknownName("run", run_id, ids, fix="the history is empty" if not ids else "")

    def _rows(self, query: str, parameter: int | str) -> list[tuple[str, str]]:
        if not self.path.exists():
            return []
        with self._open(create=False) as connection:
            return connection.execute(query, (parameter,)).fetchall()

    def _read(self, run_id: str, document: str) -> Run:
        return from_json(document, Run, label=f"run {run_id} of {self.path}")

    @contextmanager
    def _open(self, *, create: bool) -> Iterator[sqlite3.Connection]:
        """Connect to the file, and turn the errors of the database into messages."""
        connection = None
        try:
            if create and not self.path.exists():
                self._make()
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            self._check_owner(connection)
            yield connection
        except sqlite3.OperationalError as error:
            raise LeadlineError(
                f"the history {self.path} cannot be used ({error}): check its permissions and the free space, or name "
                "another folder with LEADLINE_DATA_DIR"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise LeadlineError(
                f"the history {self.path} is damaged or no history ({error}); nothing was changed: move it away, or "
                f"save what it holds with sqlite3 {self.path} .recover"
            ) from error
        except OSError as error:
            raise LeadlineError(f"the history {self.path} cannot be made ({error.strerror})") from error
        finally:
            if connection is not None:
                connection.close()

    def _make(self) -> None:
        """Create the file whole, unless another writer is first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".history-") as folder:
            new = Path(folder) / "new.sqlite"
            connection = sqlite3.connect(new)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_TABLE)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.commit()
            finally:
                connection.close()
            with suppress(FileExistsError):  # unlike a rename, a link never replaces the file of another writer
                os.link(new, self.path)

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise LeadlineError(
                f"{self.path} is empty or the database of another program: move it away; nothing was changed"
            )
        if version != VERSION:
            raise LeadlineError(
                f"the history {self.path} has version {version}, and this Leadline reads version {VERSION}: "
                "use the Leadline that wrote it, or another folder with LEADLINE_DATA_DIR"
            )
