"""Describe this machine, and the verb ``calibrate``: measure its device and save the record."""

import os
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil

from leadline.app.settings import cache_dir, catalog_dir, refuse_unwritable, require_writable
from leadline.catalog.probes import Progress
from leadline.catalog.read import TomlCatalog
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput, MissingExtra, UnknownName
from leadline.core.hardware import Device, DeviceKind, KernelTiming, Machine
from leadline.core.ports import Catalog
from leadline.core.processes import ProcessRunner
from leadline.execution.processes import run_process
from leadline.files.atomic import write_atomically
from leadline.kit import KitError
from leadline.kit.collectives import sweep_collectives
from leadline.kit.processor import cpu_name

NVIDIA_SMI_TIMEOUT_S = 20.0
"""Timeout of ``nvidia-smi``; with many GPUs it takes several seconds."""


def describe_machine(run: ProcessRunner, catalog: Catalog) -> Machine:
    """Return host name, processor, CPUs, memory, GPUs, and the calibrated processor if there is one."""
    model = cpu_name()
    calibrated = [
        device.name
        for device in catalog.devices()
        if device.kind is DeviceKind.CPU and device.is_calibrated and device.name.startswith(model)
    ]
    return Machine(
        socket.gethostname().partition(".")[0], model, os.cpu_count() or 1, psutil.virtual_memory().total,
        query_gpus(run, "name"), calibrated[0] if calibrated else "",
    )  # fmt: skip


def query_gpus(run: ProcessRunner, name: str) -> tuple[str, ...]:
    """Return a property of each GPU, such as ``name``, as the NVIDIA driver reports it; empty without a driver."""
    query = ["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader,nounits"]
    try:
        answer = run(query, timeout_s=NVIDIA_SMI_TIMEOUT_S)
    except InvalidInput:
        return ()
    if answer.returncode != 0 or answer.timed_out:
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


MINIMUM_BUDGET_S = 10.0
MAXIMUM_BUDGET_S = 3600.0
DEFAULT_BUDGET_S = {"cpu": 75.0, "cuda": 90.0}
"""Default time limit of a sweep, by type of device."""
MEMORY_TOLERANCE = 0.15
"""Drivers reserve up to this share of a board's memory (error correction, the display)."""


def calibrate(
    *, device_type: str, budget_s: float | None = None, progress: Progress, save: bool = True,
    folder: Path | None = None,
) -> Device:  # fmt: skip
    """Run the micro-benchmark sweep on ``cpu`` or ``cuda`` and, by default, save the device's record.

    Args:
        device_type: ``cpu`` or ``cuda``.
        budget_s: time limit of the sweep, at least 10 s; ``DEFAULT_BUDGET_S`` by default.
        progress: called with the kernel, its number and the number of kernels.
        save: write the record to the user's catalog.
        folder: folder of the records; the user's data folder by default.

    Raises:
        MissingExtra: torch is not installed.
        InvalidInput: the device does not exist, or the budget is out of range.
        LeadlineError: the record cannot be written; raised before the sweep starts.
    """
    if budget_s is None:
        budget_s = DEFAULT_BUDGET_S.get(device_type, max(DEFAULT_BUDGET_S.values()))
    if not budget_s >= MINIMUM_BUDGET_S:
        raise InvalidInput(f"--budget is {budget_s:g}, but it must be at least 10 seconds")
    if budget_s > MAXIMUM_BUDGET_S:
        raise InvalidInput(f"--budget is {budget_s:g}, but it must be at most 3600 seconds: a sweep takes minutes")
    if find_spec("torch") is None:
        raise MissingExtra("leadline calibrate", "torch")
    kept = folder or catalog_dir() / "devices"
    if save:
        require_writable(kept)
    from leadline.catalog.probes.sweep import sweep  # noqa: PLC0415 - torch loads on use

    device = with_catalog_specs(sweep(device_type, budget_s=budget_s, runner=run_process, progress=progress))
    if device.calibration is not None and device_type == "cuda":
        device = replace(device, calibration=replace(device.calibration, collectives=_time_collectives(device_type)))
    if save:
        save_device(device, kept)
    return device


def _time_collectives(device_type: str, processes: int = 0, *, quick: bool = False) -> tuple[KernelTiming, ...]:
    """Return the times of collectives among ``processes``, by default among all GPUs here; empty for one.

    Raises:
        InvalidInput: the processes failed; the message has their last line.
    """
    try:
        rows = sweep_collectives(sys.executable, device_type, processes, quick=quick)
    except KitError as error:
        raise InvalidInput(str(error)) from error
    return tuple(KernelTiming(**row) for row in rows)


def with_catalog_specs(device: Device) -> Device:
    """Return a measured GPU with the catalog's name and specs if the catalog has it, else unchanged.

    The estimators know a device by these specs. A slice of a board (MIG), which has its name but less memory, is not
    matched.
    """
    if device.kind is not DeviceKind.GPU:
        return device
    try:
        cataloged = TomlCatalog(None, cache_dir()).device(device.name)
    except UnknownName:
        return device
    memory, whole = device.memory_bytes, cataloged.memory_bytes
    if not memory or not whole or abs(memory / whole - 1) > MEMORY_TOLERANCE:
        return device
    return replace(
        cataloged, memory_bytes=memory, calibration=device.calibration,
        aliases=tuple(dict.fromkeys((*cataloged.aliases, device.name, *device.aliases))),
    )  # fmt: skip


def save_device(device: Device, folder: Path) -> Path:
    """Write a device as JSON atomically and return the file; ``LeadlineError`` if that fails."""
    file = folder / f"{device.file_stem}.json"
    with refuse_unwritable(folder):
        write_atomically(file, to_json(device))
    return file
