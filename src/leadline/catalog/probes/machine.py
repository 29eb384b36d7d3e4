"""What the system says of the device at hand: its name, memory, cores and threads."""

import psutil
import torch

from leadline.catalog.probes.processor import cpu_model
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Confidence, Device, DeviceKind

MAKERS = ("AMD", "Intel", "ARM", "IBM")


def describe(device_type: str) -> Device:
    """Return the device at hand without any measured figure.

    Raises:
        InvalidInput: ``cuda`` is asked for and there is none, or the type is neither ``cpu`` nor ``cuda``.
    """
    if device_type == "cpu":
        cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
        model = cpu_model()
        known = (maker for maker in MAKERS if maker.lower() in model.lower())
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
