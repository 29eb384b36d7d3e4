"""Jobs on a real Slurm while everything around the plane fails: none lost, none run twice, none with a wrong end."""

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.plane.fault_disk import journal_disk
from benchmarks.plane.fault_jobs import DesignedJob, FaultTally, design_jobs, read_ledger, tally_faults
from benchmarks.plane.fault_kinds import FULL, QUICK, SSH_PART, Fault, Injector, strike_times
from benchmarks.plane.fault_plane import PlaneProcess
from benchmarks.plane.fault_shims import first_on_path, make_shims
from benchmarks.plane.host import JOURNAL, HostSettings
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.execution.clock import iso_utc
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import DEFAULT_INTERVALS
from tests.support.slurm_cluster import slurm_cluster
from tests.support.slurm_plan import ClusterPlan
from tests.support.ssh_server import HOST, ssh_server

NODES = 4
COMMAND_S = 5.0
"""Timeout of Slurm's commands; a tenth of the usual one, so that more of them are cut off."""
PATIENCE = {"last": 4.0, "unreachable": 5.0, "delay": 5.0}
"""Only pauses are shorter than usual; a full campaign keeps the usual times until silence counts as an outage."""
LEAST_FAULTS = 100


@dataclass(frozen=True, slots=True)
class FaultCampaignSize:
    """The size of a campaign of faults.

    Attributes:
        lasts_s: Time in which jobs are submitted and faults strike.
        settles_s: Time limit of the rest.
        numbers: Number of faults by kind.
        grace_s: Time in which an unanswered submission may still arrive.
    """

    jobs: int
    lasts_s: float
    settles_s: float
    numbers: dict[Fault, int]
    grace_s: float


SIZES = {
    True: FaultCampaignSize(40, 20.0, 120.0, QUICK, 25.0),
    False: FaultCampaignSize(300, 270.0, 200.0, FULL, DEFAULT_INTERVALS.grace),
}


@dataclass(slots=True)
class FaultCampaign:
    """The jobs of a campaign, its faults and its outcome."""

    designs: list[DesignedJob] = field(default_factory=list)
    struck: "Counter[Fault]" = field(default_factory=Counter)
    tally: FaultTally = field(default_factory=lambda: FaultTally((), (), ()))
    ends: list[str] = field(default_factory=list)
    starts: int = 0
    attempts: int = 0
    log: list[tuple[float, str]] = field(default_factory=list)
    refused: int = 0
    disk: str = ""
    elapsed_s: float = 0.0
    settled_s: float = 0.0


def fault_rows(folder: Path, *, quick: bool, seed: int) -> list[BenchmarkRow]:
    """Run a campaign of faults on a Slurm of its own in an empty folder; return its rows."""
    done = run(folder, SIZES[quick], seed)
    return rows_of(done, quick=quick)


def rows_of(done: FaultCampaign, *, quick: bool) -> list[BenchmarkRow]:
    """Return the outcome of a campaign as rows."""
    count, struck = len(done.designs), sum(done.struck.values())
    least = 0 if quick else LEAST_FAULTS
    kinds = ", ".join(f"{fault.value} {done.struck[fault]}" for fault in Fault)
    return [
        at_least("faults injected", struck, least, "faults", n=count,
                 how=f"{kinds}; the disk is {done.disk}; {done.elapsed_s:.0f} s in all"),
        at_most("jobs lost under faults", len(done.tally.lost), 0, "jobs", n=count, how=_some(done.tally.lost)),
        at_most("jobs run twice under faults", len(done.tally.twice), 0, "jobs", n=count,
                how=_some(done.tally.twice) or f"{done.starts} starts of {done.attempts} attempts, by the ledger"),
        at_most("wrong final states under faults", len(done.tally.wrong), 0, "jobs", n=count,
                how=_some(done.tally.wrong)),
        at_most("planes that ended by themselves", len(done.ends), 0, "times",
                how=_some(done.ends) or f"{done.refused} could not begin, as their disk was full"),
        BenchmarkRow("until all was settled, after the last fault", done.settled_s, "s", n=count),
    ]  # fmt: skip


def run(folder: Path, size: FaultCampaignSize, seed: int) -> FaultCampaign:
    """Run a campaign and tally its jobs."""
    began_s = time.monotonic()
    with _stage(folder, size, random.Random(seed)) as (injector, settings):  # noqa: S311 - not secret
        rng = random.Random(seed + 1)  # noqa: S311 - not secret
        ledger = folder / "ledger"
        waves = list(design_jobs(size.jobs, ledger, rng, memory_held=injector.cluster.layout.cgroups))
        _strike(injector, settings, waves, size, rng)
        began_to_settle_s = time.monotonic()
        injector.heal(everything=True)
        states = _settled(injector, Path(settings.journal or ""), size.settles_s)
        done = FaultCampaign([job for wave in waves for job in wave], injector.struck, log=injector.log)
        done.settled_s = time.monotonic() - began_to_settle_s
        injector.plane.kill()
        _keep(folder, done)
        runs = read_ledger(ledger)
        done.tally = tally_faults(done.designs, states, runs, injector.deaths)
        done.starts, done.attempts = len(runs), len({run.attempt for run in runs})
        done.struck[Fault.SBATCH] = injector.shims.used()["sbatch"]  # an order that nobody took is no fault
        done.ends, done.disk, done.refused = injector.plane.ends, injector.disk.how, injector.plane.refused
    done.elapsed_s = time.monotonic() - began_s
    return done


