"""The verb ``measure``: steps of many models on the device at hand, into one file; or the kit for another machine."""

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
"""Of the summary; the file of measurements has its own."""
KIT_SCHEMA = "leadline.kit/1"
MINUTES = 20.0

Progress = Callable[[str, int, float], None]
"""Told what was measured last and how long a step took, how many points the file holds, and the seconds so far."""


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """What to measure, where to, and for how long; ``python`` has torch and is this interpreter by default."""

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
    """How a run ended: ``outcomes`` of this run's points, the points in the file, and those of the design left."""

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
    """Measure points into a file until the time is up, or go on with one that is there.

    Raises:
        MissingExtra: torch is not installed, and no other interpreter was named.
        InvalidInput: the file cannot be written, or holds another machine's rows; there is no such device; the other
            interpreter cannot be started or has no torch.
    """
    if request.python is None and find_spec("torch") is None:
        raise MissingExtra("leadline measure", "torch")
    if not request.point_s > 0:
        raise InvalidInput(f"--point-limit {request.point_s:g} is no time to measure in: give for example 90")
    asked = MeasureOptions(
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
        told = run_measurements(
            asked, lambda so_far, row: progress("  ".join(describe_row(row)), so_far.in_file, so_far.elapsed_s)
        )
    except KitError as error:
        raise InvalidInput(str(error)) from error
    return _file(told)


def write_kit(path: Path) -> int:
    """Write the kit as one file that runs wherever torch is, and return its size in bytes.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        return pack_kit(str(path))
    except KitError as error:
        raise InvalidInput(str(error)) from error


def _file(told: MeasureSummary) -> MeasuredFile:
    return MeasuredFile(
        told.path,
        told.device,
        dict(told.outcomes),
        told.in_file,
        told.left,
        told.skipped,
        told.elapsed_s,
        tuple(told.notes),
        summary_sentence(told),
    )
