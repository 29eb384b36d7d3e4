"""The local device as the operating system and torch describe it."""

from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Confidence, Device, DeviceKind

CPU_VENDORS = ("AMD", "Intel", "ARM", "IBM")


def cpu_model() -> str:
    """Return the processor's name in /proc/cpuinfo, else the machine's architecture."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    import platform  # noqa: PLC0415 - the fallback where there is no /proc

    return platform.processor() or platform.machine()


def describe_local_device(device_type: str) -> Device:
    """Return the local device without measured numbers.

    Raises:
        InvalidInput: there is no ``cuda`` device, or the type is neither ``cpu`` nor ``cuda``.
    """
    if device_type == "cpu":
        return _describe_cpu()
    if device_type != "cuda":
        raise InvalidInput(f"--device {device_type} is not known: give cpu or cuda")
    import torch  # noqa: PLC0415 - commands that only need cpu_model start without torch

    if not torch.cuda.is_available():
        raise InvalidInput("--device cuda cannot be measured: torch sees no NVIDIA GPU here; give --device cpu")
    properties = torch.cuda.get_device_properties(0)
    return Device(properties.name, "NVIDIA", DeviceKind.GPU, memory_bytes=properties.total_memory,
                  compute_units=properties.multi_processor_count, aliases=("local",),
                  confidence=Confidence.MEASURED, source="calibrate")  # fmt: skip


def _describe_cpu() -> Device:
    import psutil  # noqa: PLC0415 - see torch above

    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    model = cpu_model()
    vendor = next((vendor for vendor in CPU_VENDORS if vendor.lower() in model.lower()), "unknown")
    name = f"{model} ({cores} core{'s' if cores > 1 else ''})"
    return Device(name, vendor, DeviceKind.CPU, memory_bytes=psutil.virtual_memory().total, compute_units=cores,
                  aliases=("local", "cpu"), confidence=Confidence.MEASURED, source="calibrate")  # fmt: skip
