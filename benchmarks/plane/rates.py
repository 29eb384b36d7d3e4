"""The plane's rates of submission and settlement on a real Slurm, compared with ``sbatch`` alone, and its CPU time."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.plane.host import JOURNAL, USAGE, HostSettings, prepare
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from leadline.core.units import MIB
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.processes import run_process, start_process
from tests.support.slurm_cluster import SlurmCluster

PLACE = Place("cluster", "short")
MEMORY_BYTES = 10 * MIB
COUNT, LIVE = 1000, 5000
STEADY_S = 180.0
SETTLE_S = 600.0
START_S = 3.0
"""Time in which the plane's process starts and opens its journal."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds until a number of jobs was submitted, and until it was over (or settled)."""

    count: int
    submitted_s: float
    over_s: float

    @property
    def per_minute(self) -> float:
        """Return jobs a minute, to their end."""
        return 60 * self.count / self.over_s

    @property
    def submitted_per_minute(self) -> float:
        """Return jobs a minute, to the last submission."""
        return 60 * self.count / self.submitted_s


def rate_rows(cluster: SlurmCluster, folder: Path, *, quick: bool) -> list[BenchmarkRow]:
    """Return the rows of rates and of the plane's own cost, measured on an otherwise idle cluster."""
    count, rounds = (100, 1) if quick else (COUNT, 5)
    folder.mkdir(parents=True)
    alone = _in_turn(
        rounds, lambda _: bare(cluster, folder, count), lambda at: _plane(cluster, folder / f"apart{at}", count)
    )
    arrays = _in_turn(
        rounds,
        lambda _: bare_array(cluster, folder, count),
        lambda at: _plane(cluster, folder / f"array{at}", count, array=True),
    )
    measured = _plane(cluster, folder / "measured", count // 4, measured=True)
    usage, live = steady(cluster, folder / "steady", 500 if quick else LIVE, 30.0 if quick else STEADY_S)
    share = 100 * usage["cpu_s"] / usage["elapsed_s"]
    return [
        *alone_rows(alone),
        BenchmarkRow("jobs a minute, each under the measuring wrapper", measured.per_minute, "jobs/min",
                     n=measured.count, how="the wrapper takes 0.1 s of CPU, and all nodes are this machine"),
        array_row(arrays),
        at_most("plane's own CPU in steady state", share, 5.0, "% of a core", n=live,
                how=f"{usage['elapsed_s']:.0f} s; its child processes (squeue) take "
                    f"{100 * usage['children_cpu_s'] / usage['elapsed_s']:.1f} % more"),
        at_most("plane's resident memory in steady state", usage["resident_bytes"] / 1e6, 200.0, "MB", n=live),
    ]  # fmt: skip


def alone_rows(rounds: Sequence[tuple[Rate, Rate]]) -> list[BenchmarkRow]:
    """Return the rows of jobs that are submitted one by one, from rounds of the bare loop and of the plane."""
    settled = median(plane.per_minute for _, plane in rounds)
    ended = median(loop.per_minute for loop, _ in rounds)
    submitted = median(loop.submitted_per_minute for loop, _ in rounds)
    how = f"{rounds[0][0].count} jobs of `true`, not measured; both until the last one is over"
    of_ended = [plane.per_minute / loop.per_minute for loop, plane in rounds]
    of_submitted = [plane.per_minute / loop.submitted_per_minute for loop, plane in rounds]
    return [
        _ratio("jobs handed over, watched and settled, ÷ bare sbatch loop", of_ended, 0.5, rounds, how),
        _ratio("the same ÷ submitting alone", of_submitted, 0.5, rounds, "a loop of sbatch that waits for no job"),
        BenchmarkRow("jobs a minute, handed over to settled", settled, "jobs/min", n=len(rounds)),
        BenchmarkRow("jobs a minute, a loop of sbatch to the end of the last job", ended, "jobs/min", n=len(rounds)),
        BenchmarkRow("jobs a minute, submitted by that loop", submitted, "jobs/min", n=len(rounds)),
    ]  # fmt: skip


def array_row(rounds: Sequence[tuple[Rate, Rate]]) -> BenchmarkRow:
    """Return the row of arrays, from rounds of the bare one and of the plane's."""
    took = ", ".join(f"{loop.over_s:.1f} ÷ {plane.over_s:.1f}" for loop, plane in rounds)
    how = f"{rounds[0][0].count} elements; the bare array is over when squeue, polled every 0.5 s, no longer shows it"
    ratios = [loop.over_s / plane.over_s for loop, plane in rounds]
    return _ratio("array, handed over to settled, ÷ bare array", ratios, 1.0, rounds, f"{how}; seconds: {took}")


def _ratio(
    name: str, ratios: Sequence[float], target: float, rounds: Sequence[tuple[Rate, Rate]], how: str
) -> BenchmarkRow:
    """Return the median of the rounds; without a target for fewer jobs than ``COUNT``."""
    # few jobs are over before the last poll, which then dominates their time
    if rounds[0][0].count < COUNT:
        return BenchmarkRow(
            name, median(ratios), "times", n=len(rounds), how=f"{how}; the target is one for {COUNT} jobs"
        )
    return at_least(name, median(ratios), target, "times", n=len(rounds), how=how)


def _in_turn(rounds: int, loop: Callable[[int], Rate], plane: Callable[[int], Rate]) -> list[tuple[Rate, Rate]]:
    """Measure the bare loop and the plane in turn; each is first in every second round."""
    # Slurm slows down with the jobs that it remembers
    rates = []
    for at in range(rounds):
        pair = {first: first(at) for first in ((loop, plane) if at % 2 == 0 else (plane, loop))}
        rates.append((pair[loop], pair[plane]))
    return rates


def bare(cluster: SlurmCluster, folder: Path, count: int) -> Rate:
    """Submit jobs one by one with sbatch; wait until the queue is empty."""
    began_s = time.monotonic()
    for _ in range(count):
        cluster.run([*_sbatch(folder), "--wrap", "true"])
    submitted_s = time.monotonic() - began_s
    return Rate(count, submitted_s, _emptied_s(cluster, began_s))


def bare_array(cluster: SlurmCluster, folder: Path, count: int) -> Rate:
    """Submit one array with sbatch; wait until the queue is empty."""
    began_s = time.monotonic()
    cluster.run([*_sbatch(folder), f"--array=0-{count - 1}", "--wrap", "true"])
    submitted_s = time.monotonic() - began_s
    return Rate(count, submitted_s, _emptied_s(cluster, began_s))


def steady(cluster: SlurmCluster, folder: Path, live: int, seconds: float) -> tuple[dict[str, float], int]:
    """Return the usage of a plane that watches ``live`` jobs that hardly change, and their number."""
    with hosted(cluster, folder):
        with PlaneJournal(folder / JOURNAL) as journal:
            for start in range(0, live, 500):
                journal.add(_jobs(min(500, live - start), group=f"g{start}", command=("sleep", "3000")))
        until(folder, lambda journal: _submitted(journal) == live)
    argv = [sys.executable, "-P", "-m", "benchmarks.plane.host", str(folder), str(seconds)]
    run_process(argv, env=cluster.environment, timeout_s=seconds + SETTLE_S)
    usage: dict[str, float] = json.loads((folder / USAGE).read_text(encoding="utf-8"))
    cluster.run(["scancel", "--state=PENDING", "-p", "short"])
    cluster.run(["scancel", "-p", "short"])
    _emptied_s(cluster, time.monotonic())
    return usage, live


@contextmanager
def hosted(cluster: SlurmCluster, folder: Path, seconds: float = SETTLE_S) -> Iterator[None]:
    """Run the plane of a folder in a process of its own until the block ends; yield once it polls."""
    prepare(folder, HostSettings())
    argv = [sys.executable, "-P", "-m", "benchmarks.plane.host", str(folder), str(seconds)]
    with PlaneJournal(folder / JOURNAL):
        process = start_process(argv, env=cluster.environment)
    try:
        time.sleep(START_S)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def until(folder: Path, done: Callable[[PlaneJournal], bool]) -> None:
    """Poll the journal until ``done``.

    Raises:
        LeadlineError: It is not done within ``SETTLE_S``.
    """
    deadline_s = time.monotonic() + SETTLE_S
    with PlaneJournal(folder / JOURNAL) as journal:
        while not done(journal):
            if time.monotonic() > deadline_s:
                raise LeadlineError(f"the jobs of {folder} were not settled within {SETTLE_S:.0f} s")
            time.sleep(0.1)


def _plane(cluster: SlurmCluster, folder: Path, count: int, *, array: bool = False, measured: bool = False) -> Rate:
    """Submit jobs to a running plane; wait until all are settled and recorded."""
    with hosted(cluster, folder):
        began_s = time.monotonic()
        with PlaneJournal(folder / JOURNAL) as journal:
            journal.add(_jobs(count, group="g" if array else None, measured=measured))
        until(folder, lambda journal: not journal.read("SELECT 1 FROM job WHERE recorded = 0 LIMIT 1"))
        over_s = time.monotonic() - began_s
    with PlaneJournal(folder / JOURNAL) as journal:
        states = [job.state for job in journal.newest_jobs()]
    if states.count(JobState.COMPLETED) != count:
        raise LeadlineError(f"{count} jobs of `true` ended as {sorted(set(states))}")
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
    return sum(attempt.scheduler_id is not None for job in journal.open_jobs() for attempt in job.attempts)


def _sbatch(folder: Path) -> list[str]:
    """Return sbatch with a job's request; each job writes its output to a file of its own, as by default."""
    return ["sbatch", "--parsable", "-p", "short", "-D", str(folder), "-c", "1", "--mem=10M", "-t", "60"]


def _emptied_s(cluster: SlurmCluster, began_s: float) -> float:
    while cluster.run(["squeue", "-h", "-r", "-o", "%i"]).stdout.strip():
        time.sleep(0.5)
    return time.monotonic() - began_s
