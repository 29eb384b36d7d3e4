"""The closed loop on real training jobs: requests that are far too small, right-sized by the plane on a real Slurm.

Each job is first run once with room to spare, which tells what it truly takes. Then it is handed over again with 0.3
of that time (which Slurm rounds up to whole minutes) and half of that memory, and the plane is left alone with it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from benchmarks.plane.loop_jobs import (
    NODE,
    SHARE,
    JobCost,
    LoopJob,
    MeasuredJob,
    loop_jobs,
    oracle_cost,
    retry_cost,
    whole_node_cost,
)
from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.app.jobs.plane_advisor import PlaneAdvisor
from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.hardware import Device
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place, Policy
from leadline.core.processes import CompletedProcess
from leadline.core.systems import Limits, Partition, System
from leadline.core.units import DAY_S, MIB
from leadline.execution.clock import SystemClock, epoch_s
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.processes import run_process
from leadline.execution.schedulers.port import RequestRefused
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from leadline.history.sqlite import SqliteHistory
from leadline.testing.slurm_cluster import SlurmCluster, slurm_cluster
from leadline.testing.slurm_plan import ClusterPlan, cgroups_writable
from leadline.training.shipped_files import shipped_live_table

TIME_SHARE, MEMORY_SHARE = 0.3, 0.5
JOBS, QUICK_JOBS = 20, 4
PLACE = Place("cluster", "long")
ROOM = ResourceSpec(cores_per_task=1, memory_bytes_per_node=1400 * MIB, walltime_s=1800.0)
"""What the runs that tell the truth may take; two of them fit on a node."""
APART_S = 4.0
"""Jobs are handed over so far apart: all at once would start on two cores together, which no cluster's nodes do."""
QUICKLY = PollIntervals(first=1.0, last=3.0, reports=3.0, decide=30.0)
"""Jobs of minutes are looked at more often than those of hours."""
MOST_S = 900.0
"""How long one round of all jobs may take before the bench gives up."""
SYSTEM = System(
    "cluster", "bench", "cluster", "production", "slurm",
    (Partition("long", NODE, limits=Limits(max_walltime_s=7 * DAY_S)),),
)  # fmt: skip


