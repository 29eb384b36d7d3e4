"""Check whether a candidate can run, and if not, why, and by how much it fails."""

import math
from dataclasses import replace
from functools import lru_cache

from msgspec import field

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import ResourceSpec
from leadline.core.queues import QueueWait
from leadline.core.recommendation import Constraints, Rejection
from leadline.core.runs import Value
from leadline.core.systems import Partition, System
from leadline.core.units import HOUR_S, format_bytes, format_duration
from leadline.uncertainty.distributions import quantile

RUNS = 40  # quantiles that represent the time of a run


class TimeToResult(Frozen):
    """Wait + run, as equally likely values in ascending order."""

    sums_s: tuple[float, ...]

    def quantile(self, probability: float) -> float:
        """Return the time exceeded with probability 1 − ``probability`` at most; ``InvalidInput`` beyond 0 to 1."""
        if not 0 < probability < 1:
            raise InvalidInput(f"a risk of {1 - probability:g} is not usable: choose one between 0 and 1, such as 0.05")
        return self.sums_s[max(0, math.ceil(probability * len(self.sums_s) - 1e-9) - 1)]

    def interval(self, level: float) -> Interval:
        """Return the median and the central interval of this level."""
        tail = (1 - level) / 2
        return Interval(self.quantile(0.5), self.quantile(tail), self.quantile(1 - tail), level)


@lru_cache(maxsize=256)
def time_to_result(wait: QueueWait, run_s: Interval) -> TimeToResult:
    """Return the distribution of wait + run: each quantile of one with each of the other."""
    # They are independent: the length of the queue does not depend on the error of this job's estimate.
    runs = [quantile(run_s, (number + 0.5) / RUNS) for number in range(RUNS)]
    return TimeToResult(tuple(sorted(wait_s + elapsed_s for wait_s in wait.quantiles_s for elapsed_s in runs)))


class PlacementCandidate(Frozen):
    """A place to run, with the estimate, the request and the hourly price there."""

    system: System
    partition: Partition
    device: Device
    estimate: Estimate
    request: ResourceSpec
    hourly: float | None = None
    request_reason: str = ""  # what decided the request
    unseen: bool = False  # True if no measured run had the hardware of the place
    # The rest describes the option that the candidate may become.
    parameters: dict[str, Value] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    wait: QueueWait | None = None  # time of the request in the queue, if known

    @property
    def name(self) -> str:
        """Return the name of the place as in ``--on``."""
        return f"{self.system.name}:{self.partition.name}" if self.partition.name else self.system.name

    @property
    def currency(self) -> str | None:
        """Return the currency of the place; ``None`` where it is unknown."""
        return self.partition.billing.currency if self.partition.billing else None

    def elapsed_s(self, risk: float) -> float | None:
        """Return the elapsed time exceeded with probability ``risk``."""
        return None if self.estimate.elapsed_s is None else quantile(self.estimate.elapsed_s, 1 - risk)

    def result(self) -> TimeToResult | None:
        """Return the time from submission to the result; ``None`` where the wait or the run is unknown."""
        elapsed_s = self.estimate.elapsed_s
        return None if self.wait is None or elapsed_s is None else time_to_result(self.wait, elapsed_s)

    def priced_estimate(self) -> Estimate:
        """Return the estimate with its cost at this place, where time and price are known."""
        estimate = self.estimate
        if estimate.elapsed_s is None or self.hourly is None:
            return replace(estimate, cost=None, currency=self.currency)
        if estimate.cost is not None and estimate.currency == self.currency:
            return estimate
        return replace(estimate, cost=estimate.elapsed_s.scaled(self.hourly / HOUR_S), currency=self.currency)

    def cost(self, risk: float) -> float | None:
        """Return the cost exceeded with probability ``risk``."""
        elapsed_s = self.elapsed_s(risk)
        return None if elapsed_s is None or self.hourly is None else elapsed_s / HOUR_S * self.hourly


