"""``bench plane``: the Intelligence Plane on a real Slurm, and on published traces."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.plane.faults import fault_rows, newer_slurm_rows
from benchmarks.plane.live import live_rows
from benchmarks.plane.loop import loop_rows
from benchmarks.plane.rates import rate_rows
from benchmarks.plane.replay import replay_rows
from benchmarks.plane.waits import wait_rows
from benchmarks.results import BenchmarkResult, BenchmarkRow
from leadline.core.errors import InvalidInput, UnknownName
from tests.support.slurm_cluster import slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan

SEED = 1
FAULT_SEEDS = (1, 2)
ON_SLURM, ON_TRACE = ("rates", "faults", "loop"), ("replay", "waits")
PARTS = (*ON_SLURM, "live", *ON_TRACE)
PLAN = ClusterPlan(name="bench", nodes=2, cores=64, memory_mib=64_000, remembered_s=60)
"""Enough cores are declared that jobs of `true` never wait for a free one."""


def run(*, quick: bool = False, data: Path | None = None, only: str | None = None) -> BenchmarkResult:
    """Measure the plane, or some of ``PARTS``, with commas between; ``data`` is a folder with the trace of MetaCentrum.

    Raises:
        UnknownName: There is no such part.
        InvalidInput: Slurm's daemons are not installed, or a part needs the trace.
    """
    parts = only.split(",") if only else [part for part in PARTS if data is not None or part not in ON_TRACE]
    for part in parts:
        if part not in PARTS:
            raise UnknownName("part of bench plane", part, PARTS, fix=f"it has {', '.join(PARTS)}")
        if part in ON_TRACE and data is None:
            raise InvalidInput(f"--only {part} replays a published trace: name its folder with --data")
    if (why := why_no_slurm()) and not set(parts).isdisjoint(ON_SLURM):
        raise InvalidInput(f"{why}; python3 dev test installs them where it is allowed to")
    folder = Path(tempfile.mkdtemp(prefix="leadline-plane-"))
    folder.chmod(0o755)  # other users, such as the site's staff, read Slurm's configuration in it
    try:
        rows = [row for part in parts for row in _part(part, folder, quick=quick, data=data)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return BenchmarkResult("plane", tuple(rows))


def _part(part: str, folder: Path, *, quick: bool, data: Path | None) -> Sequence[BenchmarkRow]:
    measure: dict[str, Callable[[], Sequence[BenchmarkRow]]] = {
        "rates": lambda: _rates(folder, quick=quick),
        "faults": lambda: _faults(_made(folder / "faults"), quick=quick),
        "loop": lambda: loop_rows(_made(folder / "loop"), quick=quick, seed=SEED),
        "live": live_rows,
    }
    if data is not None:
        measure |= {"replay": lambda: replay_rows(data, quick=quick), "waits": lambda: wait_rows(data, quick=quick)}
    return measure[part]()


def _faults(folder: Path, *, quick: bool) -> list[BenchmarkRow]:
    seeds = FAULT_SEEDS[:1] if quick else FAULT_SEEDS
    return fault_rows(folder, quick=quick, seeds=seeds) + newer_slurm_rows(folder, quick=quick)


def _rates(folder: Path, *, quick: bool) -> list[BenchmarkRow]:
    (folder / "cluster").mkdir()
    with slurm_cluster(folder / "cluster", PLAN) as cluster:
        return rate_rows(cluster, folder / "rates", quick=quick)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
