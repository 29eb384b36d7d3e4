"""The closed loop on real training jobs: first requests of two kinds, right-sized by the plane on a real Slurm.

Each job first runs once with ample resources, to measure its needs. Then it is submitted again with 0.3 of that time
(which Slurm rounds up to whole minutes) and half of that memory, and the plane manages it without help. A third round
submits it with a request like a user's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from benchmarks.plane.loop_jobs import NODE, LoopJob, MeasuredJob, loop_jobs
from benchmarks.plane.loop_rows import LoopRound, small_request_rows, user_request_rows
from benchmarks.plane.user_requests import MAX_WALLTIME_S, user_ratios, user_request
from benchmarks.results import BenchmarkRow
from leadline.app.jobs.plane_advisor import PlaneAdvisor
from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.hardware import Device
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place, Policy
from leadline.core.processes import CompletedProcess
from leadline.core.systems import Limits, Partition, System
from leadline.core.units import MIB
from leadline.execution.clock import Clock, epoch_s
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
    (Partition("long", NODE, limits=Limits(max_walltime_s=MAX_WALLTIME_S)),),
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
    ratios = dict(zip((job.name for job in jobs), user_ratios(len(jobs), seed), strict=True))
    with slurm_cluster(cluster_folder, plan) as cluster:
        truths = measured(cluster, folder / "truth", jobs)
        small = {name: truth.wrong(TIME_SHARE, MEMORY_SHARE) for name, truth in truths.items()}
        users = {name: user_request(truth, ratios[name]) for name, truth in truths.items()}
        followed, users_followed = (
            right_sized(cluster, folder / name, jobs, first) for name, first in (("loop", small), ("users", users))
        )
    return [
        *small_request_rows(LoopRound(truths, small, followed)),
        *user_request_rows(LoopRound(truths, users, users_followed), ratios),
    ]


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
    cluster: SlurmCluster, folder: Path, jobs: Sequence[LoopJob], first: Mapping[str, ResourceSpec]
) -> dict[str, Job]:
    """Submit each job with its first request; return the jobs as the plane left them."""
    submitted = []
    for job in jobs:
        policy = Policy((PLACE,), resumes=job.resumes, checkpoint_s=5.0, may_restart=True)
        submitted.append(_job(job, folder, first[job.name], policy))
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
    clock: Clock = field(default_factory=Clock)
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
