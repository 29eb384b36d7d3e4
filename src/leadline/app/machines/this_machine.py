"""What the machine at hand is, as far as its system and its driver tell without measuring."""

import os
import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil

from leadline.app.settings import catalog_dir, require_writable, unwritable
from leadline.catalog.probes import Progress
from leadline.catalog.probes.local_device import cpu_model
from leadline.catalog.read import TomlCatalog
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput, MissingExtra, UnknownName
from leadline.core.hardware import Device, DeviceKind, Machine
from leadline.core.ports import Catalog
from leadline.core.processes import ProcessRunner
from leadline.execution.processes import run_process

NVIDIA_SMI_TIMEOUT_S = 20.0
"""How long nvidia-smi may take; with many GPUs it is some seconds."""


def describe_machine(run: ProcessRunner, catalog: Catalog) -> Machine:
    """Return the machine: host name, processor, CPUs, memory, GPUs, and its calibrated processor where there is one."""
    model = cpu_model()
    calibrated = [
        device.name
        for device in catalog.devices()
        if device.kind is DeviceKind.CPU and device.is_calibrated and device.name.startswith(model)
    ]
    return Machine(
        socket.gethostname().partition(".")[0],
        model,
        os.cpu_count() or 1,
        psutil.virtual_memory().total,
        _gpus(run),
        calibrated[0] if calibrated else "",
    )


def _gpus(run: ProcessRunner) -> tuple[str, ...]:
    """Return the names of the GPUs as the NVIDIA driver gives them; none where there is no driver."""
    try:
        answer = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout_s=NVIDIA_SMI_TIMEOUT_S)
    except InvalidInput:
        return ()
    if answer.returncode != 0 or answer.timed_out:
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


MINIMUM_BUDGET_S = 10.0
MAXIMUM_BUDGET_S = 3600.0
DEFAULT_BUDGET_S = {"cpu": 75.0, "cuda": 90.0}
"""Seconds that a sweep takes unless told otherwise."""
MEMORY_TOLERANCE = 0.15
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
        budget_s: seconds the sweep may take, at least 10; ``DEFAULT_BUDGET_S`` of the device's type by default.
        progress: told the kernel at hand, its number and how many there are.
        save: write the record to the user's catalog.
        folder: where records are kept; the user's data folder by default.

    Raises:
        MissingExtra: torch is not installed.
        InvalidInput: no such device here, or the budget is too small to measure anything.
        LeadlineError: the record cannot be written; said before anything is measured.
    """
    if budget_s is None:
        budget_s = DEFAULT_BUDGET_S.get(device_type, max(DEFAULT_BUDGET_S.values()))
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

    device = with_catalog_specs(sweep(device_type, budget_s=budget_s, runner=run_process, progress=progress))
    if save:
        save_device(device, kept)
    return device


def with_catalog_specs(measured: Device) -> Device:
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
    if abs(measured.memory_bytes / known.memory_bytes - 1) > MEMORY_TOLERANCE:
        return measured
    return replace(
        known, memory_bytes=measured.memory_bytes, calibration=measured.calibration,
        aliases=tuple(dict.fromkeys((*known.aliases, measured.name, *measured.aliases))),
    )  # fmt: skip


def save_device(device: Device, folder: Path) -> Path:
    """Write a device as JSON, whole or not at all, and return the file; ``LeadlineError`` if it cannot be written."""
    file = folder / f"{device.file_stem}.json"
    draft = file.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(to_json(device), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise unwritable(folder, error.strerror) from error
    return file