class Refusal(Frozen):
    """The reason why a candidate cannot run, and the class of the reason."""

    kind: str
    reason: str
    shortfall: float | None = None  # needed ÷ allowed, for a numeric limit
    change: str | None = None  # sentence about the change that would lift the limit, if the user can make one

    def at(self, system: System, partition: Partition, gpus: int = 0) -> Rejection:
        """Return the rejection of a candidate at a place."""
        return Rejection(system.name, partition.name, partition.node.name, self.reason, self.kind, gpus)


def check_place(system: System, partition: Partition, gpus: int, nodes: int) -> Refusal | None:
    """Return why a place cannot take a job of this size; ``None`` if it can. Needs no estimate."""
    if system.status.startswith("decommissioned"):
        return Refusal("not-in-production", f"{system.name} is {system.status}")
    if partition.restricted:
        return Refusal("restricted", "needs a permission that ordinary projects do not have")
    if partition.interactive:
        return Refusal("interactive", "is for interactive work")
    return _refuse_size(partition, gpus, nodes)


def check_configuration(partition: Partition, cores: int | None, gpus: int, nodes: int) -> Refusal | None:
    """Return why a partition cannot give a job these cores and GPUs over all nodes; ``None`` if it can."""
    has, job = partition.node, f"and the job uses {gpus} on {f'{nodes} nodes' if nodes > 1 else 'one node'}"
    if gpus and has.gpus and has.device is None:
        return Refusal("device-unknown", f"has GPUs of a model that is not known, {job}")
    if gpus and has.device is None:
        return Refusal("no-gpus", f"has no GPUs, {job}")
    if has.device and not gpus:
        return Refusal("gpus-unused", "gives GPUs, and the job uses none")
    if has.gpus and gpus > has.gpus * nodes:
        return Refusal("too-few-gpus", f"has {has.gpus} GPUs a node, {job}")
    return None if cores is None else _refuse_cores(partition, cores, nodes)


def _refuse_cores(partition: Partition, cores: int, nodes: int) -> Refusal | None:
    has, limits = partition.node.cores, partition.limits
    if has and cores > has * nodes:
        many = f"{nodes} nodes" if nodes > 1 else "one node"
        return Refusal("too-few-cores", f"has {has} cores a node, and the job uses {cores} on {many}")
    if limits.max_cores and cores > limits.max_cores:
        return Refusal("too-many-cores", f"gives at most {limits.max_cores} cores, and the job uses {cores}")
    if limits.min_cores and cores < limits.min_cores and not partition.rules.whole_nodes:
        return Refusal("cores-unused", f"takes jobs of at least {limits.min_cores} cores, and this one uses {cores}")
    return None


def _refuse_size(partition: Partition, gpus: int, nodes: int) -> Refusal | None:
    limits, node = partition.limits, partition.node
    if limits.max_gpus and node.device and gpus > limits.max_gpus:
        return Refusal(
            "too-many-gpus",
            f"takes at most {limits.max_gpus} GPUs, not {gpus}",
            gpus / limits.max_gpus,
            f"at most {limits.max_gpus} GPUs",
        )
    most = min(limits.max_nodes or nodes, node.count or nodes)
    if nodes > most:
        return Refusal(
            "too-many-nodes",
            f"takes jobs of at most {most} nodes, and {gpus} GPUs need {nodes}",
            nodes / most,
            f"at most {most * max(1, node.gpus)} GPUs",
        )
    if limits.min_nodes and nodes < limits.min_nodes:
        return Refusal("too-few-nodes", f"takes jobs of at least {limits.min_nodes} nodes, not {nodes}")
    return None


def check_estimate(candidate: PlacementCandidate, constraints: Constraints) -> list[Refusal]:
    """Return every limit that the candidate breaks, of the place and of the user."""
    unknown = _refuse_unknown(candidate)
    if unknown is not None:
        return [unknown]
    refusals = (
        _refuse_memory(candidate, constraints.risk),
        refuse_walltime(
            candidate.partition, candidate.request, "needs", " (fewer epochs, or segments from a checkpoint)"
        ),
        _refuse_deadline(candidate, constraints),
        _refuse_budget(candidate, constraints),
    )
    return [refusal for refusal in refusals if refusal is not None]