def loop_rows(folder: Path, *, quick: bool, seed: int) -> list[BenchmarkRow]:
    """Start a cluster in ``folder``, run all jobs in both rounds, and return the rows.

    Raises:
        LeadlineError: the cluster did not start, or a job failed though it had room to spare.
    """
    jobs = loop_jobs(QUICK_JOBS, seed, work=0.04) if quick else loop_jobs(JOBS, seed)
    settings = () if cgroups_writable() else ("JobAcctGatherParams=OverMemoryKill",)
    memory_mib = round((NODE.memory_bytes or 0) / MIB)
    plan = ClusterPlan(nodes=len(jobs) // 2, cores=NODE.cores or 1, memory_mib=memory_mib, settings=settings)
    (cluster_folder := folder / "slurm").mkdir(parents=True)
    with slurm_cluster(cluster_folder, plan) as cluster:
        truths = measured(cluster, folder / "truth", jobs)
        followed = right_sized(cluster, folder / "loop", jobs, truths)
    return _rows(jobs, truths, followed)


def measured(cluster: SlurmCluster, folder: Path, jobs: Sequence[LoopJob]) -> dict[str, MeasuredJob]:
    """Run each job once with room to spare; return what each took, and how its memory grew."""
    policy = Policy((PLACE,), attempts=1, resizes=False)
    done = _round(cluster, folder, [_job(one, folder, ROOM, policy) for one in jobs])
    with PlaneJournal(folder / "journal.sqlite") as journal:
        grown: dict[str, list[tuple[float, float]]] = {}
        for event in journal.events(kinds=(EventKind.PROGRESS,)):
            at_s, held = event.details.get("elapsed_s"), event.details.get("host_memory_bytes")
            if isinstance(at_s, float | int) and isinstance(held, float | int):
                grown.setdefault(event.job, []).append((float(at_s), float(held)))
    runs = {run.id: run for run in SqliteHistory(folder / "history.sqlite").runs()}
    found = {}
    for key, job in done.items():
        run = runs.get(job.attempts[-1].key) if job.attempts else None
        if job.state is not JobState.COMPLETED or run is None:
            raise LeadlineError(f"{key} ended {job.state.value} though it had room to spare: {job.reason}")
        peak = run.measured["host_memory_bytes"].value
        elapsed_s = _lasted_s(job)
        points = [*grown.get(key, []), (elapsed_s, peak)]
        found[key] = MeasuredJob(elapsed_s, peak, tuple(points), job.policy.resumes)
    return found


def right_sized(
    cluster: SlurmCluster, folder: Path, jobs: Sequence[LoopJob], truths: Mapping[str, MeasuredJob]
) -> dict[str, Job]:
    """Hand each job over with a request that is far too small, and return the jobs as the plane left them."""
    asked = []
    for one in jobs:
        policy = Policy((PLACE,), resumes=one.resumes, checkpoint_s=5.0)
        asked.append(_job(one, folder, truths[one.name].wrong(TIME_SHARE, MEMORY_SHARE), policy))
    return _round(cluster, folder, asked)


@dataclass(frozen=True, slots=True)
class TheSystem:
    """A catalog of the bench's own cluster alone (implements ``Catalog``)."""

    here: System = SYSTEM

    def devices(self) -> Sequence[Device]:
        """Return none."""
        return ()

    def systems(self) -> Sequence[System]:
        """Return the cluster."""
        return (self.here,)

    def device(self, name: str) -> Device:
        """Find none."""
        raise UnknownName("device", name, ())

    def system(self, name: str) -> System:
        """Return the cluster."""
        if name != self.here.name:
            raise UnknownName("system", name, (self.here.name,))
        return self.here


class OwnerSlurm(SlurmScheduler):
    """Slurm as it is to a job's owner: who runs the bench is the administrator of its cluster, and could do more."""

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Ask for another limit; a longer one of a job that runs is refused, as Slurm refuses it to the owner."""
        now = self.query([scheduler_id]).get(scheduler_id)
        if now is not None and now.state is JobState.RUNNING and walltime_s > (now.walltime_s or 0.0):
            raise RequestRefused(f"job {scheduler_id} runs, and its owner may not lengthen its limit")
        super().change_walltime(scheduler_id, walltime_s)


@dataclass(slots=True)
class _Hand:
    """Hands jobs over one after another, and says when a plane is done with all of them."""

    journal: PlaneJournal
    waiting: list[Job]
    clock: SystemClock = field(default_factory=SystemClock)
    began_s: float = field(init=False)
    handed: int = 0

    def __post_init__(self) -> None:
        self.began_s = self.clock.monotonic_s()

    def done(self, plane: Plane) -> bool:
        """Hand over what is due; return whether the plane has nothing left to do.

        Raises:
            LeadlineError: it takes too long.
        """
        passed_s = self.clock.monotonic_s() - self.began_s
        while self.waiting and passed_s >= self.handed * APART_S:
            self.journal.add([self.waiting.pop(0)])
            self.handed += 1
        if passed_s > MOST_S:
            raise LeadlineError(f"the jobs of the loop are not over after {MOST_S:.0f} s: see {self.journal.path}")
        return not self.waiting and plane.idle and not self.journal.open_jobs()


def _round(cluster: SlurmCluster, folder: Path, jobs: Sequence[Job]) -> dict[str, Job]:
    """Run a plane until it is done with all jobs, and return them by their keys."""

    def on_cluster(
        argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        stdin: str | None = None, timeout_s: float | None = None,
    ) -> CompletedProcess:  # fmt: skip
        return run_process(argv, env={**cluster.environment, **(env or {})}, cwd=cwd, stdin=stdin, timeout_s=timeout_s)

    for job in jobs:
        (folder / job.key).mkdir(parents=True)
    system = TheSystem()
    scheduler = OwnerSlurm(
        PLACE.system, PurePosixPath(folder / "jobs"), LocalTransport(on_cluster), python=jobs[0].spec.command[0],
        partition_of=lambda spec: system.here.partition(spec.partition or ""),
    )  # fmt: skip
    advisor = PlaneAdvisor(system, SqliteHistory(folder / "history.sqlite"), shipped_live_table())
    with PlaneJournal(folder / "journal.sqlite") as journal:
        plane = Plane(journal, lambda _: scheduler, advisor, diagnose=diagnose, decide=decide, intervals=QUICKLY)
        hand = _Hand(journal, list(jobs))
        plane.run(lambda: hand.done(plane))
        return {job.key: job for job in journal.jobs_by_key([job.key for job in jobs])}


def _job(one: LoopJob, folder: Path, asked: ResourceSpec, policy: Policy) -> Job:
    spec = JobSpec(one.name, one.command, asked, workdir=str(folder / one.name), watched=True)
    return Job(one.name, spec, policy)


def _lasted_s(job: Job) -> float:
    """Return how long all attempts of a job lasted, by the accounting's times."""
    return sum(
        epoch_s(one.ended_at) - epoch_s(one.started_at) for one in job.attempts if one.started_at and one.ended_at
    )


def _spent(job: Job) -> JobCost:
    """Return what all attempts of a job took, each by its own request."""
    total = JobCost()
    for one in job.attempts:
        if one.started_at and one.ended_at:
            total += JobCost.of(epoch_s(one.ended_at) - epoch_s(one.started_at), one.resources)
    return total


def _rows(
    jobs: Sequence[LoopJob], truths: Mapping[str, MeasuredJob], followed: Mapping[str, Job]
) -> list[BenchmarkRow]:
    names, n = [one.name for one in jobs], len(jobs)
    first = {name: truths[name].wrong(TIME_SHARE, MEMORY_SHARE) for name in names}
    best = sum((oracle_cost(truths[name]) for name in names), JobCost())
    ours = sum((_spent(followed[name]) for name in names), JobCost())
    most = sum((whole_node_cost(truths[name]) for name in names), JobCost())
    retried = sum((retry_cost(truths[name], first[name]) for name in names), JobCost())
    completed = sum(followed[name].state is JobState.COMPLETED for name in names)
    used = "sum over attempts of nodes × accounted seconds"
    weighed = f"{used} × the larger of the shares of a node's {NODE.cores} cores and of its memory that were asked for"
    rule, room = "× 1.5 on failure", "partition's maximum and a full node"
    return [
        at_least("loop: jobs that complete without help", 100 * completed / n, 95.0, "%", n=n,
                 how=f"{_asked(truths, first)}; attempts: {_endings(followed.values())}"),
        at_most("loop: node-time ÷ an oracle's, the plane", ours.node_s / best.node_s, 1.3, "times", n=n,
                baseline=retried.node_s / best.node_s, how=f"{used}; baseline: {rule}"),
        BenchmarkRow(f"loop: node-time ÷ an oracle's, {rule}", retried.node_s / best.node_s, "times", n=n,
                 how="computed from the same truths; its limits hold to the second, which flatters it"),
        BenchmarkRow(f"loop: node-time ÷ an oracle's, {room}", most.node_s / best.node_s, "times", n=n,
                 how="computed: it runs once, to its end"),
        BenchmarkRow("loop: cost ÷ an oracle's, the plane", ours.cost_s / best.cost_s, "times", n=n,
                 baseline=retried.cost_s / best.cost_s, how=f"{weighed}; baseline: {rule}"),
        BenchmarkRow(f"loop: cost ÷ an oracle's, {rule}", retried.cost_s / best.cost_s, "times", n=n, how=weighed),
        BenchmarkRow(f"loop: cost ÷ an oracle's, {room}", most.cost_s / best.cost_s, "times", n=n, how=weighed),
        at_least(f"loop: cost saved against {room}", 100 * (1 - ours.cost_s / most.cost_s), 40.0, "%", n=n,
                 baseline=100 * (1 - best.cost_s / most.cost_s), how="baseline: what the oracle saves"),
    ]  # fmt: skip


def _asked(truths: Mapping[str, MeasuredJob], first: Mapping[str, ResourceSpec]) -> str:
    """Say what the jobs were, and how wrong their first requests."""
    lasted = sorted(one.elapsed_s for one in truths.values())
    rounded = sum((first[name].walltime_s or 0.0) / one.elapsed_s for name, one in truths.items()) / len(truths)
    return (
        f"real training at {100 * SHARE:.0f} % of a core, {lasted[0]:.0f} to {lasted[-1]:.0f} s each; first asked for: "
        f"{TIME_SHARE} of the time ({rounded:.2f} in whole minutes) and {MEMORY_SHARE} of the memory"
    )


def _endings(jobs: Iterable[Job]) -> str:
    """Say how the attempts ended."""
    counted = Counter(
        "ended by the plane for a larger one" if one.withdrawn else one.state.value
        for job in jobs
        for one in job.attempts
    )
    return ", ".join(f"{count} {said}" for said, count in counted.most_common())
