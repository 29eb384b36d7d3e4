"""The name of this machine's processor, for a process without torch too."""

import os


def cpu_name() -> str:
    """Return the processor's name in /proc/cpuinfo, else the machine's architecture."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.lower().startswith("model name"):
                    return line.split(":", 1)[1].strip()
    import platform  # noqa: PLC0415 - the fallback where there is no /proc

    return platform.processor() or platform.machine()
