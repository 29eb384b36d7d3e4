"""The plane's advisor: predictions, alternatives and costs, from the catalog, live estimators and the history."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import psutil

from leadline.app.jobs.plane_waits import BackgroundWaits
from leadline.app.machines.targets import LOCAL, lookup_partition
from leadline.app.machines.this_machine import query_gpus
from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput, LeadlineError, NothingFits
from leadline.core.estimate import Interval, Target
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Alternative, Attempt, AttemptPlan, Job, Place, Situation
from leadline.core.ports import Catalog
from leadline.core.processes import ProcessRunner
from leadline.core.progress import Progress
from leadline.core.runs import Run
from leadline.core.systems import UNLISTED_NODES, Partition
from leadline.core.units import HOUR_S, MIB
from leadline.estimators.progress.live_estimates import LiveEstimate, LiveTable, live_elapsed, live_memory
from leadline.execution.clock import epoch_s
from leadline.execution.launch import measured_run
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.execution.plane.advisor import EndedAttempt
from leadline.execution.plane.needs import MIN_RAISE, SituationView
from leadline.execution.schedulers.slurm.script import directives
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.history.sqlite import SqliteHistory
from leadline.recommendation.queued_jobs import check_request

LEAST_REST = 0.05
"""Least share of the work that a resumed job is expected to do."""
Staging = Callable[[Job, str], Interval | None]
"""(job, system) → time to copy its checkpoint there; ``None`` if unknown."""


class LocalMemory(Frozen):
    """Memory of this machine, and of its smallest GPU; ``None`` if unknown, or without a GPU."""

    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None


def read_local_memory(run: ProcessRunner) -> LocalMemory:
    """Return the memory of this machine and its GPUs."""
    sizes = query_gpus(run, "memory.total")
    smallest = min((int(size) * MIB for size in sizes if size.isdigit()), default=None)
    return LocalMemory(psutil.virtual_memory().total, smallest)


def alternative_request(situation: Situation, allowed_s: float | None, memory_bytes: int | None) -> ResourceSpec | None:
    """Return the request at another target, which must fit its limits at the policy's risk; ``None`` if it cannot."""
    view = SituationView(replace(situation, allowed_s=allowed_s, node_memory_bytes=memory_bytes))
    request, risk, may = view.request(), view.policy.risk, view.policy.resizes
    if may and view.attempt.state is JobState.TIMEOUT and request.walltime_s is not None:
        needed_s = max(view.time.needed() or 0.0, MIN_RAISE * view.time.floor, MIN_RAISE * request.walltime_s)
        request = replace(request, walltime_s=max(needed_s, request.walltime_s))
    if may and view.attempt.state is JobState.OUT_OF_MEMORY and request.memory_bytes_per_node is not None:
        least = MIN_RAISE * max(view.memory.floor, request.memory_bytes_per_node)
        needed = max(view.memory.needed() or 0.0, least, request.memory_bytes_per_node)
        request = replace(request, memory_bytes_per_node=math.ceil(needed))
    if allowed_s is not None and request.walltime_s is not None and request.walltime_s > allowed_s:
        enough = view.policy.resumes or (situation.total_s is not None and view.time.beyond(allowed_s) <= risk)
        if not (may and enough):
            return None
        request = replace(request, walltime_s=allowed_s)
    if memory_bytes is not None and request.memory_bytes_per_node is not None:
        enough = situation.memory_bytes is not None and view.memory.beyond(memory_bytes) <= risk
        if request.memory_bytes_per_node > memory_bytes and not (may and enough):
            return None
        request = replace(request, memory_bytes_per_node=min(request.memory_bytes_per_node, memory_bytes))
    return request


def elapsed_at(
    situation: Situation, current: Partition | None, alternative: Partition | None, place: Place
) -> Interval | None:
    """Return the run time at a target: as here on the same hardware, or as predicted for that target."""
    if have_same_hardware(current, alternative, at_home=situation.attempt.place.system == place.system):
        return situation.total_s
    predicted = situation.job.predicted
    return predicted.elapsed_s if predicted is not None and applies_to(predicted.target, place) else None


def applies_to(target: Target, place: Place) -> bool:
    """Return whether an estimate is for a target: its partition, its system without one, or this machine."""
    if target.system is None or place.system.casefold() == LOCAL:
        return target.system is None and place.system.casefold() == LOCAL
    if target.system.casefold() != place.system.casefold():
        return False
    return place.partition is None or place.partition.casefold() == (target.partition or "").casefold()


def have_same_hardware(first: Partition | None, second: Partition | None, *, at_home: bool = False) -> bool:
    """Return whether two nodes compute alike: one node type of a system (``at_home``), or the same known hardware."""
    if first is None or second is None:
        return False
    nodes = first.node, second.node
    if at_home and nodes[0].name == nodes[1].name != UNLISTED_NODES:
        return True
    processors = [node.processor or node.cpu_model for node in nodes]
    is_known = processors[0] is not None and nodes[0].cores is not None
    alike = [(node.device, node.gpus, node.sockets, node.cores) for node in nodes]
    return is_known and processors[0] == processors[1] and alike[0] == alike[1]


