"""Read runs from tables: exports of ``leadline history export``, any CSV of runs, or a folder of them."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from leadline.core.documents import explain_read_error
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.runs import Scale, Value
from leadline.files.read import read_input
from leadline.history.export import REQUESTED
from leadline.training.records import (
    COLUMNS,
    DeviceOf,
    RunRecord,
    base_unit,
    in_base_unit,
    node_features,
    number_or_text,
    unit_of,
)

BOOKKEEPING, METRIC_COLUMNS = (frozenset(COLUMNS[name]) for name in ("bookkeeping", "metrics"))
MOST_BYTES = 2**28
"""Size of the largest table, unpacked: its rows take several times as much memory."""
TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


def read_tables(
    path: Path,
    *,
    targets: Sequence[str] = ("elapsed_s",),
    without: Sequence[str] = (),
    device_of: DeviceOf = lambda _: None,
) -> tuple[RunRecord, ...]:
    """Read a table, or every table of a folder, without some columns; ``targets`` are measured columns.

    Raises:
        InvalidInput: a file cannot be read, or has a wrong row; the message names the line.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(TABLE_SUFFIXES) and file.name[0] != ".")
    if not files:
        raise InvalidInput(f"the folder {path} holds no table: put {', '.join(TABLE_SUFFIXES[:2])} files of runs there")
    tables = [_read_table(file, tuple(targets), frozenset(without), device_of) for file in files]
    return tuple(record for table in tables for record in table)


def _read_table(
    path: Path, targets: tuple[str, ...], without: frozenset[str], device_of: DeviceOf
) -> tuple[RunRecord, ...]:
    columns, rows = _parse(path)
    exported = any(name.startswith("measured_") for name in columns)
    for target in targets:
        if (f"measured_{target}" if exported else target) in columns:
            continue
        measured = [name.removeprefix("measured_") for name in columns if name.startswith("measured_")]
        available = ", ".join(measured if exported else columns)
        raise InvalidInput(f"{path.name} has no column {target!r} to learn: name one with --target; it has {available}")
    if unknown := without - set(columns) - {name.removeprefix("parameter_") for name in columns}:
        raise InvalidInput(f"{path.name} has no column {min(unknown)!r} to leave out: it has {', '.join(columns)}")
    table = _RunTable(path, columns, rows, targets, without)
    return table.exported(device_of) if exported else table.plain()


