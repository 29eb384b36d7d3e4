"""Steps that a user measured: rows of a table that name workloads, or points of a file of ``leadline measure``."""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from leadline.app.workload_options import WorkloadOptions
from leadline.app.workloads import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Precision, Workload
from leadline.kit.specs import SPECS
from leadline.training.measured import ENDING, Ending, MeasuredPoint, read_measurements

SUBJECT, SECONDS = "workload", "step_s"
"""Columns that a table must have; the others are options of ``leadline estimate``."""
ZOO = """\
import torch
from leadline.kit.zoo import build


def model():
    return build({name!r}, {size}){layout}
"""
LAYOUT = ".to(memory_format=torch.channels_last)"


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step: the workload, its seconds, where the row stands, and what steps at other batches share."""

    workload: Workload
    step_s: float
    where: str
    model: str


@contextmanager
def measured_steps(path: Path, most: int) -> Iterator[tuple[list[MeasuredStep], str | None]]:
    """Yield at most ``most`` steps of a file, and the device it names (a table names none).

    The models of a measured file are written as Python files that last as long as the context.

    Raises:
        InvalidInput: the file cannot be read, or a row cannot be used; with its line.
    """
    if not path.name.endswith(ENDING):
        yield _table(path)[:most], None
        return
    found = read_measurements(path)
    points = [one for one in found.points if one.outcome is Ending.OK and _traceable(one)][:most]
    if not points:
        raise InvalidInput(f"{path} holds no eager step of training or inference that ended well: measure longer")
    with TemporaryDirectory(prefix="leadline-adapt-") as folder:
        yield [_of_point(one, Path(folder), path) for one in points], found.device.name


def _table(path: Path) -> list[MeasuredStep]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or []
            rows = [(f"line {reader.line_num} of {path}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(
            f"{path} cannot be read ({error}): give a CSV table, or what leadline measure wrote"
        ) from error
    if missing := [one for one in (SUBJECT, SECONDS) if one not in columns]:
        raise InvalidInput(
            f"{path} has no column {missing[0]}: give {SUBJECT}, {SECONDS} and options of leadline estimate, such as "
            f"{SUBJECT},batch,precision,{SECONDS}"
        )
    return [_of_row(row, where) for where, row in rows]


def _of_row(row: Mapping[str, str | None], where: str) -> MeasuredStep:
    given = {name: value.strip() for name, value in row.items() if name and value and value.strip()}
    if SUBJECT not in given:
        raise InvalidInput(f"{where} names no {SUBJECT}: give what you would give leadline estimate")
    subject, seconds = given.pop(SUBJECT), _seconds(given.pop(SECONDS, ""), where)
    raw: dict[str, object] = {name.replace("-", "_"): value for name, value in given.items()}
    if "input" in raw:
        raw["input"] = given["input"].split()
    try:
        options = msgspec.convert(raw, WorkloadOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where} cannot be used: {error}") from error
    workload = read_workload([subject], options)
    if workload.gpus != 1:
        raise InvalidInput(f"{where} ran on {workload.gpus} GPUs: an estimator is adapted to steps of one")
    return MeasuredStep(workload, seconds, where, subject)


def _seconds(text: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InvalidInput(f"{where} has the {SECONDS} {text!r}: give the seconds of one step, such as 0.125")
    return found


def _traceable(one: MeasuredPoint) -> bool:
    """Tell whether the point is an eager step that a trace can repeat, of a model that this kit has."""
    return one.point.phase in tuple(Phase) and not one.point.compiled and one.point.model in SPECS


def _of_point(one: MeasuredPoint, folder: Path, path: Path) -> MeasuredStep:
    point = one.point
    name = f"{point.model}-{point.size}{'-last' if point.channels_last else ''}".replace(":", "-").replace(".", "-")
    file = folder / f"{name}.py"
    file.write_text(ZOO.format(name=point.model, size=point.size, layout=LAYOUT if point.channels_last else ""))
    kind = SPECS[point.model].kind
    sizes = {"image": (3, point.size, point.size)}.get(kind, (point.size,))
    workload = Workload(
        ModelSource(ModelKind.FUNCTION, f"{file}:model"),
        phase=Phase(point.phase),
        batch=point.batch,
        inputs=(InputShape((point.batch, *sizes), "int64" if kind == "tokens" else "float32"),),
        precision=Precision(point.precision),
        optimizer=Optimizer(point.optimizer) if point.optimizer else None,
        checkpointing=point.checkpointing,
        name=one.key,
    )
    if one.step_s is None:
        raise InvalidInput(f"the point {one.key} of {path} has no time of a step: delete its line")
    return MeasuredStep(workload, one.step_s, f"the point {one.key} of {path.name}", f"{point.model} {point.size}")
