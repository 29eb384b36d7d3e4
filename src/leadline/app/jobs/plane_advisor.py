"""Where else a job of the plane may go: with which request, for how long, and at what price."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import psutil

from leadline.app.jobs.plane_waits import UnknownWaits, WaitSource
from leadline.app.jobs.schedulers import lookup_partition
from leadline.app.machines.targets import LOCAL
from leadline.app.machines.this_machine import NVIDIA_SMI_TIMEOUT_S
from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput, LeadlineError, NothingFits
from leadline.core.estimate import Interval, Target
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Alternative, Attempt, AttemptPlan, Job, Place, Situation
from leadline.core.ports import Catalog
from leadline.core.processes import ProcessRunner
from leadline.core.runs import Run
from leadline.core.systems import UNLISTED_NODES, NodeType, Partition
from leadline.core.units import HOUR_S, MIB
from leadline.estimators.progress.live_estimates import LiveEstimate, LiveTable, live_elapsed, live_memory
from leadline.execution.clock import epoch_s
from leadline.execution.launch import measured_run
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.execution.plane.advisor import EndedAttempt, Expectation
from leadline.execution.plane.needs import MIN_RAISE, SituationView
from leadline.execution.schedulers.slurm.script import directives
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.history.sqlite import SqliteHistory
from leadline.recommendation.queued_jobs import check_request

Wait = Callable[[JobSpec, Place], Interval | None]
"""(job as it would be asked for, where) → how long it would wait there; ``None`` is not known."""

Staging = Callable[[Job, str], Interval | None]
"""(job, a system) → how long bringing its checkpoint there takes; ``None`` is not known."""


def unknown_staging(job: Job, system: str) -> None:  # noqa: ARG001 - as it is asked
    """Return ``None``: nothing is known of copies between systems."""
    return


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """What this machine has for a job: memory, and that of its smallest GPU; ``None`` is not known, or no GPU."""

    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None


def read_local_memory(run: ProcessRunner) -> LocalMemory:
    """Return what this machine has; the driver of its GPUs is asked where there is one."""
    memory_bytes = psutil.virtual_memory().total
    try:
        answer = run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], timeout_s=NVIDIA_SMI_TIMEOUT_S
        )
    except InvalidInput:
        return LocalMemory(memory_bytes)
    told = [] if answer.returncode or answer.timed_out else answer.stdout.split()
    return LocalMemory(memory_bytes, min((int(one) * MIB for one in told if one.isdigit()), default=None))


@dataclass(frozen=True, slots=True)
class AlternativeFinder:
    """Finds the other places of a job's policy that would take it as it now has to ask."""

    catalog: Catalog
    local_memory: Callable[[], LocalMemory]
    wait: Wait
    staging: Staging = unknown_staging

    def alternatives(self, situation: Situation) -> tuple[Alternative, ...]:
        """Return the places where the job is not, and that would take it, in the order of its policy."""
        job = situation.job
        taken = {situation.attempt.place, *(one.place for one in job.live_attempts)}
        others = [place for place in job.policy.places if place not in taken]
        found = (self._alternative(situation, place) for place in others)
        return tuple(one for one in found if one is not None)

    def node_memory(self, place: Place, partition: Partition | None) -> int | None:
        """Return the memory of a node of a place in bytes."""
        if place.system.casefold() == LOCAL:
            return self.local_memory().memory_bytes
        return (partition.node.usable_memory_bytes or partition.node.memory_bytes) if partition else None

    def gpu_memory(self, place: Place, partition: Partition | None, asked: ResourceSpec) -> int | None:
        """Return what one GPU of a place has in bytes; ``None`` for a job that asks for none."""
        if place.system.casefold() == LOCAL:
            return self.local_memory().gpu_memory_bytes
        if partition is None or partition.node.device is None or not asked.gpus_per_node:
            return None
        try:
            return self.catalog.device(partition.node.device).memory_bytes
        except LeadlineError:
            return None

    def _alternative(self, situation: Situation, place: Place) -> Alternative | None:
        job = situation.job
        spec = replace(job.spec, system=place.system, partition=place.partition)
        there = lookup_partition(spec, self.catalog)
        asked = alternative_request(
            situation, there.limits.max_walltime_s if there else None, self.node_memory(place, there)
        )
        if asked is None or (there is None and self._is_gone(place)):
            return None
        spec = replace(spec, resources=asked)
        if there is not None and check_request(there, asked):
            return None
        try:
            if place.system.casefold() != LOCAL:
                directives(spec, there)
        except InvalidInput:
            return None
        here = lookup_partition(
            replace(spec, system=situation.attempt.place.system, partition=situation.attempt.place.partition),
            self.catalog,
        )
        elapsed = elapsed_at(situation, here, there, place)
        cost, currency = _cost(here, there, asked, elapsed)
        return Alternative(
            place,
            asked,
            self.wait(spec, place),
            elapsed,
            self.staging(job, place.system),
            cost=cost,
            currency=currency,
            gpu_memory_bytes=self.gpu_memory(place, there, asked),
        )

    def predicted(self, job: Job, place: Place, partition: Partition | None) -> Interval | None:
        """Return how long a job runs at a place as far as it was predicted before it was handed over.

        What was predicted for other nodes says nothing: a limit that is right on those may be too low here.
        """
        told = job.predicted
        if told is None or told.elapsed_s is None or applies_to(told.target, place):
            return None if told is None else told.elapsed_s
        spec = replace(job.spec, system=told.target.system, partition=told.target.partition)
        there = lookup_partition(spec, self.catalog)
        at_home = place.system == told.target.system
        alike = (
            partition is not None
            and there is not None
            and have_same_hardware(partition.node, there.node, at_home=at_home)
        )
        return told.elapsed_s if alike else None

    def _is_gone(self, place: Place) -> bool:
        """Whether the catalog knows the system of a place, and no such partition of it."""
        try:
            return place.partition is not None and bool(self.catalog.system(place.system).partitions)
        except LeadlineError:
            return False


