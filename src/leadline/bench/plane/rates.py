"""How fast the plane hands jobs to a real Slurm and settles them, beside ``sbatch`` alone, and what watching costs."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from leadline.bench.plane.host import JOURNAL, USAGE, Settings, prepare
from leadline.bench.rows import BenchRow, at_least, at_most
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from leadline.core.units import MIB
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.processes import run_process
from leadline.testing.slurm_cluster import Cluster

PLACE = Place("cluster", "short")
MEMORY_BYTES = 10 * MIB
LIVE = 5000
STEADY_S = 180.0
SETTLE_S = 600.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How long a number of jobs took: until all were submitted, and until all were over (or settled)."""

    count: int
    submitted_s: float
    over_s: float

    @property
    def per_minute(self) -> float:
        """Jobs a minute, to their end."""
        return 60 * self.count / self.over_s


def rates(cluster: Cluster, folder: Path, *, quick: bool) -> list[BenchRow]:
    """Return the rows of rates and of the plane's own cost, measured on a cluster that does nothing else."""
    count, rounds = (100, 1) if quick else (1000, 3)
    alone = [(bare(cluster, count), _plane(cluster, folder / f"apart{at}", count)) for at in range(rounds)]
    arrays = [
        (bare_array(cluster, count), _plane(cluster, folder / f"array{at}", count, array=True)) for at in range(rounds)
    ]
    measured = _plane(cluster, folder / "measured", count // 4, measured=True)
    usage, live = steady(cluster, folder / "steady", 500 if quick else LIVE, 30.0 if quick else STEADY_S)
    share = 100 * usage["cpu_s"] / usage["elapsed_s"]
    return [
        at_least(
            "jobs handed over, watched and settled, ÷ bare sbatch loop",
            median(ours.per_minute / (60 * loop.count / loop.submitted_s) for loop, ours in alone), 0.5, "times",
            n=rounds, how=f"{count} jobs of `true`, not measured; the loop's rate is that of submitting alone",
        ),
        BenchRow("jobs a minute, handed over to settled", median(ours.per_minute for _, ours in alone), "jobs/min",
                 baseline=median(60 * loop.count / loop.submitted_s for loop, _ in alone), n=rounds,
                 how="baseline: submitted by a loop of sbatch in the same run"),
        BenchRow("the same, each under the measuring wrapper", measured.per_minute, "jobs/min", n=measured.count,
                 how="the wrapper is a Python of 0.1 s of CPU, and all nodes are this machine"),
        at_least(
            "array, handed over to settled, ÷ bare array", median(b.over_s / p.over_s for b, p in arrays), 1.0, "times",
            n=rounds, how=f"{count} elements; the bare array is over when squeue no longer shows it, asked every 0.5 s",
        ),
        at_most("plane's own CPU in steady state", share, 5.0, "% of a core", n=live,
                how=f"{usage['elapsed_s']:.0f} s; what it starts (squeue) takes "
                    f"{100 * usage['children_cpu_s'] / usage['elapsed_s']:.1f} % more"),
        at_most("plane's resident memory in steady state", usage["resident_bytes"] / 1e6, 200.0, "MB", n=live),
    ]  # fmt: skip


def bare(cluster: Cluster, count: int) -> Rate:
    """Submit jobs one by one with sbatch, and wait until the queue is empty."""
    began_s = time.monotonic()
    for _ in range(count):
        cluster.run([*_sbatch(), "--wrap", "true"])
    submitted_s = time.monotonic() - began_s
    return Rate(count, submitted_s, _emptied_s(cluster, began_s))


def bare_array(cluster: Cluster, count: int) -> Rate:
    """Submit one array with sbatch, and wait until the queue is empty."""
    began_s = time.monotonic()
    cluster.run([*_sbatch(), f"--array=0-{count - 1}", "--wrap", "true"])
    submitted_s = time.monotonic() - began_s
    return Rate(count, submitted_s, _emptied_s(cluster, began_s))


def steady(cluster: Cluster, folder: Path, live: int, seconds: float) -> tuple[dict[str, float], int]:
    """Return what a plane takes that follows so many jobs of which next to none changes, and how many there were."""
    prepare(folder, Settings())
    with PlaneJournal(folder / JOURNAL) as journal:
        for start in range(0, live, 500):
            journal.add(_jobs(min(500, live - start), group=f"g{start}", command=("sleep", "3000")))
    run_host(cluster, folder, 0.0, until=lambda journal: _submitted(journal) == live)
    usage = run_host(cluster, folder, seconds)
    cluster.run(["scancel", "--state=PENDING", "-p", "short"])
    cluster.run(["scancel", "-p", "short"])
    _emptied_s(cluster, time.monotonic())
    return usage, live


def run_host(
    cluster: Cluster, folder: Path, seconds: float, *, until: Callable[[PlaneJournal], bool] = lambda _: True
) -> dict[str, float]:
    """Run the plane of a folder in a process of its own, again and again until it is so, and return what that took."""
    while True:
        argv = [sys.executable, "-P", "-m", "leadline.bench.plane.host", str(folder), str(max(seconds, 5.0))]
        answer = run_process(argv, env=cluster.environment, timeout_s=seconds + SETTLE_S)
        if answer.returncode:
            raise RuntimeError(f"the plane ended: {answer.stderr[-2000:]}")
        with PlaneJournal(folder / JOURNAL) as journal:
            if until(journal):
                usage: dict[str, float] = json.loads((folder / USAGE).read_text(encoding="utf-8"))
                return usage


def _plane(cluster: Cluster, folder: Path, count: int, *, array: bool = False, measured: bool = False) -> Rate:
    """Hand jobs over, and run a plane until all are settled."""
    prepare(folder, Settings())
    began_s = time.monotonic()
    with PlaneJournal(folder / JOURNAL) as journal:
        journal.add(_jobs(count, group="g" if array else None, measured=measured))
    run_host(cluster, folder, SETTLE_S)
    over_s = time.monotonic() - began_s
    with PlaneJournal(folder / JOURNAL) as journal:
        states = [job.state for job in journal.newest()]
    if states.count(JobState.COMPLETED) != count:
        raise RuntimeError(f"{count} jobs of `true` ended as {sorted(set(states))}")
    return Rate(count, over_s, over_s)


def _jobs(
    count: int, *, group: str | None = None, command: Sequence[str] = ("true",), measured: bool = False
) -> list[Job]:
    resources = ResourceSpec(cores_per_task=1, walltime_s=3600.0, memory_bytes_per_node=MEMORY_BYTES)
    spec = JobSpec("rate", tuple(command), resources)
    policy = Policy((PLACE,), measured=measured, resizes=False)
    return [
        Job(f"{group or 'job'}-{number:06}", spec, policy, group=group, index=number if group else None)
        for number in range(count)
    ]


def _submitted(journal: PlaneJournal) -> int:
    return sum(one.scheduler_id is not None for job in journal.open_jobs() for one in job.attempts)


def _sbatch() -> list[str]:
    return ["sbatch", "--parsable", "-p", "short", "-o", "/dev/null", "-c", "1", "--mem=10M", "-t", "60"]


def _emptied_s(cluster: Cluster, began_s: float) -> float:
    while cluster.run(["squeue", "-h", "-r", "-o", "%i"]).stdout.strip():
        time.sleep(0.5)
    return time.monotonic() - began_s
