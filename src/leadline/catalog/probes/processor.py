"""The name of the processor at hand."""

from pathlib import Path


def cpu_model() -> str:
    """Return the processor's name as Linux gives it, else the machine's architecture."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    import platform  # noqa: PLC0415 - the fallback where there is no /proc

    return platform.processor() or platform.machine()
