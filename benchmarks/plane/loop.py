"""The closed loop on real training jobs: requests that are far too small, right-sized by the plane on a real Slurm.

Each job first runs once with ample resources, to measure its needs. Then it is submitted again with 0.3 of that time
(which Slurm rounds up to whole minutes) and half of that memory, and the plane manages it without help.
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
from leadline.training.shipped_files import shipped_live_table
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster
from tests.support.slurm_plan import ClusterPlan, cgroups_writable

TIME_SHARE, MEMORY_SHARE = 0.3, 0.5
JOBS, QUICK_JOBS = 20, 4
PLACE = Place("cluster", "long")
ROOM = ResourceSpec(cores_per_task=1, memory_bytes_per_node=1400 * MIB, walltime_s=1800.0)
"""Request of the measuring runs; two of them fit on a node."""
APART_S = 4.0
"""Seconds between submissions: all at once would start on two cores together, unlike on a real cluster's nodes."""
QUICKLY = PollIntervals(first=1.0, last=3.0, reports=3.0, decide=30.0)
"""Jobs of minutes are polled more often than jobs of hours."""
MOST_S = 900.0
"""Time limit of one round of all jobs."""
SYSTEM = System(
    "cluster", "bench", "cluster", "production", "slurm",
    (Partition("long", NODE, limits=Limits(max_walltime_s=7 * DAY_S)),),
)  # fmt: skip


def loop_rows(folder: Path, *, quick: bool, seed: int) -> list[BenchmarkRow]:
    """Start a cluster in ``folder``, run all jobs in both rounds, and return the rows.

    Raises:
        LeadlineError: The cluster did not start, or a job failed despite ample resources.
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
    """Run each job once with ample resources; return its time, memory, and the growth of its memory."""
    policy = Policy((PLACE,), attempts=1, resizes=False)
    done = _round(cluster, folder, [_job(job, folder, ROOM, policy) for job in jobs])
    with PlaneJournal(folder / "journal.sqlite") as journal:
        grown: dict[str, list[tuple[float, float]]] = {}
        for event in journal.events(kinds=(EventKind.PROGRESS,)):
            at_s, size = event.details.get("elapsed_s"), event.details.get("host_memory_bytes")
            if isinstance(at_s, float | int) and isinstance(size, float | int):
                grown.setdefault(event.job, []).append((float(at_s), float(size)))
    runs = {run.id: run for run in SqliteHistory(folder / "history.sqlite").runs()}
    truths = {}
    for key, job in done.items():
        run = runs.get(job.attempts[-1].key) if job.attempts else None
        if job.state is not JobState.COMPLETED or run is None:
            raise LeadlineError(f"{key} ended {job.state.value} despite ample resources: {job.reason}")
        peak = run.measured["host_memory_bytes"].value
        elapsed_s = _lasted_s(job)
        points = [*grown.get(key, []), (elapsed_s, peak)]
        truths[key] = MeasuredJob(elapsed_s, peak, tuple(points), job.policy.resumes)
    return truths


def right_sized(
    cluster: SlurmCluster, folder: Path, jobs: Sequence[LoopJob], truths: Mapping[str, MeasuredJob]
) -> dict[str, Job]:
    """Submit each job with a request that is far too small; return the jobs as the plane left them."""
    submitted = []
    for job in jobs:
        policy = Policy((PLACE,), resumes=job.resumes, checkpoint_s=5.0, may_restart=True)
        submitted.append(_job(job, folder, truths[job.name].wrong(TIME_SHARE, MEMORY_SHARE), policy))
    return _round(cluster, folder, submitted)


@dataclass(frozen=True, slots=True)
class TheSystem:
    """A catalog of the benchmark's cluster alone (implements ``Catalog``)."""

    cluster: System = SYSTEM

    def devices(self) -> Sequence[Device]:
        """Return no devices."""
        return ()

    def systems(self) -> Sequence[System]:
        """Return the cluster."""
        return (self.cluster,)

    def device(self, name: str) -> Device:
        """Raise UnknownName: there are no devices."""
        raise UnknownName("device", name, ())

    def system(self, name: str) -> System:
        """Return the cluster."""
        if name != self.cluster.name:
            raise UnknownName("system", name, (self.cluster.name,))
        return self.cluster