def alternative_request(situation: Situation, allowed_s: float | None, memory_bytes: int | None) -> ResourceSpec | None:
    """Return the request of a job at a place that allows so many seconds and has so much memory a node.

    It is the request here, raised to what forecasts and the end of the attempt call for, and lowered to what the place
    has where that is enough all the same. ``None`` where it is not.
    """
    view = SituationView(replace(situation, allowed_s=allowed_s, node_memory_bytes=memory_bytes))
    asked, risk, may = view.request(), view.policy.risk, view.policy.resizes
    if may and view.attempt.state is JobState.TIMEOUT and asked.walltime_s is not None:
        needed_s = max(view.needed_s() or 0.0, MIN_RAISE * view.outlived_s, MIN_RAISE * asked.walltime_s)
        asked = replace(asked, walltime_s=max(needed_s, asked.walltime_s))
    if may and view.attempt.state is JobState.OUT_OF_MEMORY and asked.memory_bytes_per_node is not None:
        needed = max(
            view.needed_bytes() or 0.0, MIN_RAISE * view.memory_floor_bytes, MIN_RAISE * asked.memory_bytes_per_node
        )
        asked = replace(asked, memory_bytes_per_node=math.ceil(max(needed, asked.memory_bytes_per_node)))
    if allowed_s is not None and asked.walltime_s is not None and asked.walltime_s > allowed_s:
        enough = view.policy.resumes or (situation.total_s is not None and view.time_beyond(allowed_s) <= risk)
        if not (may and enough):
            return None
        asked = replace(asked, walltime_s=allowed_s)
    if memory_bytes is not None and asked.memory_bytes_per_node is not None:
        if asked.memory_bytes_per_node > memory_bytes and not (
            may and situation.memory_bytes is not None and view.memory_beyond(memory_bytes) <= risk
        ):
            return None
        asked = replace(asked, memory_bytes_per_node=min(asked.memory_bytes_per_node, memory_bytes))
    return asked


