"""Jobs on a real Slurm while everything around the plane fails: none lost, none run twice, none with a wrong end."""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.plane.fault_causes import read_verdicts, wrong_causes
from benchmarks.plane.fault_disk import journal_disk
from benchmarks.plane.fault_jobs import DesignedJob, FaultTally, LedgerRun, design_jobs, read_ledger, tally_faults
from benchmarks.plane.fault_journal import JournalSwap
from benchmarks.plane.fault_kinds import FULL, PATIENT, QUICK, SSH_PART, Fault, Injector, strike_times
from benchmarks.plane.fault_plane import PlaneProcess
from benchmarks.plane.fault_shims import first_on_path, make_shims
from benchmarks.plane.fault_staff import PLUGIN_SETTING, SiteStaff, write_plugin
from benchmarks.plane.host import JOURNAL, VERDICTS, HostSettings
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Job
from leadline.execution.clock import iso_utc
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import DEFAULT_INTERVALS
from leadline.execution.processes import run_process
from tests.support.newer_slurm import NEWER_RELEASE, slurm_version, why_no_newer_slurm, with_newer_slurm
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster
from tests.support.slurm_plan import ClusterPlan
from tests.support.ssh_server import HOST, ssh_server

NODES = 4
COMMAND_S = 5.0
"""Timeout of Slurm's commands; a tenth of the usual one, so that more of them are cut off."""
PATIENCE = {"last": 4.0, "unreachable": 5.0, "delay": 5.0}
"""Only pauses are shorter than usual; a full campaign keeps the usual times until silence counts as an outage."""
AGAIN_S = 2.0
"""Until a fault that found no job is tried again."""
NEWER_S = 2400.0
"""Time limit of the campaigns on the newer Slurm."""
LEAST_FAULTS = 250
"""Over the campaigns of all seeds."""


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
    False: FaultCampaignSize(300, 270.0, 400.0, FULL, DEFAULT_INTERVALS.grace),
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
    causes: int = 0
    log: list[tuple[float, str]] = field(default_factory=list)
    refused: int = 0
    living: int = 0
    unfound: list[str] = field(default_factory=list)
    disk: str = ""
    elapsed_s: float = 0.0
    settled_s: float = 0.0


def fault_rows(folder: Path, *, quick: bool, seeds: Sequence[int]) -> list[BenchmarkRow]:
    """Run a campaign of faults for each seed, on a Slurm of its own in an empty folder; return the rows of all."""
    campaigns = [run(folder / f"seed-{seed}", SIZES[quick], seed) for seed in seeds]
    return rows_of(_together(campaigns), quick=quick)


def newer_slurm_rows(folder: Path, *, quick: bool) -> list[BenchmarkRow]:
    """Run the campaigns on the newer Slurm, whose release is part of the rows' names; return no row without one."""
    if why_no_newer_slurm() or slurm_version() >= NEWER_RELEASE:
        return []
    results = folder / "newer.json"
    command = [sys.executable, "-m", "benchmarks", "plane", "--only", "faults", "--json", str(results)]
    ended = run_process(with_newer_slurm([*command, *(["--quick"] if quick else [])]), timeout_s=NEWER_S)
    if not results.exists():
        raise LeadlineError(f"the campaigns on Slurm {NEWER_RELEASE} failed: {ended.stderr[-2000:]}")
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    return [BenchmarkRow(**{**row, "name": f"{row['name']}, Slurm {NEWER_RELEASE}"}) for row in rows]


def _together(campaigns: Sequence[FaultCampaign]) -> FaultCampaign:
    """Return the sums of campaigns with different seeds."""
    total = FaultCampaign(disk=campaigns[0].disk)
    for done in campaigns:
        total.designs += done.designs
        total.struck += done.struck
        total.ends += done.ends
        total.starts += done.starts
        total.attempts += done.attempts
        total.causes += done.causes
        total.refused += done.refused
        total.living += done.living
        total.unfound += done.unfound
        total.elapsed_s += done.elapsed_s
        total.settled_s = max(total.settled_s, done.settled_s)
        parts = zip(astuple(total.tally), astuple(done.tally), strict=True)
        total.tally = FaultTally(*(before + after for before, after in parts))
    return total