class OwnerSlurm(SlurmScheduler):
    """Slurm with the rights of a job's owner; whoever runs the benchmark is the administrator of its cluster."""

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Change the limit of a job; refuse a longer one for a running job, as Slurm does to its owner."""
        now = self.query([scheduler_id]).get(scheduler_id)
        if now is not None and now.state is JobState.RUNNING and walltime_s > (now.walltime_s or 0.0):
            raise RequestRefused(f"job {scheduler_id} is running, so its owner may not lengthen its limit")
        super().change_walltime(scheduler_id, walltime_s)


@dataclass(slots=True)
class _Submitter:
    """Submit jobs one after another until the plane has finished all of them."""

    journal: PlaneJournal
    waiting: list[Job]
    clock: SystemClock = field(default_factory=SystemClock)
    began_s: float = field(init=False)
    submitted: int = 0

    def __post_init__(self) -> None:
        self.began_s = self.clock.monotonic_s()

    def done(self, plane: Plane) -> bool:
        """Submit the jobs that are due; return whether the plane has nothing left to do.

        Raises:
            LeadlineError: The round takes too long.
        """
        passed_s = self.clock.monotonic_s() - self.began_s
        while self.waiting and passed_s >= self.submitted * APART_S:
            self.journal.add([self.waiting.pop(0)])
            self.submitted += 1
        if passed_s > MOST_S:
            raise LeadlineError(f"the jobs of the loop are not over after {MOST_S:.0f} s: see {self.journal.path}")
        return not self.waiting and plane.idle and not self.journal.open_jobs()


def _round(cluster: SlurmCluster, folder: Path, jobs: Sequence[Job]) -> dict[str, Job]:
    """Run a plane until all jobs are finished; return them by their keys."""

    def on_cluster(
        argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: Path | None = None,
        stdin: str | None = None, timeout_s: float | None = None,
    ) -> CompletedProcess:  # fmt: skip
        return run_process(argv, env={**cluster.environment, **(env or {})}, cwd=cwd, stdin=stdin, timeout_s=timeout_s)

    for job in jobs:
        (folder / job.key).mkdir(parents=True)
    system = TheSystem()
    scheduler = OwnerSlurm(
        PLACE.system, PurePosixPath(folder / "jobs"), LocalTransport(on_cluster), python=jobs[0].spec.command[0],
        partition_of=lambda spec: system.cluster.partition(spec.partition or ""),
    )  # fmt: skip
    advisor = PlaneAdvisor(system, SqliteHistory(folder / "history.sqlite"), shipped_live_table())
    with PlaneJournal(folder / "journal.sqlite") as journal:
        plane = Plane(journal, lambda _: scheduler, advisor, diagnose=diagnose, decide=decide, intervals=QUICKLY)
        submitter = _Submitter(journal, list(jobs))
        plane.run(lambda: submitter.done(plane))
        return {job.key: job for job in journal.jobs_by_key([job.key for job in jobs])}


def _job(job: LoopJob, folder: Path, request: ResourceSpec, policy: Policy) -> Job:
    spec = JobSpec(job.name, job.command, request, workdir=str(folder / job.name), watched=True)
    return Job(job.name, spec, policy)


def _lasted_s(job: Job) -> float:
    """Return the total time of a job's attempts, from accounting."""
    return sum(
        epoch_s(attempt.ended_at) - epoch_s(attempt.started_at)
        for attempt in job.attempts
        if attempt.started_at and attempt.ended_at
    )


