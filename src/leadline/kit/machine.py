"""The machine in a file's header: device, software, and product rates."""

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Dict, Optional

import torch

from leadline.kit import KitError
from leadline.kit.nvml import Nvml, open_nvml
from leadline.kit.processor import cpu_name
from leadline.kit.specs import PACKAGES

ENOUGH_S = 0.02
"""Duration of a product that shows the device's rate."""
PRODUCTS = 5
"""Products of a size that are timed. The fastest counts: on a busy machine, another process interrupts some of them."""
EMULATED = 0.25
"""Ratio to the float32 rate below which a 16-bit product is emulated (CPUs without AVX512-BF16 or AMX)."""
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def require_device(device_type: str) -> str:
    """Return ``cuda`` or ``cpu``; ``auto`` selects a GPU if there is one. ``KitError`` if there is no such device."""
    has_gpu = torch.cuda.is_available()
    if device_type == "auto":
        return "cuda" if has_gpu else "cpu"
    if device_type not in ("cpu", "cuda"):
        raise KitError(f"--device {device_type} is not known: give auto, cpu or cuda")
    if device_type == "cuda" and not has_gpu:
        raise KitError(f"--device cuda cannot be measured: torch {torch.__version__} sees no GPU here; give cpu")
    return device_type


def open_meters(device_type: str) -> "tuple[Optional[Nvml], str]":
    """Return the device's meters, or ``None`` and the reason."""
    if device_type != "cuda":
        return None, "there is no meter for a CPU"
    if torch.version.cuda is None:
        return None, "there is no NVML for a GPU that is not NVIDIA's"
    number = torch.cuda.current_device()
    if " MIG " in torch.cuda.get_device_properties(number).name:
        return None, "a MIG slice has no meter of its own"
    return open_nvml(number)


def machine_header(device_type: str, nvml: Optional[Nvml], reason: str) -> Dict[str, Any]:
    """Return the header without the design; ``reason`` explains a missing NVML."""
    device = _gpu() if device_type == "cuda" else _cpu()
    source = None
    if nvml is not None:
        device["limits"] = nvml.limits()
        source = "NVML's counter" if nvml.energy_j() is not None else "samples of NVML's power"
        reason = "" if nvml.power_w() is not None else "this board does not report its power"
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": device,
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "runtime": torch.version.cuda or getattr(torch.version, "hip", None),
            "cudnn": torch.backends.cudnn.version() if device_type == "cuda" else None,
            "driver": nvml.driver() if nvml is not None else None,
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            **{name: _version(name) for name in PACKAGES},
        },
        "energy": {"source": source, "reason": reason or None},
        "rates": product_rates(device_type),
    }


def product_rates(device_type: str) -> Dict[str, float]:
    """Return the FLOP/s of square products by dtype, without unsupported or emulated dtypes."""
    rates = {}
    for name in _native(device_type):
        set_tf32(enabled=name == "tf32")
        rates[name] = _rate(device_type, DTYPES[name])
    set_tf32(enabled=False)
    return {name: rate for name, rate in rates.items() if rate > EMULATED * rates["float32"]}


def set_tf32(*, enabled: bool) -> None:
    """Allow or forbid TF32 in float32 products and convolutions."""
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    torch.backends.cudnn.allow_tf32 = enabled


def synchronize(device_type: str) -> None:
    """Wait until the device is idle."""
    if device_type == "cuda":
        torch.cuda.synchronize()


def _native(device_type: str) -> "tuple[str, ...]":
    """Return the dtypes of products with hardware support (TF32 and bfloat16 since Ampere)."""
    if device_type == "cpu":
        return ("float32", "bfloat16")
    if torch.version.cuda is None:
        return ("float32", "float16", "bfloat16")
    ampere = torch.cuda.get_device_capability()[0] >= 8
    return ("float32", "tf32", "float16", "bfloat16") if ampere else ("float32", "float16")


def _rate(device_type: str, dtype: torch.dtype) -> float:
    """Return the FLOP/s of a square product, doubled in size until it takes long enough."""
    side = 128
    while True:
        matrix = torch.randn(side, side, device=device_type).to(dtype)
        # The first product of a shape also loads its kernel.
        times = []
        for _ in range(1 + PRODUCTS):
            begun = time.perf_counter()
            matrix @ matrix
            synchronize(device_type)
            times.append(time.perf_counter() - begun)
        took_s = min(times[1:])
        if took_s > ENOUGH_S or side >= 16384:
            return float(2 * side**3 / took_s)
        side *= 2


def _gpu() -> Dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "type": "cuda",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_units": properties.multi_processor_count,
        "count": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}",
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "threads": None,
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    }


def _cpu() -> Dict[str, Any]:
    return {
        "type": "cpu",
        "name": cpu_name(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "compute_units": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "capability": getattr(torch.backends.cpu, "get_cpu_capability", lambda: None)(),
        "l2_bytes": None,
        "threads": torch.get_num_threads(),
        "allocator": None,
    }


def _version(package: str) -> Optional[str]:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
