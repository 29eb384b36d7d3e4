"""Describe the hardware of a job's node as tags of its run, which estimators train on."""

import os
import re
from pathlib import Path

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_RATE = re.compile(r"@\s*(?P<ghz>\d+(?:\.\d+)?)\s*GHz", re.IGNORECASE)


def describe_node(root: Path = Path("/")) -> dict[str, str]:
    """Return the hardware of this node; unknown values are absent.

    The keys are ``node_cpu`` (processor model), ``node_cores`` (hardware threads), ``node_hz`` (highest clock rate, or
    the present one), ``node_cache_bytes`` (largest cache of a core), ``node_memory_bytes``, ``node_gpu`` (model of the
    first NVIDIA GPU) and ``node_gpus`` (their number). No process is started and nothing is measured. ``root`` contains
    ``proc`` and ``sys``.
    """
    cpuinfo = read_fields(root / "proc/cpuinfo")
    cpus = root / "sys/devices/system/cpu"
    cores = len(list(cpus.glob("cpu[0-9]*"))) or os.cpu_count()
    tags = {
        "node_cpu": cpuinfo.get("model name"),
        "node_cores": cores,
        "node_hz": _hz(cpus / "cpu0/cpufreq/cpuinfo_max_freq", cpuinfo),
        "node_cache_bytes": _largest_cache(cpus / "cpu0/cache"),
        "node_memory_bytes": _bytes(read_fields(root / "proc/meminfo").get("MemTotal", "").removesuffix(" kB") + "K"),
        **_gpus(root / "proc/driver/nvidia/gpus"),
    }
    return {name: str(value) for name, value in tags.items() if value}


def read_fields(path: Path) -> dict[str, str]:
    """Return the first value of every ``name : value`` line; empty for a missing file."""
    fields: dict[str, str] = {}
    for line in _read(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
        elif fields:
            # The first processor is enough.
            break
    return fields


def _hz(highest: Path, cpuinfo: dict[str, str]) -> int | None:
    """Return the highest clock rate: from the kernel, the model name, or the present rate to 0.1 GHz."""
    if (text := _read(highest).strip()).isdigit():
        return int(text) * 1000
    # Virtual machines often lack cpufreq, but keep the model name.
    if match := _RATE.search(cpuinfo.get("model name", "")):
        return round(float(match["ghz"]) * 1e9)
    try:
        return round(float(cpuinfo["cpu MHz"]) / 100) * 10**8
    except (KeyError, ValueError):
        return None


def _largest_cache(folder: Path) -> int | None:
    sizes = [_bytes(_read(file).strip()) for file in folder.glob("index*/size")]
    return max((size for size in sizes if size), default=None)


def _bytes(text: str) -> int | None:
    """Parse ``32768K``."""
    number, unit = text[:-1].strip(), text[-1:]
    return int(number) * _UNITS[unit] if number.isdigit() and unit in _UNITS else None


def _gpus(folder: Path) -> dict[str, str | int | None]:
    """Return the GPUs in the NVIDIA driver's own files."""
    cards = sorted(folder.glob("*/information"))
    return {"node_gpu": read_fields(cards[0]).get("Model"), "node_gpus": len(cards)} if cards else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
