"""A simulated site: its controller, its accounting and its jobs, shared by any number of adapters."""

import heapq
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from benchmarks.plane.simulated.cluster import EasyQueue, NodeRequest, SimulatedCluster
from leadline.core.errors import NothingFits, UnknownName
from leadline.core.jobs import JobState
from leadline.core.plane import DependencyKind
from leadline.execution.clock import Clock
from leadline.execution.schedulers.port import RequestRefused, Submission
from leadline.execution.wrapper.gate import RELEASE_TIMEOUT_S
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN

NEVER_SATISFIED = "DependencyNeverSatisfied"


@dataclass(frozen=True, slots=True)
class JobBehaviour:
    """Behaviour of an undisturbed job.

    Attributes:
        elapsed_s: run time.
        memory_bytes: memory need per node. A job with a smaller request is killed halfway.
        exit_code: exit code at its end.
        hides_oom: the job ends as FAILED, and only its step shows that memory ran out, as with Slurm's batch steps.
    """

    elapsed_s: float = 60.0
    memory_bytes: int = 0
    exit_code: int = 0
    hides_oom: bool = False


@dataclass(slots=True)
class SimulatedJob:
    """A job or array element in the site's controller.

    Attributes:
        ends_s: planned end.
        let: its command may begin.
        begun_s: time when its command began.
    """

    id: str
    key: str
    submission: Submission
    behaviour: JobBehaviour
    submitted_s: float
    walltime_s: float
    state: JobState = JobState.PENDING
    reason: str = "Priority"
    queued: bool = False
    started_s: float | None = None
    ended_s: float | None = None
    ends_s: float = math.inf
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    evidence: tuple[str, ...] = ()
    let: bool = True
    begun_s: float | None = None

    @property
    def array(self) -> str:
        """Id of its submission."""
        return self.id.partition("_")[0]