def cost_per_s(partition: Partition | None, request: ResourceSpec) -> float | None:
    """Return the cost of a request per second; ``None`` if no price is known."""
    if partition is None or partition.billing is None:
        return None
    hourly = compute_charge(partition.billing, request, 1.0, partition.node)
    return None if hourly is None else hourly / HOUR_S


def _cost(
    current: Partition | None, alternative: Partition | None, request: ResourceSpec, elapsed: Interval | None
) -> tuple[float | None, str | None]:
    """Return the cost of a whole run at another target, with its unit.

    The walltime is used if the run time is unknown. ``None`` if the unit differs from the current target's: the two
    cannot be compared.
    """
    run_s, rate = elapsed.point if elapsed is not None else request.walltime_s, cost_per_s(alternative, request)
    if run_s is None or rate is None or alternative is None or alternative.billing is None:
        return None, None
    if current is not None and current.billing is not None and current.billing.currency != alternative.billing.currency:
        return None, None
    return rate * run_s, alternative.billing.currency


@dataclass(slots=True)
class PlaneAdvisor:
    """Answers the plane's questions without ever waiting (implements ``Advisor``)."""

    catalog: Catalog
    history: SqliteHistory
    table: LiveTable
    local_memory: Callable[[], LocalMemory] = LocalMemory
    waits: BackgroundWaits | None = None
    finished: Callable[[Sequence[Run]], object] = len  # called with runs that were added to the history
    staging: Staging = lambda *_: None
    memory_seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Running attempt → its (elapsed, memory) samples."""

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return a plan for each replica that may wait at once, at the first targets of the policy that accept the job.

        Raises:
            NothingFits: no target accepts it.
        """
        refusals = {place: _refusal(_spec_at(job, place), self._rules(place)) for place in job.policy.places}
        plans = [AttemptPlan(place, job.spec.resources) for place, why in refusals.items() if not why]
        if not plans:
            refused = "; ".join(f"{place}: {why}" for place, why in refusals.items())
            raise NothingFits(f"no target accepts the job: {refused}")
        return tuple(plans[: job.policy.copies])

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Situation:
        """Return what is expected of an attempt, from its prediction and its wrapper's reports."""
        spec = _spec_at(job, attempt.place, attempt.resources)
        partition = self._rules(attempt.place)
        before = _remaining(self.predicted(job, attempt.place, partition), job.share_before(attempt))
        elapsed = self._elapsed(before, job, attempt, outcome, now_s)
        memory, peak = self._memory(job, attempt, outcome, elapsed), _measured(outcome, "host_memory_bytes")
        situation = Situation(job, attempt, now_s, attempt_elapsed_s(attempt, now_s), elapsed.total, memory, peak)
        waits = self.waits if attempt.live and attempt.state is JobState.PENDING else None
        return replace(
            situation,
            remaining_wait_s=waits.remaining(attempt, spec, now_s) if waits else None,
            allowed_s=partition.limits.max_walltime_s if partition else None,
            node_memory_bytes=self.node_memory(attempt.place, partition),
            gpu_memory_bytes=self.gpu_memory(attempt.place, partition, attempt.resources),
            cost_per_s=cost_per_s(partition, attempt.resources),
            alternatives=self.alternatives(situation) if len(job.policy.places) > 1 else (),
        )

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Add every attempt that ran to the history; a run with the same id is replaced."""
        for end in ends:
            self.memory_seen.pop(end.attempt.key, None)
            if self.waits:
                self.waits.forget(end.attempt.key)
        runs = [_run_of(end) for end in ends]
        self.history.add_all(runs)
        self.finished(runs)

    def alternatives(self, situation: Situation) -> tuple[Alternative, ...]:
        """Return the targets that would accept the job and do not have it yet, in the order of its policy."""
        occupied = {situation.attempt.place, *(attempt.place for attempt in situation.job.live_attempts)}
        candidates = [place for place in situation.job.policy.places if place not in occupied]
        return tuple(filter(None, (self._alternative(situation, place) for place in candidates)))

    def node_memory(self, place: Place, partition: Partition | None) -> int | None:
        """Return the memory of a target's node in bytes."""
        if place.system.casefold() == LOCAL:
            return self.local_memory().memory_bytes
        return (partition.node.usable_memory_bytes or partition.node.memory_bytes) if partition else None

    def gpu_memory(self, place: Place, partition: Partition | None, request: ResourceSpec) -> int | None:
        """Return the memory of one GPU of a target in bytes; ``None`` for a job without GPUs."""
        if place.system.casefold() == LOCAL:
            return self.local_memory().gpu_memory_bytes
        if partition is None or partition.node.device is None or not request.gpus_per_node:
            return None
        try:
            return self.catalog.device(partition.node.device).memory_bytes
        except LeadlineError:
            return None

    def _alternative(self, situation: Situation, place: Place) -> Alternative | None:
        job, partition = situation.job, self._rules(place)
        allowed_s = partition.limits.max_walltime_s if partition else None
        request = alternative_request(situation, allowed_s, self.node_memory(place, partition))
        if request is None or (check_request(partition, request) if partition else self._is_gone(place)):
            return None
        spec = _spec_at(job, place, request)
        if _refusal(spec, partition):
            return None
        current = self._rules(situation.attempt.place)
        elapsed = elapsed_at(situation, current, partition, place)
        cost, currency = _cost(current, partition, request, elapsed)
        return Alternative(
            place,
            request,
            self.waits.predicted(spec, place) if self.waits else None,
            elapsed,
            self.staging(job, place.system),
            cost=cost,
            currency=currency,
            gpu_memory_bytes=self.gpu_memory(place, partition, request),
        )

    def predicted(self, job: Job, place: Place, partition: Partition | None) -> Interval | None:
        """Return the predicted run time at a target; ``None`` if the prediction was for other hardware.

        A prediction for other nodes is no bound: a limit that suffices there may be too low here.
        """
        prediction = job.predicted
        if prediction is None or prediction.elapsed_s is None or applies_to(prediction.target, place):
            return None if prediction is None else prediction.elapsed_s
        system = prediction.target.system
        predicted_partition = lookup_partition(system, prediction.target.partition, self.catalog)
        alike = have_same_hardware(partition, predicted_partition, at_home=place.system == system)
        return prediction.elapsed_s if alike else None

    def _rules(self, place: Place) -> Partition | None:
        return lookup_partition(place.system, place.partition, self.catalog)

    def _is_gone(self, place: Place) -> bool:
        """Return whether the catalog has the target's system, but not this partition of it."""
        try:
            return place.partition is not None and bool(self.catalog.system(place.system).partitions)
        except LeadlineError:
            return False

    def _elapsed(
        self, before: Interval | None, job: Job, attempt: Attempt, outcome: JobOutcome | None, now_s: float
    ) -> LiveEstimate:
        if attempt.started_at is None:
            return LiveEstimate(before)
        at_s, looked_s = max(0.0, now_s - epoch_s(attempt.started_at)), _measured(outcome, "elapsed_s")
        progress = outcome.progress if outcome else None
        units = _units(progress) if job.share_before(attempt) else None
        return live_elapsed(before, progress, max(at_s, looked_s or 0.0), self.table, units=units, looked_s=looked_s)

    def _memory(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, elapsed: LiveEstimate) -> Interval | None:
        before = job.predicted.host_memory_bytes if job.predicted else None
        samples = self.memory_seen.setdefault(attempt.key, [])
        at_s, memory = _measured(outcome, "elapsed_s"), _measured(outcome, "host_memory_bytes")
        # Reports may arrive late or twice: keep only later ones.
        if at_s is not None and memory is not None and (not samples or samples[-1][0] < at_s):
            samples.append((at_s, memory))
        began_s = outcome.progress.startup_s if outcome and outcome.progress else None
        return live_memory(before, samples, began_s, elapsed, self.table).total