def elapsed_at(situation: Situation, here: Partition | None, there: Partition | None, place: Place) -> Interval | None:
    """Return how long the job runs at a place: as here on nodes of the same kind, as predicted where that was there."""
    at_home = situation.attempt.place.system == place.system
    if here is not None and there is not None and have_same_hardware(here.node, there.node, at_home=at_home):
        return situation.total_s
    predicted = situation.job.predicted
    return predicted.elapsed_s if predicted is not None and applies_to(predicted.target, place) else None


def applies_to(target: Target, place: Place) -> bool:
    """Whether an estimate was made for a place: its partition, its system where it names none, or this machine."""
    if target.system is None or place.system.casefold() == LOCAL:
        return target.system is None and place.system.casefold() == LOCAL
    if target.system.casefold() != place.system.casefold():
        return False
    return place.partition is None or place.partition.casefold() == (target.partition or "").casefold()


def have_same_hardware(one: NodeType, other: NodeType, *, at_home: bool = False) -> bool:
    """Whether two nodes compute alike: of one type of a system (``at_home``), or with the same, known hardware."""
    if at_home and one.name == other.name != UNLISTED_NODES:
        return True
    processors = [each.processor or each.cpu_model for each in (one, other)]
    known = processors[0] is not None and one.cores is not None
    alike = [(each.device, each.gpus, each.sockets, each.cores) for each in (one, other)]
    return known and processors[0] == processors[1] and alike[0] == alike[1]


def cost_per_s(partition: Partition | None, asked: ResourceSpec) -> float | None:
    """Return what a request costs a second; ``None`` where no price is known."""
    if partition is None or partition.billing is None:
        return None
    hourly = compute_charge(partition.billing, asked, 1.0, partition.node)
    return None if hourly is None else hourly / HOUR_S


def _cost(
    here: Partition | None, there: Partition | None, asked: ResourceSpec, elapsed: Interval | None
) -> tuple[float | None, str | None]:
    """Return what a whole run there costs, by its limit where its time is not known, and in which unit.

    ``None`` where that is another unit than here, as amounts in two of them cannot be compared.
    """
    run_s, rate = elapsed.point if elapsed is not None else asked.walltime_s, cost_per_s(there, asked)
    if run_s is None or rate is None or there is None or there.billing is None:
        return None, None
    if here is not None and here.billing is not None and here.billing.currency != there.billing.currency:
        return None, None
    return rate * run_s, there.billing.currency


