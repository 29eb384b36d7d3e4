"""The verb ``measure``: time steps of many models on this device, or write the kit for another machine."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.kit import KitError
from leadline.kit.command import summary_sentence
from leadline.kit.pack import pack_kit
from leadline.kit.run import POINT_S, MeasureOptions, MeasureSummary, describe_row, run_measurements

SCHEMA = "leadline.measured/1"
"""Schema of the summary; the file of measurements has its own."""
KIT_SCHEMA = "leadline.kit/1"
MINUTES = 20.0

Progress = Callable[[str, int, float], None]
"""Called with the last measurement in words, the points in the file, and the elapsed seconds."""


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Measurement options: output file, time limit, and the interpreter that has torch (default: this one)."""

    out: Path
    minutes: float = MINUTES
    device: str = "auto"
    python: str | None = None
    quick: bool = False
    seed: int = 0
    compiled: bool = False
    ops: bool = True
    point_s: float = POINT_S


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """Summary of a measurement run.

    Attributes:
        outcomes: outcome → points of this run.
        in_file: points in the file.
        left: points of the design that are not measured yet.
    """

    path: str
    device: str
    outcomes: dict[str, int]
    in_file: int
    left: int
    skipped: int
    elapsed_s: float
    notes: tuple[str, ...]
    sentence: str


def measure(request: MeasureRequest, progress: Progress = lambda *_: None) -> MeasuredFile:
    """Measure points into a file until the time is up, or resume an existing file.

    Raises:
        MissingExtra: torch is not installed, and no other interpreter is named.
        InvalidInput: the file cannot be written or holds rows of another machine; the device does not exist; the other
            interpreter does not start or has no torch.
    """
    if request.python is None and find_spec("torch") is None:
        raise MissingExtra("leadline measure", "torch")
    if not request.point_s > 0:
        raise InvalidInput(f"--point-limit is {request.point_s:g}, but it must be above 0, such as 90")
    options = MeasureOptions(
        out=str(request.out),
        minutes=request.minutes,
        device=request.device,
        python=request.python or sys.executable,
        quick=request.quick,
        seed=request.seed,
        compiled=request.compiled,
        ops=request.ops,
        point_s=request.point_s,
    )
    try:
        status = run_measurements(
            options, lambda status, row: progress("  ".join(describe_row(row)), status.in_file, status.elapsed_s)
        )
    except KitError as error:
        raise InvalidInput(str(error)) from error
    return _summarize(status)


def write_kit(path: Path) -> int:
    """Write the measuring kit as one file that runs wherever torch is, and return its size in bytes.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        return pack_kit(str(path))
    except KitError as error:
        raise InvalidInput(str(error)) from error


def _summarize(status: MeasureSummary) -> MeasuredFile:
    return MeasuredFile(
        status.path,
        status.device,
        dict(status.outcomes),
        status.in_file,
        status.left,
        status.skipped,
        status.elapsed_s,
        tuple(status.notes),
        summary_sentence(status),
    )
