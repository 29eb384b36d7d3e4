"""Read the tables of measured data in a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput, MissingExtra

Columns = dict[str, npt.NDArray[Any]]
"""Column → its n values: numbers, or texts as ``<U`` arrays (a missing text is empty, a missing number NaN)."""


def read_table(folder: Path, name: str, columns: Sequence[str] | None = None) -> Columns:
    """Return the columns of ``folder/name.parquet``, all or the named ones.

    Raises:
        InvalidInput: There is no such file, or it lacks a column.
        MissingExtra: pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415 - only benches of public data need it
    except ModuleNotFoundError as error:
        raise MissingExtra("reading measured data", "bench") from error
    path = folder / f"{name}.parquet"
    if not path.is_file():
        raise InvalidInput(f"{folder} holds no {path.name}: give the folder of the measured data")
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path} cannot be read ({str(error).splitlines()[0]}): fetch it again") from error
    if missing := set(columns or ()) - set(table.column_names):
        raise InvalidInput(f"{path} has no column {', '.join(sorted(missing))}: fetch the version that has it")
    return {column: _values(table.column(column)) for column in columns or table.column_names}


def select_rows(columns: Columns, chosen: npt.NDArray[Any]) -> Columns:
    """Return the rows ``chosen`` (a mask or positions) of every column."""
    return {name: values[chosen] for name, values in columns.items()}


def _values(column: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - pyarrow is untyped
    values = column.to_numpy()
    if values.dtype != object:
        numbers: npt.NDArray[Any] = values
        return numbers
    first = next((cell for cell in values if cell is not None), "")
    if isinstance(first, str):
        return np.array(["" if cell is None or cell != cell else str(cell) for cell in values])  # noqa: PLR0124 - NaN
    return np.array([np.nan if cell is None else float(cell) for cell in values])
