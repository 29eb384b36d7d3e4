"""Files that compiled libraries open themselves: those of SQLite, HDF5 and Arrow lie in the scratch tree, too."""

import functools
from typing import Any, Callable

from leadline.graphs.torch.worker.import_hooks import after_import

Place = Callable[[Any, bool], Any]
"""Returns where a file is, from its path and whether it is opened for writing."""


def redirect_native_files(place: Place) -> None:
    """Redirect the files of such libraries as writes by Python code are."""
    after_import("sqlite3", functools.partial(_redirect_sqlite, place))
    after_import("h5py", functools.partial(_redirect_hdf5, place))
    after_import("pyarrow", functools.partial(_redirect_arrow, place))


def _redirect_sqlite(place: Place, sqlite: Any) -> None:
    original = sqlite.connect

    @functools.wraps(original)
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        if database and not str(database).startswith((":", "file:")):
            database = place(database, True)
        return original(database, *args, **kwargs)

    sqlite.connect = sqlite.dbapi2.connect = connect


def _redirect_hdf5(place: Place, hdf5: Any) -> None:
    original = hdf5.File.__init__

    @functools.wraps(original)
    def create(file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if isinstance(name, (str, bytes)) or hasattr(name, "__fspath__"):
            name = place(name, mode != "r")
        original(file, name, mode, *args, **kwargs)

    hdf5.File.__init__ = create


def _redirect_arrow(place: Place, arrow: Any) -> None:
    for name in ("memory_map", "OSFile"):
        setattr(arrow, name, functools.partial(_open_arrow, place, getattr(arrow, name)))


def _open_arrow(place: Place, original: Any, path: Any, mode: str = "r", **options: Any) -> Any:
    return original(place(path, "r" not in mode or "+" in mode), mode, **options)
