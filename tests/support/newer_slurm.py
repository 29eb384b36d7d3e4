"""The next Debian's Slurm beside this machine's: its programs lie over ``/usr`` in a mount namespace."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.slurm_cluster import PATH, why_no_slurm

NEWER_SLURM = Path("/opt/leadline/slurm-24.11")
"""Folder into which ``dev test`` extracts the packages."""
NEWER_RELEASE = "24.11"
LAY_OVER = 'mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr && exec "$@"'
"""Programs and libraries of both releases stay usable, because a newer C library runs older programs."""


def why_no_newer_slurm() -> str:
    """Return why no newer Slurm can run here; empty if one can."""
    if reason := why_no_slurm():
        return reason
    if not (NEWER_SLURM / "usr/bin/sbatch").exists():
        return f"no newer Slurm is in {NEWER_SLURM}: python3 dev test puts it there, as root on Debian"
    if os.geteuid() != 0:
        return "a newer Slurm needs root, which may mount its files"
    if not _mounts():
        return "this kernel mounts no overlay, which a newer Slurm needs"
    return ""


def with_newer_slurm(command: Sequence[str], folder: Path = NEWER_SLURM) -> list[str]:
    """Return a command that runs ``command`` in a mount namespace with the newer Slurm, or with the one in a folder.

    Everything else there is this machine's: files, processes, network.
    """
    return ["unshare", "--mount", "sh", "-c", LAY_OVER, str(folder), *command]


def slurm_version() -> str:
    """Return the version of the Slurm that this process would start, such as ``22.05.8``."""
    program = shutil.which("slurmctld", path=PATH) or "slurmctld"
    answer = subprocess.run([program, "-V"], capture_output=True, text=True, check=True)
    return answer.stdout.split()[-1]


def _mounts() -> bool:
    return subprocess.run(with_newer_slurm(["true"]), capture_output=True, check=False).returncode == 0