def _refuse_unknown(candidate: PlacementCandidate) -> Refusal | None:
    estimate = candidate.estimate
    if estimate.elapsed_s is None:
        return Refusal("time-unknown", estimate.unknown.get("elapsed_s", "the elapsed time is not known"))
    if candidate.device.kind is not DeviceKind.CPU and candidate.device.memory_bytes is None:
        return Refusal("device-unknown", f"the memory of {candidate.device.name} is not known")
    return None


def _refuse_memory(candidate: PlacementCandidate, risk: float) -> Refusal | None:
    gpu, available = candidate.estimate.gpu_memory_bytes, candidate.device.memory_bytes
    needed = None if gpu is None else quantile(gpu, 1 - risk)
    if needed is not None and available is not None and needed > available:
        return Refusal(
            "gpu-memory",
            f"GPU memory: needs {format_bytes(needed)} at {risk:.0%} risk, the {candidate.device.name} has "
            f"{format_bytes(available)}",
            needed / available,
            f"a step that fits into {format_bytes(available)} of GPU memory (a smaller --batch with --accumulate, "
            "--checkpointing, a lower --precision)",
        )
    host, fixed = candidate.estimate.host_memory_bytes, candidate.parameters.get("memory_bytes")
    if isinstance(fixed, int | float) and host is not None and fixed < quantile(host, 1 - risk):
        least = quantile(host, 1 - risk)
        return Refusal(
            "memory-asked",
            f"memory: asks for {format_bytes(fixed)}, needs {format_bytes(least)} at {risk:.0%} risk",
            least / fixed,
            f"{format_bytes(least)} of memory",
        )
    return refuse_memory(candidate.partition, candidate.request, "host memory: needs")


def refuse_memory(partition: Partition, request: ResourceSpec, verb: str) -> Refusal | None:
    """Return a refusal if a node has less memory than requested; ``verb`` begins its sentence."""
    requested, has = request.memory_bytes_per_node, partition.node.usable_memory_bytes or partition.node.memory_bytes
    if not requested or not has or requested <= has:
        return None
    reason = f"{verb} {format_bytes(requested)} a node, has {format_bytes(has)}"
    return Refusal("host-memory", reason, requested / has)


def refuse_walltime(partition: Partition, request: ResourceSpec, verb: str, hint: str = "") -> Refusal | None:
    """Return a refusal if a partition's limit is shorter than requested; ``hint`` ends the change that would help."""
    limit, requested = partition.limits.max_walltime_s, request.walltime_s
    if limit is None or requested is None or requested <= limit:
        return None
    return Refusal(
        "walltime",
        f"walltime: {verb} {format_duration(requested)}, the limit is {format_duration(limit)}",
        requested / limit,
        f"a job of at most {format_duration(limit)}{hint}",
    )


def _refuse_deadline(candidate: PlacementCandidate, constraints: Constraints) -> Refusal | None:
    result, takes = candidate.result(), "takes"
    needed_s = candidate.elapsed_s(constraints.risk)
    if result is not None:
        needed_s, takes = result.quantile(1 - constraints.risk), "waits and runs for"
    if constraints.deadline_s is None or needed_s is None or needed_s <= constraints.deadline_s:
        return None
    return Refusal(
        "deadline",
        f"deadline: {takes} up to {format_duration(needed_s)} at {constraints.risk:.0%} risk",
        needed_s / constraints.deadline_s if constraints.deadline_s else float("inf"),
        f"a deadline of {format_duration(needed_s)}",
    )


def _refuse_budget(candidate: PlacementCandidate, constraints: Constraints) -> Refusal | None:
    if constraints.budget is None:
        return None
    cost, currency = candidate.cost(constraints.risk), constraints.currency or "USD"
    if cost is None:
        return Refusal("price-unknown", "the price is not known, and a budget was set")
    if candidate.currency != currency and cost > 0:
        return Refusal("currency", f"charges in {candidate.currency}, and the budget is in {currency}")
    if cost <= constraints.budget:
        return None
    shortfall = cost / constraints.budget if constraints.budget else float("inf")
    return Refusal(
        "budget",
        f"budget: costs up to {cost:.4g} {currency} at {constraints.risk:.0%} risk",
        shortfall,
        f"a budget of {cost:.4g} {currency}",
    )
