"""Files that compiled libraries open themselves: databases of SQLite and HDF5 lie in the scratch tree, too."""

import functools
from typing import Any

from leadline.graphs.torch.worker.import_hooks import after_import
from leadline.graphs.torch.worker.scratch import path_in_scratch


def redirect_native_files() -> None:
    """Redirect the files of such libraries as writes by Python code are."""
    after_import("sqlite3", _redirect_sqlite)
    after_import("h5py", _redirect_hdf5)


def _redirect_sqlite(sqlite: Any) -> None:
    original = sqlite.connect

    @functools.wraps(original)
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        if database and not str(database).startswith((":", "file:")):
            database = path_in_scratch(database, writes=True)
        return original(database, *args, **kwargs)

    sqlite.connect = sqlite.dbapi2.connect = connect


def _redirect_hdf5(hdf5: Any) -> None:
    original = hdf5.File.__init__

    @functools.wraps(original)
    def create(file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if isinstance(name, (str, bytes)) or hasattr(name, "__fspath__"):
            name = path_in_scratch(name, writes=mode != "r")
        original(file, name, mode, *args, **kwargs)

    hdf5.File.__init__ = create