def rows_of(done: FaultCampaign, *, quick: bool) -> list[BenchmarkRow]:
    """Return the outcome of campaigns as rows."""
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
        at_most("wrong causes under faults", len(done.tally.causes), 0, "attempts", n=done.causes,
                how=_some(done.tally.causes)),
        at_most("living jobs not found by a plane without its journal", len(done.unfound), 0, "jobs", n=done.living,
                how=_some(done.unfound)),
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
        injector.staff.kinds = {design.job.key: design.kind for wave in waves for design in wave}
        _strike(injector, settings, waves, size, rng)
        began_to_settle_s = time.monotonic()
        injector.heal(everything=True)
        jobs = _settled(injector, Path(settings.journal or ""), size.settles_s)
        runs = read_ledger(ledger)
        designs = [_as_changed(job, injector.staff.cancelled, runs) for wave in waves for job in wave]
        done = FaultCampaign(designs, injector.struck, log=injector.log)
        done.settled_s = time.monotonic() - began_to_settle_s
        injector.plane.kill()
        _keep(folder, done, [job for job in jobs.values() if not job.state.final], injector.cluster)
        tally = tally_faults(designs, {key: job.state for key, job in jobs.items()}, runs, injector.deaths)
        verdicts = read_verdicts(injector.plane.folder / VERDICTS)
        causes = wrong_causes(designs, jobs, verdicts, injector.staff.causes, injector.outages, injector.silences)
        lost = tuple(_with_last_attempt(sentence, jobs) for sentence in tally.lost)
        done.tally, done.causes = replace(tally, lost=lost, causes=causes), len(verdicts)
        done.starts, done.attempts = len(runs), len({run.attempt for run in runs})
        done.struck[Fault.SBATCH] = injector.shims.used()["sbatch"]  # an order that nobody took is no fault
        done.living, done.unfound = injector.swap.living, injector.swap.unfound
        done.ends, done.disk, done.refused = injector.plane.ends, injector.disk.how, injector.plane.refused
    done.elapsed_s = time.monotonic() - began_s
    return done


@contextmanager
def _stage(folder: Path, size: FaultCampaignSize, rng: random.Random) -> Iterator[tuple[Injector, HostSettings]]:
    """Yield the injector of faults on a new cluster, and the settings of its plane."""
    with ExitStack() as stack:
        for name in ("cluster", "ledger", "sshd", "jobs"):
            (folder / name).mkdir(parents=True)
        write_plugin(folder / "cluster")
        plan = ClusterPlan(
            name="faults", nodes=NODES, cores=4, memory_mib=4000, silent_s=10, settings=(PLUGIN_SETTING,)
        )
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
        staff = SiteStaff(cluster, Path(settings.journal or ""), rng)
        staff.set_up()
        swap = JournalSwap(staff.journal, plane, cluster)
        yield Injector(cluster, plane, shims, disk, server, staff, rng, swap), settings


