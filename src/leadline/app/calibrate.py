"""Measure the device at hand and keep its record in the user's catalog."""

from importlib.util import find_spec
from pathlib import Path

from leadline.app.settings import catalog_dir, require_writable, unwritable
from leadline.catalog.probes import Progress
from leadline.core.documents import dump
from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.hardware import Device
from leadline.execution.processes import run_process

MINIMUM_BUDGET_S = 10.0
MAXIMUM_BUDGET_S = 3600.0


def calibrate(
    *, device_type: str, budget_s: float, progress: Progress, save: bool = True, folder: Path | None = None
) -> Device:
    """Run the micro-benchmark sweep on ``cpu`` or ``cuda`` and, unless told otherwise, save the device's record.

    Args:
        device_type: ``cpu`` or ``cuda``.
        budget_s: seconds the sweep may take, at least 10.
        progress: told the kernel at hand, its number and how many there are.
        save: write the record to the user's catalog.
        folder: where records are kept; the user's data folder by default.

    Raises:
        MissingExtra: torch is not installed.
        InvalidInput: no such device here, or the budget is too small to measure anything.
        LeadlineError: the record cannot be written; said before anything is measured.
    """
    if not budget_s >= MINIMUM_BUDGET_S:
        raise InvalidInput(f"--budget {budget_s:g} is too short to measure anything: give at least 10 seconds")
    if budget_s > MAXIMUM_BUDGET_S:
        raise InvalidInput(f"--budget {budget_s:g} is more than an hour, and a sweep is done in minutes: give less")
    if find_spec("torch") is None:
        raise MissingExtra("leadline calibrate", "torch")
    kept = folder or catalog_dir() / "devices"
    if save:
        require_writable(kept)
    from leadline.catalog.probes.sweep import sweep  # noqa: PLC0415 - torch loads only when a device is measured

    device = sweep(device_type, budget_s=budget_s, runner=run_process, progress=progress)
    if save:
        save_record(device, kept)
    return device


def save_record(device: Device, folder: Path) -> Path:
    """Write a device as JSON, whole or not at all, and return the file; ``LeadlineError`` if it cannot be written."""
    file = folder / f"{device.file_stem}.json"
    draft = file.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(dump(device), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise unwritable(folder, error.strerror) from error
    return file