def _parse(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the column names, and each row with its line number."""
    text = _text(path)
    if not text.strip():
        raise InvalidInput(f"{path} is empty: it needs a line of column names and one line a run")
    delimiter = max(",;\t", key=text.lstrip().splitlines()[0].count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        columns = [name.strip() for name in next(reader)]
        lines = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise InvalidInput(
            f"line {reader.line_num} of {path.name} cannot be read ({error}): correct or delete it"
        ) from error
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise InvalidInput(f"{path.name} has the column {twice[0]!r} twice: rename or delete one")
    if "" in columns:
        raise InvalidInput(f"column {columns.index('') + 1} of {path.name} has no name: give it one or delete it")
    rows = []
    for number, cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            raise InvalidInput(
                f"line {number} of {path.name} has {len(cells)} cells where the first line names "
                f"{len(columns)} columns: complete or delete it"
            )
        rows.append((number, dict(zip(columns, (cell.strip() for cell in cells), strict=True))))
    if not rows:
        raise InvalidInput(f"{path.name} names columns and has no run below them")
    return columns, rows


def _text(path: Path) -> str:
    content = read_input(path)
    try:
        if path.name.endswith(".gz"):
            with gzip.open(io.BytesIO(content)) as stream:
                content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InvalidInput(f"{path} cannot be read: it has more than {MOST_BYTES:,} bytes; split it")
        return content.decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(f"{path} is cut short or not compressed by gzip: copy it again ({error})") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error


@dataclass(slots=True)
class _RunTable:
    """The rows of one file, each with its line number; ``at`` is the place of a row."""

    path: Path
    columns: list[str]
    rows: list[tuple[int, dict[str, str]]]
    targets: tuple[str, ...]
    without: frozenset[str]
    units: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[int, Value]] = field(default_factory=dict)
    """Column to the values of its rows, without empty cells."""

    def exported(self, device_of: DeviceOf) -> tuple[RunRecord, ...]:
        """Read the columns of ``leadline history export``."""
        parameters = [name for name in self.columns if name.startswith("parameter_") and self._is_kept(name)]
        measured = [name for name in self.columns if name.startswith("measured_")]
        requested = [name for name in self.columns if name.startswith("asked_")]
        nodes = [name for name in self.columns if name.startswith("node_") and self._is_kept(name)]
        self.values = {name: self._column(name) for name in (*parameters, *measured, *requested)}
        limits = {"elapsed_s": "asked_walltime_s", "host_memory_bytes": "asked_memory_bytes_per_node"}
        return tuple(
            self._record(
                at,
                self._cells(at, {name.removeprefix("parameter_"): name for name in parameters}),
                self._cells(at, {name.removeprefix("measured_"): name for name in measured}),
                features=self._resources(at) | self._node(at, nodes, device_of),
                limits=self._cells(at, limits),
            )
            for at in range(len(self.rows))
        )

    def plain(self) -> tuple[RunRecord, ...]:
        """Read any table: targets and ``METRIC_COLUMNS`` are measured, the other columns are parameters."""
        metrics = [name for name in self.columns if name in self.targets or name in METRIC_COLUMNS]
        named = [name for name in self.columns if not name.startswith(("predicted_", "asked_"))]
        parameters = [name for name in named if name not in BOOKKEEPING | {*metrics} and self._is_kept(name)]
        self.values = {name: self._column(name) for name in (*parameters, *metrics)}
        for at, target in product(range(len(self.rows)), self.targets):
            if at not in self.values[target] and self._state(at) is JobState.COMPLETED:
                raise InvalidInput(
                    f"{self._at(at)}: {target} is empty: fill it in, or give the run the state that says why, as FAILED"
                )
        kept, measured = {name: name for name in parameters}, {name: name for name in metrics}
        rows = range(len(self.rows))
        return tuple(self._record(at, self._cells(at, kept), self._cells(at, measured), {}, {}) for at in rows)

    def _cells(self, at: int, columns: Mapping[str, str]) -> dict[str, Value]:
        """Return name -> value of a row, from name -> column; without empty cells and missing columns."""
        values = {name: self.values.get(column, {}).get(at) for name, column in columns.items()}
        return {name: value for name, value in values.items() if value is not None}

    def _is_kept(self, name: str) -> bool:
        return not self.without & {name, name.removeprefix("parameter_")}

    def _record(
        self, at: int, parameters: dict[str, Value], metrics: dict[str, Value], features: dict[str, Value],
        limits: dict[str, Value],
    ) -> RunRecord:  # fmt: skip
        line, row = self.rows[at]
        name = next((row[key] for key in ("campaign", "application", "name") if row.get(key)), "")
        return RunRecord(
            id=row.get("id", ""),
            label=f"line {line} of {self.path.name}",
            application=name or self.path.name.partition(".")[0],
            state=self._state(at),
            scale=self._scale(at),
            features={**features, **parameters},
            metrics=self._numbers(at, metrics),
            parameters=frozenset(parameters),
            started_at=row.get("started_at", ""),
            limits=self._numbers(at, limits),
            units=self.units,
        )

    def _resources(self, at: int) -> dict[str, Value]:
        requested = self._cells(at, {name: f"asked_{name}" for name in REQUESTED})
        nodes = requested.get("nodes") or 1
        factors = {
            "cores": (requested.get("cores_per_task"), nodes, requested.get("tasks_per_node") or 1),
            "gpus": (requested.get("gpus_per_node"), nodes),
            "memory_bytes": (requested.get("memory_bytes_per_node"), nodes),
        }
        resources: dict[str, Value] = {"nodes": nodes}
        for name, parts in factors.items():
            numbers = [part for part in parts if isinstance(part, int | float)]
            if len(numbers) == len(parts):
                resources[name] = math.prod(numbers)
        if partition := self.rows[at][1].get("partition"):
            resources["partition"] = partition
        return resources

    def _node(self, at: int, columns: list[str], device_of: DeviceOf) -> dict[str, Value]:
        row = self.rows[at][1]
        tags = {name: row[name] for name in columns if row[name]}
        if row.get("device"):
            tags["node_gpu"] = row["device"]
        if row.get("asked_gpus_per_node", "0") in ("", "0"):
            tags = {name: value for name, value in tags.items() if not name.startswith("node_gpu")}
        return node_features(tags, device_of)

    def _state(self, at: int) -> JobState:
        row = self.rows[at][1]
        # sacct appends to states: "CANCELLED by 1000", "CANCELLED+".
        state = row.get("state", "").upper().split(" ")[0].rstrip("+")
        if state:
            try:
                return JobState(state)
            except ValueError as error:
                final = ", ".join(state.value for state in JobState if state.final)
                raise InvalidInput(f"{self._at(at)}: state is {row['state']!r}; write one of {final}") from error
        if row.get("exit_code", "0") not in ("", "0"):
            return JobState.FAILED
        return JobState.TIMEOUT if row.get("censored", "").casefold() in ("true", "1", "yes") else JobState.COMPLETED

    def _scale(self, at: int) -> Scale:
        scale = self.rows[at][1].get("scale", "")
        try:
            return Scale(scale.upper()) if scale else Scale.FULL_SCALE
        except ValueError as error:
            fix = "write SD (scaled down) or FS (full scale)"
            raise InvalidInput(f"{self._at(at)}: scale is {scale!r}; {fix}") from error

    def _numbers(self, at: int, cells: Mapping[str, Value]) -> dict[str, float]:
        for name, value in cells.items():
            if isinstance(value, str):
                raise InvalidInput(f"{self._at(at)}: {name} is {value!r}, which is not a number")
        return {name: float(value) for name, value in cells.items()}

    def _column(self, name: str) -> dict[int, Value]:
        """Return the values of a column by row, without empty cells."""
        cells = {at: row[name] for at, (_, row) in enumerate(self.rows) if row[name]}
        if not cells:
            if name.startswith(("measured_", "asked_")):
                return {}
            raise InvalidInput(
                f"column {name!r} of {self.path.name} is empty in every row: fill it in, or leave it out with "
                f"--without {name}"
            )
        values = {at: number_or_text(cell) for at, cell in cells.items()}
        for at, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidInput(f"{self._at(at)}: {name} is {cells[at]!r}, not a number: correct or delete it")
        texts = [at for at, value in values.items() if isinstance(value, str)]
        if not texts:
            return values
        return self._with_units(name, cells) or self._texts(name, cells, texts)

    def _with_units(self, name: str, cells: dict[int, str]) -> dict[int, Value]:
        """Read a column whose cells all have one unit; empty for a column without units."""
        units: dict[str, int] = {}
        for at, cell in cells.items():
            unit = unit_of(cell)
            if unit is None and isinstance(number_or_text(cell), str):
                return {}
            units.setdefault(unit or "", at)
        if len(units) > 1:
            first, second = list(units.values())[:2]
            raise InvalidInput(
                f"column {name!r} of {self.path.name} mixes units: {cells[first]!r} in line {self.rows[first][0]} and "
                f"{cells[second]!r} in line {self.rows[second][0]}; write all in one unit"
            )
        self.units[name] = base_unit(next(iter(units)))
        return {at: in_base_unit(cell) for at, cell in cells.items()}

    def _texts(self, name: str, cells: dict[int, str], texts: list[int]) -> dict[int, Value]:
        """Read a column of categories; a few texts among numbers are a mistake."""
        numbers = [at for at in cells if at not in set(texts)]
        if numbers and len(numbers) > len(texts):
            raise InvalidInput(
                f"{self._at(texts[0])}: {name} is {cells[texts[0]]!r} where other rows have numbers: correct it, or "
                f"leave the column out with --without {name}"
            )
        return dict(cells)

    def _at(self, at: int) -> str:
        return f"line {self.rows[at][0]} of {self.path.name}"
