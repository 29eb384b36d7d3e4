"""``leadline bench plane``: the Intelligence Plane on a real Slurm, and on published traces."""

import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from leadline.bench.plane.faults import faults
from leadline.bench.plane.live import rows as live_rows
from leadline.bench.plane.loop import loop
from leadline.bench.plane.rates import rates
from leadline.bench.plane.replay import rows as replay_rows
from leadline.bench.plane.waits import rows as wait_rows
from leadline.bench.rows import BenchResult, BenchRow
from leadline.core.errors import InvalidInput
from leadline.testing.slurm_cluster import missing, slurm_cluster
from leadline.testing.slurm_plan import ClusterPlan

SEED = 1
PLAN = ClusterPlan(name="bench", nodes=2, cores=64, memory_mib=64_000, remembered_s=60)
"""So many cores are declared that jobs of `true` wait for Slurm itself alone, not for a free one."""


def run(*, quick: bool = False, data: Path | None = None) -> BenchResult:
    """Measure the plane; ``data`` is a folder with the trace of MetaCentrum, without which it is not replayed.

    Raises:
        InvalidInput: Slurm's daemons are not installed.
    """
    if why := missing():
        raise InvalidInput(f"{why}; python3 dev test installs what is needed where it may")
    folder = Path(tempfile.mkdtemp(prefix="leadline-plane-"))
    try:
        rows = [row for part in _parts(folder, quick=quick, data=data) for row in part()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine = {"system": platform.platform(), "cores": str(psutil.cpu_count())}
    return BenchResult("plane", tuple(rows), datetime.now(UTC).date().isoformat(), machine)


def _parts(folder: Path, *, quick: bool, data: Path | None) -> list[Callable[[], Sequence[BenchRow]]]:
    parts: list[Callable[[], Sequence[BenchRow]]] = [
        lambda: _rates(folder, quick=quick),
        lambda: faults(_made(folder / "faults"), quick=quick, seed=SEED),
        lambda: loop(_made(folder / "loop"), quick=quick, seed=SEED),
        live_rows,
    ]
    if data is not None:
        parts += [lambda: replay_rows(data, quick=quick), lambda: wait_rows(data, quick=quick)]
    return parts


def _rates(folder: Path, *, quick: bool) -> list[BenchRow]:
    (folder / "cluster").mkdir()
    with slurm_cluster(folder / "cluster", PLAN) as cluster:
        return rates(cluster, folder / "rates", quick=quick)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
