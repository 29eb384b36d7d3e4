"""Where else a job of the plane may go: with which request, for how long, and at what price."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil

from leadline.app.places import LOCAL
from leadline.app.schedulers import known_partition
from leadline.app.this_machine import DRIVER_S
from leadline.catalog.billing import price
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Interval, Target
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Alternative, Job, Place, Situation
from leadline.core.ports import Catalog, ProcessRunner
from leadline.core.systems import NOT_SHOWN, NodeType, Partition
from leadline.core.units import HOUR_S, MIB
from leadline.execution.plane.needs import LEAST, View
from leadline.execution.slurm.script import directives
from leadline.recommend.queued import refuse_request

Wait = Callable[[JobSpec, Place], Interval | None]
"""(job as it would be asked for, where) → how long it would wait there; ``None`` is not known."""

Staging = Callable[[Job, str], Interval | None]
"""(job, a system) → how long bringing its checkpoint there takes; ``None`` is not known."""


def unknown(job: Job, system: str) -> None:  # noqa: ARG001 - as it is asked
    """Return ``None``: nothing is known of copies between systems."""
    return


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has for a job: memory, and that of its smallest GPU; ``None`` is not known, or no GPU."""

    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None


def own_machine(run: ProcessRunner) -> Machine:
    """Return what this machine has; the driver of its GPUs is asked where there is one."""
    memory_bytes = psutil.virtual_memory().total
    try:
        answer = run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], timeout_s=DRIVER_S)
    except InvalidInput:
        return Machine(memory_bytes)
    told = [] if answer.returncode or answer.timed_out else answer.stdout.split()
    return Machine(memory_bytes, min((int(one) * MIB for one in told if one.isdigit()), default=None))


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Finds the other places of a job's policy that would take it as it now has to ask."""

    catalog: Catalog
    here: Callable[[], Machine]
    wait: Wait
    staging: Staging = unknown

    def alternatives(self, situation: Situation) -> tuple[Alternative, ...]:
        """Return the places where the job is not, and that would take it, in the order of its policy."""
        job = situation.job
        taken = {situation.attempt.place, *(one.place for one in job.live)}
        others = [place for place in job.policy.places if place not in taken]
        found = (self._alternative(situation, place) for place in others)
        return tuple(one for one in found if one is not None)

    def node_memory(self, place: Place, partition: Partition | None) -> int | None:
        """Return the memory of a node of a place in bytes."""
        if place.system.casefold() == LOCAL:
            return self.here().memory_bytes
        return (partition.node.usable_memory_bytes or partition.node.memory_bytes) if partition else None

    def gpu_memory(self, place: Place, partition: Partition | None, asked: ResourceSpec) -> int | None:
        """Return what one GPU of a place has in bytes; ``None`` for a job that asks for none."""
        if place.system.casefold() == LOCAL:
            return self.here().gpu_memory_bytes
        if partition is None or partition.node.device is None or not asked.gpus_per_node:
            return None
        try:
            return self.catalog.device(partition.node.device).memory_bytes
        except LeadlineError:
            return None

    def _alternative(self, situation: Situation, place: Place) -> Alternative | None:
        job = situation.job
        spec = replace(job.spec, system=place.system, partition=place.partition)
        there = known_partition(spec, self.catalog)
        asked = request_there(situation, there.limits.max_walltime_s if there else None, self.node_memory(place, there))
        if asked is None or (there is None and self._is_gone(place)):
            return None
        spec = replace(spec, resources=asked)
        if there is not None and refuse_request(there, asked):
            return None
        try:
            if place.system.casefold() != LOCAL:
                directives(spec, there)
        except InvalidInput:
            return None
        here = known_partition(
            replace(spec, system=situation.attempt.place.system, partition=situation.attempt.place.partition),
            self.catalog,
        )
        elapsed = elapsed_there(situation, here, there, place)
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
        if told is None or told.elapsed_s is None or is_for(told.target, place):
            return None if told is None else told.elapsed_s
        spec = replace(job.spec, system=told.target.system, partition=told.target.partition)
        there = known_partition(spec, self.catalog)
        at_home = place.system == told.target.system
        alike = partition is not None and there is not None and same_nodes(partition.node, there.node, at_home=at_home)
        return told.elapsed_s if alike else None

    def _is_gone(self, place: Place) -> bool:
        """Whether the catalog knows the system of a place, and no such partition of it."""
        try:
            return place.partition is not None and bool(self.catalog.system(place.system).partitions)
        except LeadlineError:
            return False