@dataclass(slots=True)
class PlaneAdvisor:
    """Answers the plane's questions, none of them by waiting for anything.

    ``waits`` knows how long jobs wait in queues, ``staging`` how long a checkpoint takes to another system, and
    ``finished`` is told the runs that entered the history.
    ``memory_seen`` keeps what running attempts showed of their memory.
    """

    catalog: Catalog
    history: SqliteHistory
    table: LiveTable
    local_memory: Callable[[], LocalMemory] = LocalMemory
    waits: WaitSource = field(default_factory=UnknownWaits)
    finished: Callable[[Sequence[Run]], object] = len
    staging: Staging = unknown_staging
    memory_seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return a plan for each copy that may wait at once, at the first places of its policy that would take it.

        Raises:
            NothingFits: no place would take it.
        """
        found, refused = [], []
        for place in job.policy.places:
            spec = replace(job.spec, system=place.system, partition=place.partition)
            try:
                self._check(spec, place)
            except InvalidInput as error:
                refused.append(f"{place}: {error}")
                continue
            found.append(AttemptPlan(place, job.spec.resources))
            if len(found) == job.policy.copies:
                break
        if not found:
            raise NothingFits(f"no place would take it: {'; '.join(refused)}")
        return tuple(found)

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Expectation:
        """Return what is expected of an attempt, from the estimate made before and from what its wrapper reported."""
        spec = replace(
            job.spec, resources=attempt.resources, system=attempt.place.system, partition=attempt.place.partition
        )
        partition = lookup_partition(spec, self.catalog)
        elsewhere = self._elsewhere()
        elapsed = self._elapsed(elsewhere.predicted(job, attempt.place, partition), attempt, outcome, now_s)
        memory = self._memory(job, attempt, outcome, elapsed)
        seen = outcome.measured.get("host_memory_bytes") if outcome else None
        known = Situation(
            job, attempt, now_s, attempt_elapsed_s(attempt, now_s), elapsed.total, memory, seen.value if seen else None
        )
        waits = attempt.live and attempt.state is JobState.PENDING
        return Expectation(
            total_s=elapsed.total,
            memory_bytes=memory,
            remaining_wait_s=self.waits.remaining(attempt, spec, now_s) if waits else None,
            allowed_s=partition.limits.max_walltime_s if partition else None,
            node_memory_bytes=elsewhere.node_memory(attempt.place, partition),
            gpu_memory_bytes=elsewhere.gpu_memory(attempt.place, partition, attempt.resources),
            cost_per_s=cost_per_s(partition, attempt.resources),
            alternatives=elsewhere.alternatives(known) if len(job.policy.places) > 1 else (),
        )

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Keep every attempt that ran as a run of the history; a run of the same id is replaced."""
        for one in ends:
            self.memory_seen.pop(one.attempt.key, None)
            self.waits.forget(one.attempt.key)
        runs = [_run(one) for one in ends]
        self.history.add_all(runs)
        self.finished(runs)

    def _elsewhere(self) -> AlternativeFinder:
        return AlternativeFinder(self.catalog, self.local_memory, self.waits.predicted, self.staging)

    def _elapsed(
        self, before: Interval | None, attempt: Attempt, outcome: JobOutcome | None, now_s: float
    ) -> LiveEstimate:
        if attempt.started_at is None:
            return LiveEstimate(before)
        at_s = max(0.0, now_s - epoch_s(attempt.started_at))
        looked = outcome.measured.get("elapsed_s") if outcome else None
        return live_elapsed(
            before,
            outcome.progress if outcome else None,
            max(at_s, looked.value) if looked else at_s,
            self.table,
            looked_s=looked.value if looked else None,
        )

    def _memory(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, elapsed: LiveEstimate) -> Interval | None:
        before = job.predicted.host_memory_bytes if job.predicted else None
        seen = self.memory_seen.setdefault(attempt.key, [])
        if outcome is not None:
            at, held = outcome.measured.get("elapsed_s"), outcome.measured.get("host_memory_bytes")
            if at is not None and held is not None and (not seen or seen[-1][0] < at.value):
                seen.append((at.value, held.value))
        began_s = outcome.progress.startup_s if outcome and outcome.progress else None
        return live_memory(before, seen, began_s, elapsed, self.table).total

    def _check(self, spec: JobSpec, place: Place) -> None:
        """Refuse what the rules of a place would refuse, where they are known."""
        if place.system.casefold() != LOCAL:
            directives(spec, lookup_partition(spec, self.catalog))


def _run(one: EndedAttempt) -> Run:
    """Return the run of an attempt: by what its wrapper measured, else by what its scheduler told."""
    attempt, job = one.attempt, one.job
    spec = replace(
        job.spec, resources=attempt.resources, system=attempt.place.system, partition=attempt.place.partition
    )
    measured = one.outcome if one.outcome is not None and one.outcome.measured else None
    outcome = measured or JobOutcome(
        attempt.state, attempt.started_at or "", attempt.node or "", spec.command, ended_at=attempt.ended_at,
        exit_code=attempt.exit_code, reason=attempt.reason,
    )  # fmt: skip
    why = outcome.state if attempt.state is JobState.UNKNOWN else attempt.state
    run = measured_run(spec, attempt.key, replace(outcome, state=why))
    return replace(run, predicted=job.predicted, parameters=job.parameters, tags={**run.tags, **job.tags})