def _refusal(spec: JobSpec, partition: Partition | None) -> str:
    """Return why the known rules of a target other than this machine refuse the job; empty if they do not."""
    try:
        if (spec.system or "").casefold() != LOCAL:
            directives(spec, partition)
    except InvalidInput as error:
        return str(error)
    return ""


def _spec_at(job: Job, place: Place, resources: ResourceSpec | None = None) -> JobSpec:
    return replace(job.spec, system=place.system, partition=place.partition, resources=resources or job.spec.resources)


def _measured(outcome: JobOutcome | None, name: str) -> float | None:
    measurement = outcome.measured.get(name) if outcome else None
    return measurement.value if measurement else None


def _remaining(whole: Interval | None, share: float) -> Interval | None:
    """Return the run time of the work that is left after a share of it.

    Its checkpoint may be older than that share, so the interval reaches up to the whole.
    """
    if whole is None or not share:
        return whole
    rest = max(1 - share, LEAST_REST)
    return Interval(whole.point * rest, whole.low * rest, whole.high, whole.level)


def _units(progress: Progress | None) -> int | None:
    """Return the units of work of a resumed attempt, whose count begins with those before its checkpoint."""
    unit = progress.unit if progress is not None and progress.reported else None
    if progress is None or unit is None or progress.total is None or progress.done is None:
        return None
    return max(progress.total - max(progress.done - unit.count - 1, 0), 1)


def _run_of(ended: EndedAttempt) -> Run:
    """Return the run of an attempt, as measured by its wrapper, else as its scheduler reported it."""
    attempt, job = ended.attempt, ended.job
    spec = _spec_at(job, attempt.place, attempt.resources)
    measured = ended.outcome if ended.outcome is not None and ended.outcome.measured else None
    outcome = measured or JobOutcome(
        attempt.state, attempt.started_at or "", attempt.node or "", spec.command, ended_at=attempt.ended_at,
        exit_code=attempt.exit_code, reason=attempt.reason,
    )  # fmt: skip
    # The scheduler may have forgotten the job; then the wrapper knows how it ended.
    why = outcome.state if attempt.state is JobState.UNKNOWN else attempt.state
    run = measured_run(spec, attempt.key, replace(outcome, state=why))
    return replace(run, predicted=job.predicted, parameters=job.parameters, tags={**run.tags, **job.tags})
