"""Read the tables of measured data that a folder of the user's holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput, MissingExtra

Columns = dict[str, npt.NDArray[Any]]
"""Column → its n values: numbers, or texts as ``<U`` arrays (a missing text is empty, a missing number NaN)."""


def read_table(folder: Path, name: str, columns: Sequence[str] | None = None) -> Columns:
    """Return the columns of ``folder/name.parquet``, all or those named.

    Raises:
        InvalidInput: there is no such file, or it lacks a column.
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
    return {one: _values(table.column(one)) for one in columns or table.column_names}


def select_rows(columns: Columns, chosen: npt.NDArray[Any]) -> Columns:
    """Return the rows that ``chosen`` (a mask or positions) names, of every column."""
    return {name: values[chosen] for name, values in columns.items()}


def _values(column: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - pyarrow is untyped
    values = column.to_numpy()
    if values.dtype != object:
        found: npt.NDArray[Any] = values
        return found
    known = next((one for one in values if one is not None), "")
    if isinstance(known, str):
        return np.array(["" if one is None or one != one else str(one) for one in values])  # noqa: PLR0124 - NaN
    return np.array([np.nan if one is None else float(one) for one in values])
