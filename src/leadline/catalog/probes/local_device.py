"""The name of the processor at hand."""

from pathlib import Path

import psutil
import torch

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Confidence, Device, DeviceKind


def cpu_model() -> str:
    """Return the processor's name as Linux gives it, else the machine's architecture."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    import platform  # noqa: PLC0415 - the fallback where there is no /proc

    return platform.processor() or platform.machine()


CPU_VENDORS = ("AMD", "Intel", "ARM", "IBM")


def describe_local_device(device_type: str) -> Device:
    """Return the device at hand without any measured figure.

    Raises:
        InvalidInput: ``cuda`` is asked for and there is none, or the type is neither ``cpu`` nor ``cuda``.
    """
    if device_type == "cpu":
        cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
        model = cpu_model()
        known = (maker for maker in CPU_VENDORS if maker.lower() in model.lower())
        vendor = next(known, "unknown")
        plural = "s" if cores > 1 else ""
        name = f"{model} ({cores} core{plural})"
        memory = psutil.virtual_memory().total
        return Device(name, vendor, DeviceKind.CPU, memory_bytes=memory, compute_units=cores,
                      aliases=("local", "cpu"), confidence=Confidence.MEASURED, source="calibrate")  # fmt: skip
    if device_type != "cuda":
        raise InvalidInput(f"--device {device_type} is not known: give cpu or cuda")
    if not torch.cuda.is_available():
        raise InvalidInput("--device cuda cannot be measured: torch sees no NVIDIA GPU here; give --device cpu")
    properties = torch.cuda.get_device_properties(0)
    return Device(properties.name, "NVIDIA", DeviceKind.GPU, memory_bytes=properties.total_memory,
                  compute_units=properties.multi_processor_count, aliases=("local",),
                  confidence=Confidence.MEASURED, source="calibrate")  # fmt: skip
