"""How many sequences a device answers at once where an engine fills it with the blocks of a paged KV cache."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from leadline.app.estimate.estimate import Toolbox, Tracer, estimate_targets
from leadline.app.machines.targets import ResolvedTarget, resolve_targets
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Estimate, Interval, Target
from leadline.core.fit import ChangeCost, FitChange, FitReport, MemoryCheck, MemorySnapshot, ServingCapacity
from leadline.core.graph import OpGraph, StorageCategory, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import format_bytes
from leadline.core.workload import ModelKind, Parallelism, Workload
from leadline.estimators.memory import device as xla_memory
from leadline.estimators.memory.device import (
    PeakMemory,
    device_memory_graphs,
    find_least_memory,
    memory_timeline,
    peak_memory,
)
from leadline.estimators.memory.host import describe_pinning_assumption, host_parts
from leadline.estimators.memory.offload import list_offloads
from leadline.estimators.memory.workspaces import add_workspaces
from leadline.estimators.parallelism import division
from leadline.estimators.parallelism.division import cache_share_bytes
from leadline.graphs.hf_config.generation import CACHE_BLOCK
from leadline.recommendation.memory_fit import (
    WorkloadVariant,
    can_change,
    check_memory,
    largest_batch,
    memory_saving_ladders,
    with_batch,
)

UTILIZATION = 0.9
"""Share of the device that vLLM takes (``gpu_memory_utilization``; 0.92 in the newest releases)."""


def estimate_serving(
    workload: Workload, job: TracedJob, estimate: Estimate, check: MemoryCheck
) -> ServingCapacity | None:
    """Return what fits beside weights, libraries and the passes of the batch that was asked about.

    As vLLM does: what a profiled pass leaves of its share becomes blocks. ``None`` where the cache is not paged or the
    device's memory is not known.
    """
    if not workload.paged or job.generation is None or check.there_bytes is None:
        return None
    cached = estimate.basis.memory_breakdown_bytes.get(StorageCategory.KV_CACHE.value, 0.0)
    room = max(UTILIZATION * check.there_bytes - (check.needed_bytes - cached), 0.0)
    batch = workload.batch or job.loop.batch or 1
    each = cache_share_bytes(job.generation.cache_bytes, workload, job.step) / batch
    tokens = job.generation.prompt + job.generation.generated
    return ServingCapacity(UTILIZATION, CACHE_BLOCK, room, tokens, int(room // each))


Progress = Callable[[str], None]
"""Told what is asked about now."""

LARGER = 3
"""So many larger devices are asked about, the smallest first."""
SLOWER = 1.5
"""A larger device that takes so much longer is no help."""
HELPS = 0.99
"""A change that saves less than a hundredth of the memory is not worth a line."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """One question: the workload at a place, under a risk."""

    tools: Toolbox
    workload: Workload
    place: ResolvedTarget
    risk: float
    progress: Progress
    tracers: dict[Workload, Tracer]

    def estimate(self, workload: Workload) -> Estimate:
        """Return the estimate of a variant of the workload at the same place."""
        place = self.place
        if workload.gpus != self.workload.gpus:
            place = next(iter(resolve_targets(self.tools.catalog, [place.name], workload.gpus).targets))
        return self.at(place, workload)

    def at(self, place: ResolvedTarget, workload: Workload) -> Estimate:
        """Return the estimate of a workload at any place; each workload is traced once for all of them."""
        tracer = self.tracers.setdefault(workload, Tracer(self.tools, workload))
        return estimate_targets([place], tracer)[0]


def fit(
    workload: Workload,
    tools: Toolbox,
    *,
    on: Sequence[str],
    risk: float,
    changes: bool = True,
    picture: bool = False,
    progress: Progress = lambda _: None,
) -> list[FitReport]:
    """Return, for each distinct device among the places named by ``on``, whether the workload fits.

    Where it does not, changes are asked about, unless told otherwise, and the largest batch that fits. A ``picture``
    asks for the moments of a step.

    Raises:
        InvalidInput: a place is unknown, the risk is out of range, or the workload cannot be used.
        Untraceable: the model or script could not be traced.
    """
    if not 0 < risk < 1:
        raise InvalidInput(f"--risk is {risk:g}, but it must lie between 0 and 1, such as 0.05")
    places = list({_same(place): place for place in resolve_targets(tools.catalog, on, workload.gpus).targets}.values())
    tracer = Tracer(tools, workload)
    tracers = {workload: tracer}
    found = []
    for place, estimate in zip(places, estimate_targets(places, tracer), strict=True):
        batch = (
            workload.batch or tracer.first_job.loop.batch or (workload.inputs[0].shape[0] if workload.inputs else None)
        )
        asking = _Asking(tools, workload, place, risk, progress, tracers)
        answer = _with_parts(asking, _answer(asking, estimate, batch, changes=changes))
        found.append(replace(answer, moments=tuple(_moments(asking, estimate))) if picture else answer)
    return found


def _with_parts(asking: _Asking, answer: FitReport) -> FitReport:
    """Return the answer with what it rests on: notes, the sequences a paged cache holds, and the parts of the host."""
    workload, device = asking.workload, asking.place.device
    job = asking.tracers[workload].job_for(device)
    said = [*job.notes, division.describe_exchange_buffers(workload), xla_memory.describe_jax_memory(workload, device)]
    said.append(answer.estimate.unknown.get("step_s", ""))
    first, parts = answer.checks[0], dict[str, float]()
    if any(check.kind == "host" for check in answer.checks):
        parts = host_parts(workload, job, device)
        said.append(describe_pinning_assumption(job, parts))
    served = estimate_serving(workload, job, answer.estimate, first) if first.kind == "GPU" else None
    return replace(
        answer, notes=(*answer.notes, *filter(None, said)), serving=served, host_parts_bytes=parts
    )  # fmt: skip


def _same(place: ResolvedTarget) -> tuple[object, ...]:
    """Return what decides whether a job fits: the device, how many, and the memory of the node."""
    node = place.partition.node if place.partition else None
    host = (node.usable_memory_bytes or node.memory_bytes, node.gpus) if node else None
    return place.device.name, place.target.gpus, place.target.nodes, host


def _answer(asking: _Asking, estimate: Estimate, batch: int | None, *, changes: bool) -> FitReport:
    place, checks = asking.place, tuple(_checks(estimate, asking.place, asking.risk))
    if not checks:
        why = "; ".join(dict.fromkeys(estimate.unknown.values())) or "no memory of it was estimated"
        raise InvalidInput(f"nothing can be said about memory on {place.name}: {why}")
    answer = FitReport(place.name, place.device.name, estimate, asking.risk, checks, batch)
    if checks[0].there_bytes is None:
        why = f"the memory of {place.device.name} is not in the catalog: add it there to learn whether the job fits"
        return replace(answer, why_no_batch=why, notes=(why,))
    if changes:
        answer = _with_batch(asking, answer)
    if checks[0].fits is False and checks[0].kind == "GPU":
        answer = replace(answer, notes=tuple(_still(asking, answer)))
    if changes and checks[0].fits is False:
        refused: list[str] = []
        asked = _changes(asking, answer, refused)
        helping = [one for one in asked if one.check.needed_bytes < HELPS * checks[0].needed_bytes]
        helping += _larger(asking, answer)
        changed = tuple(sorted(_undominated(helping), key=_worth))
        answer = replace(answer, changes=changed, notes=(*answer.notes, *refused))
    return answer


def _still(asking: _Asking, answer: FitReport) -> Iterator[str]:
    """Yield the sentence on a job that does not fit beside what its allocator caches, but would without that."""
    memory, there = answer.estimate.gpu_memory_bytes, answer.estimate.device_memory_bytes
    if memory is None or there is None or memory.low > there or not _has_pytorchs_allocator(asking):
        return
    graph, peak = _played(asking)
    least = find_least_memory(graph, peak) + memory.point - peak.reserved_bytes
    if least <= there:
        yield (
            "it may run all the same: PyTorch gives back what it cached before it runs out, and the least it needs is "
            f"{format_bytes(least)} by the middle of the estimate; each time it does so costs time"
        )


def _has_pytorchs_allocator(asking: _Asking) -> bool:
    """Tell whether the whole step is played through that allocator: XLA has its own, and a divided step is scaled."""
    xla = (ModelKind.HLO, ModelKind.JAX_FUNCTION)
    return asking.workload.parallelism == Parallelism() and asking.workload.model.kind not in xla


def _played(asking: _Asking) -> tuple[OpGraph, PeakMemory]:
    """Return what fills the device most, of the steps and the longest decode step, with its peak."""
    device = asking.place.device
    graphs = device_memory_graphs(asking.tracers[asking.workload].job_for(device), device)
    return max(((one, peak_memory(one)) for one in graphs), key=lambda played: played[1].allocated_bytes)


def _moments(asking: _Asking, estimate: Estimate) -> Iterator[MemorySnapshot]:
    """Yield the moments of a step on one GPU; where a model is divided, its share of each category."""
    (graph, whole), each = _played(asking), estimate.basis.memory_breakdown_bytes
    job = asking.tracers[asking.workload].job_for(asking.place.device)
    if job.longer:  # one step is drawn, not all that are played
        graph = add_workspaces(job.largest_step, asking.place.device)
    share = {kind.value: each.get(kind.value, 0.0) / size for kind, size in whole.by_category.items() if size}
    for moment in memory_timeline(graph):
        held = {kind: round(size * share.get(kind, 1.0)) for kind, size in moment.held_bytes.items()}
        part = sum(held.values()) / max(moment.total_bytes, 1)
        yield replace(moment, held_bytes=held, reserved_bytes=round(moment.reserved_bytes * part))


def _checks(estimate: Estimate, place: ResolvedTarget, risk: float) -> Iterator[MemoryCheck]:
    """Yield the checks of the device's memory and of the host's."""
    node = place.partition.node if place.partition else None
    if estimate.gpu_memory_bytes is not None:
        yield check_memory("GPU", estimate.gpu_memory_bytes, estimate.device_memory_bytes, risk)
    if estimate.host_memory_bytes is not None:
        there: float | None = (node.usable_memory_bytes or node.memory_bytes) if node else None
        if place.device.kind is DeviceKind.CPU:
            there = there or place.device.memory_bytes
        processes = max(1, -(-place.target.gpus // place.target.nodes))
        host = estimate.host_memory_bytes.scaled(processes)
        if there is not None or place.device.kind is DeviceKind.CPU:
            yield check_memory("host", host, there, risk)


def _with_batch(asking: _Asking, answer: FitReport) -> FitReport:
    """Return the answer with the largest batch whose memory is there."""
    if not can_change(asking.workload) or answer.batch is None:
        why = (
            "the batch is the script's own" if asking.workload.model.kind is ModelKind.COMMAND else "it is in the file"
        )
        return replace(answer, why_no_batch=why)
    first = answer.checks[0]

    def needed(batch: int) -> float:
        if batch == answer.batch:
            return first.needed_bytes
        asking.progress(f"batch {batch}")
        found = next(_checks(asking.estimate(with_batch(asking.workload, batch)), asking.place, asking.risk))
        return found.needed_bytes

    return replace(answer, largest_batch=largest_batch(needed, float(first.there_bytes or 0), answer.batch))


def _changes(asking: _Asking, answer: FitReport, refused: list[str]) -> Iterator[FitChange]:
    """Yield the changes that were asked about: of each kind the least that fits, or the most there is.

    What cannot be estimated, or asks for more GPUs than the place has, goes to ``refused`` with its reason.
    """
    dtypes = frozenset(asking.place.device.peak_flops_per_s)
    for ladder in memory_saving_ladders(asking.workload, answer.batch or 1, dtypes):
        for number, variant in enumerate(ladder, 1):
            asking.progress(" ".join(variant.options))
            try:
                change = _changed(asking, answer, variant)
            except LeadlineError as error:
                refused.append(f"not known with {' '.join(variant.options)}: {error}")
                break
            if change.fits or number == len(ladder):
                yield change
                break
    yield from _growing(asking, answer)
    for kept in list_offloads(answer.estimate, asking.place.device, asking.workload):
        told = check_memory("GPU", kept.memory_bytes, answer.estimate.device_memory_bytes, asking.risk)
        asks = ChangeCost.HARDWARE if kept.gpus > 1 else ChangeCost.NOTHING
        before = answer.estimate.step_s
        slower = kept.step_s.point / before.point if kept.step_s and before else None
        yield FitChange(kept.description, (), asks, told, kept.step_s, slower, slower and slower * kept.gpus)


def _growing(asking: _Asking, answer: FitReport) -> Iterator[FitChange]:
    """Yield what segments that grow would save of what the allocator reserves."""
    memory = answer.estimate.gpu_memory_bytes
    if memory is None or not _has_pytorchs_allocator(asking):
        return
    graph, peak = _played(asking)
    saved = peak.reserved_bytes - peak_memory(graph, expandable=True).reserved_bytes
    left = Interval(memory.point - saved, memory.low, max(memory.high - saved, memory.point - saved), memory.level)
    told = check_memory("GPU", left, answer.estimate.device_memory_bytes, asking.risk)
    what = "set PYTORCH_ALLOC_CONF=expandable_segments:True in the job's environment"
    if left.low <= left.point:
        yield FitChange(what, (), ChangeCost.NOTHING, told, answer.estimate.step_s, 1.0, 1.0)


def _changed(asking: _Asking, answer: FitReport, variant: WorkloadVariant) -> FitChange:
    estimate = asking.estimate(variant.workload)
    told = next(_checks(estimate, asking.place, asking.risk))
    return FitChange(
        variant.description,
        variant.options,
        variant.cost,
        told,
        estimate.step_s,
        *_ratios(asking, answer, variant, estimate),
    )


def _ratios(
    asking: _Asking, answer: FitReport, variant: WorkloadVariant, estimate: Estimate
) -> tuple[float | None, float | None]:
    """Return time and cost for the same samples over those of the unchanged job."""
    before = answer.estimate
    if estimate.step_s is None or before.step_s is None:
        return None, None
    samples = _samples(variant.workload, answer.batch) / _samples(asking.workload, answer.batch)
    slower = estimate.step_s.point / before.step_s.point / samples
    return slower, slower * variant.workload.gpus / asking.workload.gpus


def _samples(workload: Workload, batch: int | None) -> float:
    """Return the samples of one step over all GPUs."""
    copies = workload.parallelism.copies(workload.gpus)
    return float((workload.batch or batch or 1) * max(workload.accumulation, 1) * copies)


def _larger(asking: _Asking, answer: FitReport) -> Iterator[FitChange]:
    """Yield the smallest devices with enough memory, each model of them once."""
    needed, device = answer.checks[0].needed_bytes, asking.place.device
    if device.kind is DeviceKind.CPU:
        return
    larger = [one for one in asking.tools.catalog.devices() if _could(one, device, needed)]
    found = 0
    for one in sorted(larger, key=lambda one: (one.memory_bytes or 0, one.name)):
        asking.progress(one.name)
        place = ResolvedTarget(Target(one.name, gpus=asking.workload.gpus), one)
        estimate = asking.at(place, asking.workload)
        told = next(_checks(estimate, place, asking.risk), None)
        if told is None or not told.fits or estimate.step_s is None or answer.estimate.step_s is None:
            continue
        slower = estimate.step_s.point / answer.estimate.step_s.point
        if slower > SLOWER:
            continue
        yield FitChange(
            "a larger device", ("--on", f'"{one.name}"'), ChangeCost.HARDWARE, told, estimate.step_s, slower
        )
        found += 1
        if found == LARGER:
            return


def _could(one: Device, small: Device, needed_bytes: float) -> bool:
    """Tell whether a device of the same maker and kind could hold the job."""
    return one.kind is small.kind and one.vendor == small.vendor and (one.memory_bytes or 0) >= needed_bytes


def _undominated(changes: Sequence[FitChange]) -> list[FitChange]:
    """Leave out a change that does no more than another that fits with fewer options, and takes as long."""
    return [one for one in changes if not any(_dominates(other, one) for other in changes)]


def _dominates(one: FitChange, other: FitChange) -> bool:
    words, more = set(one.options), set(other.options)
    if not one.fits or not words or not words < more or one.slower is None or other.slower is None:
        return False
    return list(ChangeCost).index(one.asks) <= list(ChangeCost).index(other.asks) and one.slower <= 1.01 * other.slower


def _worth(change: FitChange) -> tuple[object, ...]:
    """Order changes: those that fit, that ask nothing but time, and that take the least of it, first."""
    return not change.fits, list(ChangeCost).index(change.asks), change.slower or float("inf")
