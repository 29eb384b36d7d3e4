"""Store runs in one SQLite file, safe for several writers; damage is reported, never ignored."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from leadline.core.documents import from_json, to_json
from leadline.core.errors import UnknownName
from leadline.core.runs import Run
from leadline.files.sqlite import SqliteFile

VERSION = 1  # version of the table, in the file's `user_version`
APPLICATION_ID = 0x4C45_4144  # `LEAD` in the file's header, so that another program's database is never written to

_TABLES = (Path(__file__).with_name("history.sql"),)


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
        with self._open() as file, file.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?)", rows)

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
        with self._open() as file:
            return file.read(query, parameter)

    def _read(self, run_id: str, document: str) -> Run:
        return from_json(document, Run, label=f"run {run_id} of {self.path}")

    def _open(self) -> SqliteFile:
        return SqliteFile(self.path, tables=_TABLES, application_id=APPLICATION_ID, version=VERSION, noun="history")
