"""The verb ``measure``: time steps of many models on this device, or write the kit for another machine."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.kit import KitError
from leadline.kit.command import summary_sentence
from leadline.kit.pack import pack_kit
from leadline.kit.run import MeasureOptions, MeasureSummary, describe_row, run_measurements

__all__ = ["KIT_SCHEMA", "SCHEMA", "MeasureOptions", "measure", "summary_sentence", "write_kit"]
"""The interfaces know no kit."""

SCHEMA = "leadline.measured/1"
"""Schema of the summary; the file of measurements has its own."""
KIT_SCHEMA = "leadline.kit/1"

Progress = Callable[[str, int, float], None]
"""Called with the last measurement in words, the points in the file, and the elapsed seconds."""


def measure(options: MeasureOptions, progress: Progress = lambda *_: None) -> MeasureSummary:
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
        return run_measurements(
            options, lambda status, row: progress("  ".join(describe_row(row)), status.in_file, status.elapsed_s)
        )
    except KitError as error:
        raise InvalidInput(str(error)) from error


def write_kit(path: Path) -> int:
    """Write the measuring kit as one file that runs wherever torch is, and return its size in bytes.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        return pack_kit(str(path))
    except KitError as error:
        raise InvalidInput(str(error)) from error