def request_there(situation: Situation, allowed_s: float | None, memory_bytes: int | None) -> ResourceSpec | None:
    """Return the request of a job at a place that allows so many seconds and has so much memory a node.

    It is the request here, raised to what forecasts and the end of the attempt call for, and lowered to what the place
    has where that is enough all the same. ``None`` where it is not.
    """
    view = View(replace(situation, allowed_s=allowed_s, node_memory_bytes=memory_bytes))
    asked, risk, may = view.request(), view.policy.risk, view.policy.resizes
    if may and view.attempt.state is JobState.TIMEOUT and asked.walltime_s is not None:
        needed_s = max(view.needed_s() or 0.0, LEAST * view.outlived_s, LEAST * asked.walltime_s)
        asked = replace(asked, walltime_s=max(needed_s, asked.walltime_s))
    if may and view.attempt.state is JobState.OUT_OF_MEMORY and asked.memory_bytes_per_node is not None:
        needed = max(view.needed_bytes() or 0.0, LEAST * view.memory_floor_bytes, LEAST * asked.memory_bytes_per_node)
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


def elapsed_there(
    situation: Situation, here: Partition | None, there: Partition | None, place: Place
) -> Interval | None:
    """Return how long the job runs at a place: as here on nodes of the same kind, as predicted where that was there."""
    at_home = situation.attempt.place.system == place.system
    if here is not None and there is not None and same_nodes(here.node, there.node, at_home=at_home):
        return situation.total_s
    predicted = situation.job.predicted
    return predicted.elapsed_s if predicted is not None and is_for(predicted.target, place) else None


def is_for(target: Target, place: Place) -> bool:
    """Whether an estimate was made for a place: its partition, its system where it names none, or this machine."""
    if target.system is None or place.system.casefold() == LOCAL:
        return target.system is None and place.system.casefold() == LOCAL
    if target.system.casefold() != place.system.casefold():
        return False
    return place.partition is None or place.partition.casefold() == (target.partition or "").casefold()


def same_nodes(one: NodeType, other: NodeType, *, at_home: bool = False) -> bool:
    """Whether two nodes compute alike: of one type of a system (``at_home``), or with the same, known hardware."""
    if at_home and one.name == other.name != NOT_SHOWN:
        return True
    processors = [each.processor or each.cpu_model for each in (one, other)]
    known = processors[0] is not None and one.cores is not None
    alike = [(each.device, each.gpus, each.sockets, each.cores) for each in (one, other)]
    return known and processors[0] == processors[1] and alike[0] == alike[1]


def price_per_s(partition: Partition | None, asked: ResourceSpec) -> float | None:
    """Return what a request costs a second; ``None`` where no price is known."""
    if partition is None or partition.billing is None:
        return None
    hourly = price(partition.billing, asked, 1.0, partition.node)
    return None if hourly is None else hourly / HOUR_S


def _cost(
    here: Partition | None, there: Partition | None, asked: ResourceSpec, elapsed: Interval | None
) -> tuple[float | None, str | None]:
    """Return what a whole run there costs, by its limit where its time is not known, and in which unit.

    ``None`` where that is another unit than here, as amounts in two of them cannot be compared.
    """
    run_s, rate = elapsed.point if elapsed is not None else asked.walltime_s, price_per_s(there, asked)
    if run_s is None or rate is None or there is None or there.billing is None:
        return None, None
    if here is not None and here.billing is not None and here.billing.currency != there.billing.currency:
        return None, None
    return rate * run_s, there.billing.currency
