"""Say what the node that a job runs on is made of, as tags of its run: an estimator learns from them."""

import os
import re
from pathlib import Path

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_RATE = re.compile(r"@\s*(?P<ghz>\d+(?:\.\d+)?)\s*GHz", re.IGNORECASE)


def describe_node(root: Path = Path("/")) -> dict[str, str]:
    """Return what the node says of itself; a figure that it does not say is absent.

    ``node_cpu`` is the processor's model, ``node_cores`` its hardware threads, ``node_hz`` the highest rate (of a
    machine that does not scale it, the present one), ``node_cache_bytes`` the largest cache that a core sees,
    ``node_memory_bytes`` all memory, ``node_gpu`` the model of the first NVIDIA GPU and ``node_gpus`` their number.
    No process is started, and nothing is measured. ``root`` is where ``proc`` and ``sys`` are.
    """
    said = _said(root / "proc/cpuinfo")
    cpus = root / "sys/devices/system/cpu"
    cores = len(list(cpus.glob("cpu[0-9]*"))) or os.cpu_count()
    found = {
        "node_cpu": said.get("model name"),
        "node_cores": cores,
        "node_hz": _hz(cpus / "cpu0/cpufreq/cpuinfo_max_freq", said),
        "node_cache_bytes": _largest_cache(cpus / "cpu0/cache"),
        "node_memory_bytes": _bytes(_said(root / "proc/meminfo").get("MemTotal", "").removesuffix(" kB") + "K"),
        **_gpus(root / "proc/driver/nvidia/gpus"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _said(path: Path) -> dict[str, str]:
    """Return the first value of every ``name : value`` line; nothing of a file that is not there."""
    found: dict[str, str] = {}
    for line in _read(path).splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            if found:
                break  # the first processor of several is enough
            continue
        found.setdefault(name.strip(), value.strip())
    return found


def _hz(highest: Path, said: dict[str, str]) -> int | None:
    """Return the highest rate: the kernel's, else that in the model's name, else the present one to 0.1 GHz."""
    if (text := _read(highest).strip()).isdigit():
        return int(text) * 1000
    if match := _RATE.search(said.get("model name", "")):
        return round(float(match["ghz"]) * 1e9)
    try:
        return round(float(said["cpu MHz"]) / 100) * 10**8
    except (KeyError, ValueError):
        return None


def _largest_cache(folder: Path) -> int | None:
    sizes = [_bytes(_read(one).strip()) for one in folder.glob("index*/size")]
    return max((size for size in sizes if size), default=None)


def _bytes(text: str) -> int | None:
    """Read ``32768K``."""
    number, unit = text[:-1].strip(), text[-1:]
    return int(number) * _UNITS[unit] if number.isdigit() and unit in _UNITS else None


def _gpus(folder: Path) -> dict[str, str | int | None]:
    """Return what the NVIDIA driver's own files say; nothing where there is none."""
    cards = sorted(folder.glob("*/information"))
    return {"node_gpu": _said(cards[0]).get("Model"), "node_gpus": len(cards)} if cards else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