@dataclass(slots=True)
class SimulatedSite:
    """A cluster under EASY backfill, driven by a clock; every job ends exactly once.

    ``behaves`` returns the behaviour of an element of a submission by its position. Every call first catches up with
    the clock.
    """

    cluster: SimulatedCluster
    clock: Clock
    behaves: Callable[[Submission, int], JobBehaviour]
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    queue: EasyQueue = field(init=False)
    at_s: float = field(init=False)
    _submitted: dict[str, list[SimulatedJob]] = field(default_factory=dict)
    _pending_dependency: dict[str, SimulatedJob] = field(default_factory=dict)
    _ends: list[tuple[float, int, str]] = field(default_factory=list)
    _late: list[tuple[float, Submission]] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self.queue = EasyQueue(self.cluster)
        self.at_s = self.clock.now_s()

    def check(self, submission: Submission) -> None:
        """Check that the site would accept a submission.

        Raises:
            RequestRefused: it exceeds the partition's limits or depends on an unknown job.
        """
        spec = submission.spec
        try:
            partition = self.cluster.partition(spec.partition or "")
            self.cluster.check(NodeRequest.of(spec.resources, partition.name))
        except (NothingFits, UnknownName) as error:
            raise RequestRefused(f"the site accepts no job {spec.name!r}: {error}") from error
        longest_s = partition.max_s or math.inf
        if (spec.resources.walltime_s or 0.0) > longest_s:
            raise RequestRefused(
                f"the site accepts no job {spec.name!r}: at most {longest_s:g} s are allowed in {partition.name}"
            )
        if unknown := [job_id for job_id in submission.after if not self.of([job_id])]:
            raise RequestRefused(f"the site accepts no job {spec.name!r}: it depends on the unknown job {unknown[0]}")

    def take(self, submission: Submission) -> str:
        """Queue a checked submission, unless its key is known, and return its id."""
        if submission.key in self.keys:
            return self.keys[submission.key]
        self._number += 1
        number = str(self._number)
        self.keys[submission.key] = number
        partition = self.cluster.partition(submission.spec.partition or "")
        walltime_s = submission.spec.resources.walltime_s or partition.default_s or partition.max_s or math.inf
        for position, key in enumerate(submission.keys):
            job_id = f"{number}_{submission.indices[position]}" if submission.indices else number
            behaviour = self.behaves(submission, position)
            self.jobs[job_id] = self._pending_dependency[job_id] = SimulatedJob(
                job_id, key, submission, behaviour, self.at_s, walltime_s, let=not submission.held or key in self.words
            )
            self._submitted.setdefault(number, []).append(self.jobs[job_id])
        self._schedule()
        return number

    def take_later(self, submission: Submission, delay_s: float) -> None:
        """Let a submission arrive after a delay."""
        self._late.append((self.at_s + delay_s, submission))

    def of(self, ids: Collection[str]) -> list[SimulatedJob]:
        """Return the jobs of these ids; an array's id means its elements."""
        jobs: dict[str, SimulatedJob] = {}
        for job_id in ids:
            matches = [self.jobs[job_id]] if job_id in self.jobs else self._submitted.get(job_id, [])
            jobs |= {job.id: job for job in matches}
        return list(jobs.values())

    def catch_up(self) -> None:
        """Process all events up to the present, in time order."""
        now_s = max(self.at_s, self.clock.now_s())
        while True:
            ends_s = self._ends[0][0] if self._ends else math.inf
            late_s = min((at_s for at_s, _ in self._late), default=math.inf)
            at_s = min(ends_s, late_s)
            if at_s > now_s:
                break
            self.at_s = at_s
            # A changed limit leaves an outdated entry in the heap, recognized by its time.
            while self._ends and self._ends[0][0] == at_s:
                job = self.jobs[heapq.heappop(self._ends)[2]]
                if job.state is JobState.RUNNING and job.ends_s == at_s:
                    self._end_by_itself(job)
            for late in [arrival for arrival in self._late if arrival[0] == at_s]:
                self._late.remove(late)
                self.take(late[1])
            self._schedule()
        self.at_s = now_s

    def end(self, jobs: Iterable[SimulatedJob], state: JobState, reason: str) -> None:
        """End jobs now from outside: by their user, a preemption or a failing node."""
        for job in list(jobs):
            if not job.state.final:
                job.signal = 15 if job.state is JobState.RUNNING else None
                self._settle(job, state, reason)
        self._schedule()

    def fail_node(self, name: str) -> None:
        """Let a node fail: its jobs end, and no job starts there until it is repaired."""
        self.catch_up()
        index = [node.name for node in self.cluster.nodes].index(name)
        affected = [job for job in self.jobs.values() if job.state is JobState.RUNNING and name in job.nodes]
        for job in affected:
            self._settle(job, JobState.NODE_FAIL, f"node {name} failed")
        self.cluster.free[index] = [0, 0, 0]
        self.queue.refresh()
        self._schedule()

    def repair_node(self, name: str) -> None:
        """Let a failed node accept jobs again."""
        self.catch_up()
        index = [node.name for node in self.cluster.nodes].index(name)
        node = self.cluster.nodes[index]
        self.cluster.free[index] = [node.cores, node.gpus, node.memory_bytes]
        self.queue.refresh()
        self._schedule()

    def limit(self, job: SimulatedJob, walltime_s: float) -> None:
        """Change a job's limit; a job that has run longer ends now."""
        job.walltime_s = walltime_s
        if job.queued:
            self.queue.change(job.id, walltime_s)
        if job.started_s is not None:
            self._plan_end(job)
        self.catch_up()
        self._schedule()

    def let_begin(self, keys: Collection[str]) -> None:
        """Release held jobs, now or as soon as they start."""
        self.words |= set(keys)
        for job in self.jobs.values():
            if job.key in self.words and not job.let and not job.state.final:
                job.let = True
                if job.started_s is not None:
                    self._begin(job)

    def _schedule(self) -> None:
        """Queue jobs whose dependencies ended, and start those that fit."""
        for job in list(self._pending_dependency.values()):
            self._enqueue_if_ready(job)
        names = [node.name for node in self.cluster.nodes]
        for started in self.queue.start(self.at_s):
            job = self.jobs[str(started.key)]
            job.state, job.reason, job.started_s = JobState.RUNNING, "", self.at_s
            job.nodes = tuple(names[index] for index in started.nodes)
            self._begin(job)

    def _begin(self, job: SimulatedJob) -> None:
        """Let a job's command begin, unless it is held."""
        job.begun_s = self.at_s if job.let else None
        self._plan_end(job)

    def _enqueue_if_ready(self, job: SimulatedJob) -> None:
        states = {job_of.state for job_of in self.of(job.submission.after)} if job.submission.after else set()
        kind = job.submission.after_kind
        failed = any(state.final and state is not JobState.COMPLETED for state in states)
        if (kind is DependencyKind.OK and failed) or (kind is DependencyKind.NOT_OK and states == {JobState.COMPLETED}):
            self._settle(job, JobState.CANCELLED, NEVER_SATISFIED)
            return
        if not all(state.final for state in states):
            job.reason = "Dependency"
            return
        max_running = job.submission.most
        if max_running is not None and sum(job_of.queued for job_of in self._submitted[job.array]) >= max_running:
            job.reason = "JobArrayTaskLimit"
            return
        spec = job.submission.spec
        job.reason, job.queued = "Priority", True
        del self._pending_dependency[job.id]
        self.queue.submit(job.id, NodeRequest.of(spec.resources, spec.partition or ""), job.walltime_s)

    def _plan_end(self, job: SimulatedJob) -> None:
        started_s, behaviour = job.started_s or 0.0, job.behaviour
        requested_bytes = job.submission.spec.resources.memory_bytes_per_node
        alone_s = (
            behaviour.elapsed_s / 2
            if requested_bytes is not None and behaviour.memory_bytes > requested_bytes
            else behaviour.elapsed_s
        )
        lasts_s = RELEASE_TIMEOUT_S if job.begun_s is None else job.begun_s - started_s + alone_s
        job.ends_s = max(self.at_s, started_s + min(lasts_s, job.walltime_s))
        heapq.heappush(self._ends, (job.ends_s, len(self._ends), job.id))

    def _end_by_itself(self, job: SimulatedJob) -> None:
        ran_s = job.ends_s - (job.started_s or 0.0)
        behaviour, requested_bytes = job.behaviour, job.submission.spec.resources.memory_bytes_per_node
        needs_s = math.inf if job.begun_s is None else job.begun_s - (job.started_s or 0.0) + behaviour.elapsed_s
        if ran_s >= job.walltime_s and ran_s < needs_s:
            job.exit_code, job.signal = 0, 15
            self._settle(job, JobState.TIMEOUT, "TimeLimit")
        elif job.begun_s is None:
            job.exit_code = EXIT_NEVER_BEGAN
            self._settle(job, JobState.FAILED, "NonZeroExitCode")
        elif requested_bytes is not None and behaviour.memory_bytes > requested_bytes:
            hidden = behaviour.hides_oom
            job.exit_code, job.signal = (1, None) if hidden else (0, 125)
            job.evidence = (f"step {job.id}.0: OUT_OF_MEMORY",)
            self._settle(job, JobState.FAILED if hidden else JobState.OUT_OF_MEMORY, "" if hidden else "OutOfMemory")
        else:
            job.exit_code = behaviour.exit_code
            state = JobState.FAILED if behaviour.exit_code else JobState.COMPLETED
            self._settle(job, state, "NonZeroExitCode" if behaviour.exit_code else "")

    def _settle(self, job: SimulatedJob, state: JobState, reason: str) -> None:
        self._pending_dependency.pop(job.id, None)
        if job.queued:
            self.queue.remove(job.id)
            job.queued = False
        job.state, job.reason, job.ended_s = state, reason, self.at_s
