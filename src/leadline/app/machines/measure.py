"""The verb ``measure``: time steps of many models on this device, or write the kit for another machine."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.frozen import Frozen
from leadline.kit import KitError
from leadline.kit.command import summary_sentence
from leadline.kit.pack import pack_kit
from leadline.kit.run import MeasureOptions as MeasureOptions  # noqa: PLC0414 - the interfaces know no kit
from leadline.kit.run import describe_row, run_measurements

SCHEMA = "leadline.measured/1"
"""Schema of the summary; the file of measurements has its own."""
KIT_SCHEMA = "leadline.kit/1"

Progress = Callable[[str, int, float], None]
"""Called with the last measurement in words, the points in the file, and the elapsed seconds."""


class MeasuredFile(Frozen):
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


def measure(options: MeasureOptions, progress: Progress = lambda *_: None) -> MeasuredFile:
    """Measure points into a file until the time is up, or resume an existing file.

    Raises:
        MissingExtra: torch is not installed, and no other interpreter is named.
        InvalidInput: the file cannot be written or holds rows of another machine; the device does not exist; the other
            interpreter does not start or has no torch.
    """
    if options.python == sys.executable and find_spec("torch") is None:
        raise MissingExtra("leadline measure", "torch")
    if not options.point_s > 0:
        raise InvalidInput(f"--point-limit is {options.point_s:g}, but it must be above 0, such as 90")
    try:
        status = run_measurements(
            options, lambda status, row: progress("  ".join(describe_row(row)), status.in_file, status.elapsed_s)
        )
    except KitError as error:
        raise InvalidInput(str(error)) from error
    return MeasuredFile(
        status.path, status.device, dict(status.outcomes), status.in_file, status.left, status.skipped,
        status.elapsed_s, tuple(status.notes), summary_sentence(status),
    )  # fmt: skip


def write_kit(path: Path) -> int:
    """Write the measuring kit as one file that runs wherever torch is, and return its size in bytes.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        return pack_kit(str(path))
    except KitError as error:
        raise InvalidInput(str(error)) from error
