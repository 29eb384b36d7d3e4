"""Where a result comes from: the commit, the date, the machine, the seed and the code that it measures."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.results import BenchmarkResult

ROOT = Path(__file__).resolve().parents[1]
DIRTY = "+changes"
"""Ends a commit whose measured code had changes that were not committed."""


def with_provenance(
    result: BenchmarkResult, measures: Sequence[str], *, seed: int | None, root: Path = ROOT
) -> BenchmarkResult:
    """Add commit, date, machine, seed and measured code to a result; the benchmark's own notes on the machine stay."""
    return replace(
        result,
        commit=current_commit(measures, root),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine={**machine(), **result.machine},
        seed=seed,
        measures=tuple(measures),
    )


def machine() -> dict[str, str]:
    """Describe this machine: CPU model, cores, memory, system and Python."""
    return {
        "cpu": cpu_model(),
        "cores": str(os.cpu_count() or 0),
        "memory_bytes": str(psutil.virtual_memory().total),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def current_commit(measures: Sequence[str], root: Path = ROOT) -> str:
    """Return the checked-out commit, marked if the measured code differs from it; empty outside a repository."""
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        return ""
    changed = git(root, "status", "--porcelain", "--", *measures)
    return commit.strip() + (DIRTY if changed else "")


def git(root: Path, *words: str) -> str | None:
    """Return what a git command prints; None if it fails or git is missing."""
    try:
        ended = subprocess.run(  # noqa: S603 - git with fixed words
            ["git", "-C", str(root), *words],  # noqa: S607 - the user's git
            capture_output=True, encoding="utf-8", errors="replace", check=False,
        )  # fmt: skip
    except OSError:
        return None
    return ended.stdout if ended.returncode == 0 else None
