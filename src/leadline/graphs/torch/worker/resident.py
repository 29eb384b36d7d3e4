"""How much memory this process holds."""

import os
from pathlib import Path

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident bytes of this process; zero where the system does not say (no ``/proc``)."""
    if not STATM.exists():
        return 0
    return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