@contextmanager
def _stage(folder: Path, size: FaultCampaignSize, rng: random.Random) -> Iterator[tuple[Injector, HostSettings]]:
    """Yield the injector of faults on a new cluster, and the settings of its plane."""
    with ExitStack() as stack:
        for name in ("cluster", "ledger", "sshd", "jobs"):
            (folder / name).mkdir(parents=True)
        plan = ClusterPlan(name="faults", nodes=NODES, cores=4, memory_mib=4000)
        cluster = stack.enter_context(slurm_cluster(folder / "cluster", plan))
        cluster.stop("slurmctld")  # only one that ended well has left all of its state to the one that is killed
        cluster.start("slurmctld")
        shims = make_shims(folder / "shims", cluster.environment["PATH"])
        path = first_on_path(shims.folder, cluster.environment["PATH"])
        environment = {**cluster.environment, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        server = stack.enter_context(ssh_server(folder / "sshd", environment))
        disk = stack.enter_context(journal_disk(folder / "disk"))
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="leadline-"))
        plane = PlaneProcess(folder / "plane", environment)
        stack.callback(plane.kill)
        patience = {**PATIENCE, "grace": size.grace_s}
        settings = HostSettings(
            ssh_config=str(server.config), timeout_s=COMMAND_S, patience=patience, jobs=str(folder / "jobs"),
            sockets=sockets, journal=str(folder / "disk" / JOURNAL),
        )  # fmt: skip
        yield Injector(cluster, plane, shims, disk, server, rng), settings


def _strike(
    injector: Injector,
    settings: HostSettings,
    waves: list[list[DesignedJob]],
    size: FaultCampaignSize,
    rng: random.Random,
) -> None:
    """Submit jobs at random moments while faults strike; for a part of the time the plane connects over SSH."""
    low, high = (share * size.lasts_s for share in SSH_PART)
    events: list[tuple[float, Callable[[], None]]] = [
        (low, lambda: _change(injector, replace(settings, ssh=HOST))),
        (high, lambda: _change(injector, settings)),
        *((at_s, partial(injector.strike, fault)) for at_s, fault in strike_times(size.numbers, size.lasts_s, rng)),
    ]
    handed = sorted(rng.uniform(0.0, 0.95) * size.lasts_s for _ in waves)
    handing = deque(zip(handed, waves, strict=True))
    coming = deque(sorted(events, key=lambda event: event[0]))
    _change(injector, settings)
    began_s = time.monotonic()
    while coming or handing:
        now_s = time.monotonic() - began_s
        injector.heal()
        injector.supervise()
        if coming and coming[0][0] <= now_s:
            coming.popleft()[1]()
        if handing and handing[0][0] <= now_s and _submit(Path(settings.journal or ""), handing[0][1]):
            handing.popleft()
        time.sleep(0.02)
        if now_s > size.lasts_s + size.settles_s:
            raise LeadlineError(f"{len(handing)} waves of jobs could not be submitted: see {injector.plane.folder}")


def _change(injector: Injector, settings: HostSettings) -> None:
    """Kill the plane and start it again with other settings."""
    injector.plane.kill()
    injector.plane.settle_for(settings)
    injector.plane.start()


def _submit(path: Path, wave: list[DesignedJob]) -> bool:
    """Submit jobs as ``leadline submit`` does; return False if the disk is full, so that the user has to try again."""
    try:
        with PlaneJournal(path) as journal:
            journal.add(design.job for design in wave)
    except LeadlineError:
        return False
    return True


def _settled(injector: Injector, path: Path, most_s: float) -> dict[str, JobState]:
    """Wait until all jobs are closed, at most ``most_s``; return the states of all jobs."""
    until_s = time.monotonic() + most_s
    while True:
        injector.supervise()
        with PlaneJournal(path) as journal:
            if not journal.open_jobs() or time.monotonic() > until_s:
                return {job.key: job.state for job in journal.newest_jobs()}
        time.sleep(0.5)


def _keep(folder: Path, done: FaultCampaign) -> None:
    """Keep the journal, whose disk is unmounted, and the log of faults."""
    shutil.copytree(folder / "disk", folder / "kept")
    lines = "".join(f"{iso_utc(at_s)} {event}\n" for at_s, event in done.log)
    (folder / "kept" / "faults.log").write_text(lines, encoding="utf-8")


def _some(sentences: Sequence[str]) -> str:
    return "; ".join(sentences[:5]) + (f"; and {len(sentences) - 5} more" if len(sentences) > 5 else "")
