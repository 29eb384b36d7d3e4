"""What the machine at hand is, as far as its system and its driver tell without measuring."""

import os
import socket

import psutil

from leadline.catalog.probes.processor import cpu_model
from leadline.core.errors import InvalidInput
from leadline.core.hardware import DeviceKind, Machine
from leadline.core.ports import Catalog, ProcessRunner

DRIVER_S = 20.0
"""How long nvidia-smi may take; with many GPUs it is some seconds."""


def this_machine(run: ProcessRunner, catalog: Catalog) -> Machine:
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
        answer = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout_s=DRIVER_S)
    except InvalidInput:
        return ()
    if answer.returncode != 0 or answer.timed_out:
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())
