"""The rows of a document as CSV or Parquet."""

import csv
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput, MissingExtra
from leadline.files.atomic import write_atomically
from leadline.interfaces import documents
from leadline.interfaces.json_schemas import LISTS

MAIN_LISTS = {
    **{name: key for name, (key, _) in LISTS.items()},
    documents.ESTIMATES: "estimates", documents.RECOMMENDATION: "options", documents.SYSTEM: "partitions",
    documents.MODELS: "models", documents.CAMPAIGN: "runs", documents.STORY: "told", documents.LOGS: "lines",
    "leadline.campaign-plan/1": "runs", "leadline.check/1": "places", "leadline.findings/1": "findings",
    "leadline.submitted/1": "jobs", documents.PIPELINES: "pipelines", documents.PIPELINE_SEASON: "runs",
    "leadline.pipeline-status/1": "stages", "leadline.pipeline-plan/1": "stages",
}  # fmt: skip
"""Document → the key of the list that its table shows; any other document is a single row."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of text that spreadsheets would run."""


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a document's table, nested values as columns such as ``elapsed_s.low``."""
    key = MAIN_LISTS.get(str(document.get("schema", "")))
    rows = document[key] if key else [document]
    return [_flat(row if isinstance(row, Mapping) else {"text": row}) for row in rows]


def write_table(document: Mapping[str, Any], file: Path) -> int:
    """Write the table of a document to a ``.csv`` or ``.parquet`` file, and return the number of its rows.

    Raises:
        InvalidInput: the file's name ends otherwise, or it cannot be written.
        MissingExtra: Parquet needs pyarrow.
    """
    rows = rows_of(document)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if file.suffix == ".csv":
        write_atomically(file, _csv(rows, columns))
    elif file.suffix == ".parquet":
        write_atomically(file, _parquet(rows, columns))
    else:
        raise InvalidInput(f"{file.name} must end with .csv or .parquet")
    return len(rows)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, Mapping):
            row |= _flat(part, f"{prefix}{name}.")
        elif isinstance(part, list | tuple):
            row[f"{prefix}{name}"] = to_json(part, indent=0)
        else:
            row[f"{prefix}{name}"] = part
    return row


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _harmless(value) for name, value in row.items()})
    return text.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _parquet(rows: list[dict[str, Any]], columns: list[str]) -> bytes:
    if find_spec("pyarrow") is None:
        raise MissingExtra("Parquet", "parquet")
    import pyarrow as pa  # noqa: PLC0415 - an optional extra
    import pyarrow.parquet as pq  # noqa: PLC0415

    arrays = {name: _same_kind([row.get(name) for row in rows]) for name in columns}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue())


def _same_kind(values: list[Any]) -> list[Any]:
    """Return the values of a column as one kind: text, if they are of several."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and float in kinds:
        return [None if value is None else float(value) for value in values]
    return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]
