"""Measure the device at hand and keep its record in the user's catalog."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from leadline.app.settings import catalog_dir, require_writable, unwritable
from leadline.catalog.probes import Progress
from leadline.catalog.read import TomlCatalog
from leadline.core.documents import dump
from leadline.core.errors import InvalidInput, MissingExtra, UnknownName
from leadline.core.hardware import Device, DeviceKind
from leadline.execution.processes import run_process

MINIMUM_BUDGET_S = 10.0
MAXIMUM_BUDGET_S = 3600.0
USUAL_BUDGET_S = {"cpu": 75.0, "cuda": 90.0}
"""Seconds that a sweep takes unless told otherwise."""
SAME_MEMORY = 0.15
"""Drivers keep up to this share of a board's memory for themselves (error correction, the display)."""


def calibrate(
    *,
    device_type: str,
    budget_s: float | None = None,
    progress: Progress,
    save: bool = True,
    folder: Path | None = None,
) -> Device:
    """Run the micro-benchmark sweep on ``cpu`` or ``cuda`` and, unless told otherwise, save the device's record.

    Args:
        device_type: ``cpu`` or ``cuda``.
        budget_s: seconds the sweep may take, at least 10; ``USUAL_BUDGET_S`` of the device's type by default.
        progress: told the kernel at hand, its number and how many there are.
        save: write the record to the user's catalog.
        folder: where records are kept; the user's data folder by default.

    Raises:
        MissingExtra: torch is not installed.
        InvalidInput: no such device here, or the budget is too small to measure anything.
        LeadlineError: the record cannot be written; said before anything is measured.
    """
    if budget_s is None:
        budget_s = USUAL_BUDGET_S.get(device_type, max(USUAL_BUDGET_S.values()))
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

    device = catalogued(sweep(device_type, budget_s=budget_s, runner=run_process, progress=progress))
    if save:
        save_record(device, kept)
    return device


def catalogued(measured: Device) -> Device:
    """Return a measured GPU by the name and the maker's figures that the catalog has of it, or else as it was measured.

    Other estimators know it by these figures. A part of a board that has the board's name has less memory, and is not
    taken for it.
    """
    if measured.kind is not DeviceKind.GPU:
        return measured
    try:
        known = TomlCatalog(None).device(measured.name)
    except UnknownName:
        return measured
    if not measured.memory_bytes or not known.memory_bytes:
        return measured
    if abs(measured.memory_bytes / known.memory_bytes - 1) > SAME_MEMORY:
        return measured
    return replace(
        known, memory_bytes=measured.memory_bytes, calibration=measured.calibration,
        aliases=tuple(dict.fromkeys((*known.aliases, measured.name, *measured.aliases))),
    )  # fmt: skip


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