def _cost(job: Job) -> JobCost:
    """Return the cost of all attempts of a job, each with its own request."""
    total = JobCost()
    for attempt in job.attempts:
        if attempt.started_at and attempt.ended_at:
            total += JobCost.of(epoch_s(attempt.ended_at) - epoch_s(attempt.started_at), attempt.resources)
    return total


def _rows(
    jobs: Sequence[LoopJob], truths: Mapping[str, MeasuredJob], followed: Mapping[str, Job]
) -> list[BenchmarkRow]:
    names, n = [job.name for job in jobs], len(jobs)
    first = {name: truths[name].wrong(TIME_SHARE, MEMORY_SHARE) for name in names}
    best = sum((oracle_cost(truths[name]) for name in names), JobCost())
    plane = sum((_cost(followed[name]) for name in names), JobCost())
    most = sum((whole_node_cost(truths[name]) for name in names), JobCost())
    retried = sum((retry_cost(truths[name], first[name]) for name in names), JobCost())
    completed = sum(followed[name].state is JobState.COMPLETED for name in names)
    used = "sum over attempts of nodes × accounted seconds"
    weighed = f"{used} × the larger of the requested shares of a node's {NODE.cores} cores and of its memory"
    rule, room = "× 1.5 on failure", "partition's maximum and a full node"
    return [
        at_least("loop: jobs that complete without help", 100 * completed / n, 95.0, "%", n=n,
                 how=f"{_requests(truths, first)}; attempts: {_endings(followed.values())}"),
        at_most("loop: node-time ÷ an oracle's, the plane", plane.node_s / best.node_s, 1.3, "times", n=n,
                baseline=retried.node_s / best.node_s, how=f"{used}; baseline: {rule}"),
        BenchmarkRow(f"loop: node-time ÷ an oracle's, {rule}", retried.node_s / best.node_s, "times", n=n,
                 how="computed from the same needs; its limits are exact to the second, which favours it"),
        BenchmarkRow(f"loop: node-time ÷ an oracle's, {room}", most.node_s / best.node_s, "times", n=n,
                 how="computed: one run to its end"),
        BenchmarkRow("loop: cost ÷ an oracle's, the plane", plane.cost_s / best.cost_s, "times", n=n,
                 baseline=retried.cost_s / best.cost_s, how=f"{weighed}; baseline: {rule}"),
        BenchmarkRow(f"loop: cost ÷ an oracle's, {rule}", retried.cost_s / best.cost_s, "times", n=n, how=weighed),
        BenchmarkRow(f"loop: cost ÷ an oracle's, {room}", most.cost_s / best.cost_s, "times", n=n, how=weighed),
        at_least(f"loop: cost saved against {room}", 100 * (1 - plane.cost_s / most.cost_s), 40.0, "%", n=n,
                 baseline=100 * (1 - best.cost_s / most.cost_s), how="baseline: the oracle's saving"),
    ]  # fmt: skip


def _requests(truths: Mapping[str, MeasuredJob], first: Mapping[str, ResourceSpec]) -> str:
    """Describe the jobs and the errors of their first requests."""
    lasted = sorted(truth.elapsed_s for truth in truths.values())
    shares = [(first[name].walltime_s or 0.0) / truth.elapsed_s for name, truth in truths.items()]
    return (
        f"real training at {100 * SHARE:.0f} % of a core, {lasted[0]:.0f} to {lasted[-1]:.0f} s each; first request: "
        f"{TIME_SHARE} of the time ({sum(shares) / len(shares):.2f} in whole minutes), {MEMORY_SHARE} of the memory"
    )


def _endings(jobs: Iterable[Job]) -> str:
    """Describe how the attempts ended."""
    counted = Counter(
        "ended by the plane for a larger one" if attempt.withdrawn else attempt.state.value
        for job in jobs
        for attempt in job.attempts
    )
    return ", ".join(f"{count} {ending}" for ending, count in counted.most_common())