def _strike(
    injector: Injector,
    settings: HostSettings,
    waves: list[list[DesignedJob]],
    size: FaultCampaignSize,
    rng: random.Random,
) -> None:
    """Submit jobs at random moments while faults strike; for a part of the time the plane connects over SSH."""
    low, high = (share * size.lasts_s for share in SSH_PART)
    events: list[tuple[float, Callable[[], bool | None]]] = [
        (low, lambda: _change(injector, replace(settings, ssh=HOST))),
        (high, lambda: _change(injector, settings)),
        *(
            (at_s, partial(_strike_once, injector, fault))
            for at_s, fault in strike_times(size.numbers, size.lasts_s, rng)
        ),
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
            _, event = coming.popleft()
            if event() is False and now_s < size.lasts_s + AGAIN_S:
                insort(coming, (now_s + AGAIN_S, event), key=lambda event: event[0])
        hands = handing and handing[0][0] <= now_s and injector.has_own_journal
        if hands and _submit(Path(settings.journal or ""), handing[0][1]):
            handing.popleft()
            injector.submitted_s = time.monotonic()
        time.sleep(0.02)
        if now_s > size.lasts_s + size.settles_s:
            raise LeadlineError(f"{len(handing)} waves of jobs could not be submitted: see {injector.plane.folder}")


def _strike_once(injector: Injector, fault: Fault) -> bool | None:
    """Inject a fault; return False if it should be tried again, because it needs a job that is not there yet."""
    return injector.strike(fault) or (False if fault in PATIENT else None)


def _change(injector: Injector, settings: HostSettings) -> bool:
    """Kill the plane and start it again with other settings; return False while it has no journal."""
    if not injector.has_journal:
        return False
    injector.plane.kill()
    injector.plane.settle_for(settings)
    injector.plane.start()
    return True


def _submit(path: Path, wave: list[DesignedJob]) -> bool:
    """Submit jobs as ``leadline submit`` does; return False if the disk is full, so that the user has to try again."""
    try:
        with PlaneJournal(path) as journal:
            journal.add(design.job for design in wave)
    except LeadlineError:
        return False
    return True


def _as_changed(design: DesignedJob, cancelled: Collection[str], runs: Collection[LedgerRun]) -> DesignedJob:
    """Return a job's design with the end that the site's staff gave it, unless it had ended by then."""
    key = design.job.key
    has_ended = any(run.job == key and run.code == design.code for run in runs)
    return replace(design, state=JobState.CANCELLED, code=None) if key in cancelled and not has_ended else design


def _settled(injector: Injector, path: Path, most_s: float) -> dict[str, Job]:
    """Wait until all jobs are closed, at most ``most_s``; return all jobs by key."""
    until_s = time.monotonic() + most_s
    while True:
        injector.supervise()
        injector.staff.release_all()
        with PlaneJournal(path) as journal:
            if not journal.open_jobs() or time.monotonic() > until_s:
                return injector.closed | {job.key: job for job in journal.newest_jobs()}
        time.sleep(0.5)


def _with_last_attempt(sentence: str, jobs: Mapping[str, Job]) -> str:
    """Add to a sentence about a lost job, which begins with its key, what its last attempt did."""
    job = jobs.get(sentence.partition(" ")[0])
    if job is None or not job.attempts:
        return f"{sentence} ({'no attempt' if job else 'not in the journal'})"
    last = job.attempts[-1]
    return (
        f"{sentence} (attempt {last.number} as {last.scheduler_id}, {last.state.value}: {last.reason or 'no reason'})"
    )


def _keep(folder: Path, done: FaultCampaign, lost: Collection[Job], cluster: SlurmCluster) -> None:
    """Keep the journal, whose disk is unmounted, the log of faults, and what is known of lost jobs."""
    shutil.copytree(folder / "disk", folder / "kept")
    for attempt in (job.attempts[-1] for job in lost if job.attempts):
        number = attempt.scheduler_id or ""
        fields = "JobID,JobIDRaw,State,Submit,Start,End,NodeList,JobName,ExitCode"
        for command in (["sacct", "-P", "--duplicates", "-j", number, "-o", fields],
                        ["scontrol", "-a", "show", "job", number]):  # fmt: skip
            answer = cluster.run(command)
            with (folder / "kept" / f"{attempt.job}.txt").open("a", encoding="utf-8") as file:
                file.write(f"{' '.join(command)}\n{answer.stdout}{answer.stderr}\n")
        for path in (folder / "jobs").rglob(f"*{attempt.key}*"):
            shutil.copy(path, folder / "kept")
    lines = "".join(f"{iso_utc(at_s)} {event}\n" for at_s, event in done.log)
    (folder / "kept" / "faults.log").write_text(lines, encoding="utf-8")


def _some(sentences: Sequence[str]) -> str:
    return "; ".join(sentences[:5]) + (f"; and {len(sentences) - 5} more" if len(sentences) > 5 else "")
