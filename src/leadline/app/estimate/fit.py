"""The verb ``fit``: does a workload fit into the memory of a target, and if not, which change would make it fit?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from leadline.app.background import report_step
from leadline.app.estimate.estimate import Toolbox, Tracer, estimate_targets
from leadline.app.machines.targets import ResolvedTarget, resolve_targets
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Estimate, Interval, Target
from leadline.core.fit import ChangeCost, FitChange, FitReport, MemoryCheck, MemorySnapshot, ServingCapacity
from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, StorageCategory, TracedJob
from leadline.core.hardware import DeviceKind
from leadline.core.units import format_bytes
from leadline.core.workload import ModelKind, Parallelism, Workload
from leadline.estimators.memory import device as device_memory
from leadline.estimators.memory.host import describe_pinning_assumption, host_parts
from leadline.estimators.memory.offload import list_offloads
from leadline.estimators.memory.workspaces import add_workspaces
from leadline.estimators.parallelism import divided_memory
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
"""Share of the device memory that vLLM uses (``gpu_memory_utilization``; 0.92 in the newest releases)."""


def estimate_serving(
    workload: Workload, job: TracedJob, estimate: Estimate, check: MemoryCheck
) -> ServingCapacity | None:
    """Return how many sequences a device can serve at once with a paged KV cache.

    As in vLLM, the rest of its share after a profiled pass becomes cache blocks. ``None`` if the cache is not paged or
    the device's memory is unknown.
    """
    if not workload.paged or job.generation is None or check.there_bytes is None:
        return None
    cached = estimate.basis.memory_breakdown_bytes.get(StorageCategory.KV_CACHE.value, 0.0)
    room = max(UTILIZATION * check.there_bytes - (check.needed_bytes - cached), 0.0)
    batch = workload.batch or job.loop.batch or 1
    each = divided_memory.cache_share_bytes(job.generation.cache_bytes, workload, job.step) / batch
    tokens = job.generation.prompt + job.generation.generated
    return ServingCapacity(UTILIZATION, CACHE_BLOCK, room, tokens, int(room // each))


LARGER = 3
"""Number of larger devices that are tried, the smallest first."""
SLOWER = 1.5
"""A larger device that is slower by more than this factor is not proposed."""
HELPS = 0.99
"""A change that saves less than 1 % of the memory is not proposed."""


class _Question(Frozen):
    """One question: the workload on a target, under a risk."""

    tools: Toolbox
    workload: Workload
    place: ResolvedTarget
    risk: float
    tracers: dict[Workload, Tracer]

    def estimate(self, workload: Workload) -> Estimate:
        """Return the estimate of a variant of the workload on the same target."""
        place = self.place
        if workload.gpus != self.workload.gpus:
            place = next(iter(resolve_targets(self.tools.catalog, [place.name], workload).targets))
        return self.at(place, workload)

    def at(self, place: ResolvedTarget, workload: Workload) -> Estimate:
        """Return the estimate of a workload on any target; each workload is traced once."""
        return estimate_targets([place], self.tracers.setdefault(workload, Tracer(self.tools, workload)))[0]


def fit(
    workload: Workload,
    tools: Toolbox,
    *,
    on: Sequence[str],
    risk: float,
    changes: bool = True,
    picture: bool = False,
) -> list[FitReport]:
    """Return whether the workload fits, for each distinct device among the targets named by ``on``.

    ``risk`` is the accepted probability of running out of memory. ``changes`` looks for the largest batch, and for
    changes that would make the job fit; ``picture`` adds the memory of a GPU over time of a step.

    Raises:
        InvalidInput: a target is unknown, the risk is out of range, or the workload cannot be used.
        Untraceable: the model or script could not be traced.
    """
    if not 0 < 1 - risk < 1:  # also one that rounds to 0
        raise InvalidInput(f"--risk is {risk:g}, but it must be between 0 and 1, such as 0.05")
    targets = resolve_targets(tools.catalog, on, workload).targets
    places = list({_memory_key(place): place for place in targets}.values())
    tracer = Tracer(tools, workload)
    tracers = {workload: tracer}
    estimates, answers = estimate_targets(places, tracer), []
    if (started := tracer.on_script_gpus) is not None:
        return fit(started, tools, on=on, risk=risk, changes=changes, picture=picture)
    for place, estimate in zip(places, estimates, strict=True):
        inputs = workload.inputs[0].shape[0] if workload.inputs else None
        batch = workload.batch or tracer.first_job.loop.batch or inputs
        question = _Question(tools, workload, place, risk, tracers)
        answer = _with_parts(question, _answer(question, estimate, batch, changes=changes))
        if picture and estimate.gpu_memory_bytes is not None:
            answer = replace(answer, moments=tuple(_memory_timeline(question, estimate)))
        answers.append(answer)
    return answers


def _with_parts(question: _Question, answer: FitReport) -> FitReport:
    """Return the answer with notes, the sequences that a paged cache holds, and the parts of host memory."""
    workload, device = question.workload, question.place.device
    job = question.tracers[workload].job_for(device)
    notes = [
        *job.notes,
        divided_memory.describe_exchange_buffers(workload),
        device_memory.describe_jax_memory(workload, device),
        answer.estimate.unknown.get("step_s", ""),
    ]
    first, parts = answer.checks[0], dict[str, float]()
    if any(check.kind == "host" for check in answer.checks):
        parts = host_parts(workload, job, device)
        notes.append(describe_pinning_assumption(job, parts))
    served = estimate_serving(workload, job, answer.estimate, first) if first.kind == "GPU" else None
    return replace(answer, notes=(*answer.notes, *filter(None, notes)), serving=served, host_parts_bytes=parts)


def _memory_key(place: ResolvedTarget) -> tuple[object, ...]:
    """Return a key of targets with the same answer: the device, the number of devices, and the node's memory."""
    node = place.partition.node if place.partition else None
    host = (node.usable_memory_bytes or node.memory_bytes, node.gpus) if node else None
    return place.device.name, place.device.power_limit_w, place.target.gpus, place.target.nodes, host


def _answer(question: _Question, estimate: Estimate, batch: int | None, *, changes: bool) -> FitReport:
    place, checks = question.place, tuple(_checks(estimate, question.place, question.risk))
    if not checks:
        why = "; ".join(dict.fromkeys(estimate.unknown.values())) or "no memory was estimated"
        raise InvalidInput(f"cannot estimate the memory on {place.name}: {why}")
    answer = FitReport(place.name, place.device.name, estimate, question.risk, checks, batch)
    if checks[0].there_bytes is None:
        why = f"the memory of {place.device.name} is not known"
        return replace(answer, why_no_batch=why, notes=(f"{why}: add it to the catalog to learn whether the job fits",))
    if changes:
        answer = _with_batch(question, answer)
    if checks[0].fits is False and checks[0].kind == "GPU":
        answer = replace(answer, notes=tuple(_note_if_cache_must_go(question, answer)))
    if changes and checks[0].fits is False:
        refused: list[str] = []
        changes_tried = _changes(question, answer, refused)
        helping = [change for change in changes_tried if change.check.needed_bytes < HELPS * checks[0].needed_bytes]
        helping += islice(_larger_devices(question, answer), LARGER)
        undominated = [change for change in helping if not any(_dominates(better, change) for better in helping)]

        def rank(change: FitChange) -> tuple[object, ...]:
            # Changes that fit first, then those that cost only time, then the fastest.
            return not change.fits, list(ChangeCost).index(change.asks), change.slower or float("inf")

        answer = replace(answer, changes=tuple(sorted(undominated, key=rank)), notes=(*answer.notes, *refused))
    return answer


def _note_if_cache_must_go(question: _Question, answer: FitReport) -> Iterator[str]:
    """Yield a note on a job that fits only if the allocator frees its cache."""
    memory, capacity = answer.estimate.gpu_memory_bytes, answer.estimate.device_memory_bytes
    if memory is None or capacity is None or memory.low > capacity or not _has_pytorchs_allocator(question):
        return
    graph, peak = _fullest_graph(question)
    least = device_memory.find_least_memory(graph, peak) + memory.point - peak.reserved_bytes
    if least <= capacity:
        yield (
            "it may still run: PyTorch frees its cache before it runs out, and then needs at least "
            f"{format_bytes(least)}; each time costs some speed"
        )


def _has_pytorchs_allocator(question: _Question) -> bool:
    """Return whether the whole step is simulated with PyTorch's allocator: not for XLA, nor for a divided step."""
    xla = (ModelKind.HLO, ModelKind.JAX_FUNCTION)
    return question.workload.parallelism == Parallelism() and question.workload.model.kind not in xla


def _fullest_graph(question: _Question) -> tuple[OpGraph, device_memory.PeakMemory]:
    """Return the graph that fills the device most, of the steps and the longest decode step, with its peak."""
    device = question.place.device
    graphs = device_memory.device_memory_graphs(question.tracers[question.workload].job_for(device), device)
    played = [(graph, device_memory.peak_memory(graph)) for graph in graphs]
    return max(played, key=lambda pair: pair[1].allocated_bytes)


def _memory_timeline(question: _Question, estimate: Estimate) -> Iterator[MemorySnapshot]:
    """Yield the memory over time of a step on one GPU; of a divided model, its share of each category."""
    (graph, whole), each = _fullest_graph(question), estimate.basis.memory_breakdown_bytes
    job = question.tracers[question.workload].job_for(question.place.device)
    # A job with several step lengths is simulated for all of them, but only the largest is plotted.
    if job.longer:
        graph = add_workspaces(job.largest_step, question.place.device)
    share = {kind.value: each.get(kind.value, 0.0) / size for kind, size in whole.by_category.items() if size}
    for moment in device_memory.memory_timeline(graph):
        bytes_by_kind = {kind: round(size * share.get(kind, 1.0)) for kind, size in moment.held_bytes.items()}
        part = sum(bytes_by_kind.values()) / max(moment.total_bytes, 1)
        yield replace(moment, held_bytes=bytes_by_kind, reserved_bytes=round(moment.reserved_bytes * part))


def _checks(estimate: Estimate, place: ResolvedTarget, risk: float) -> Iterator[MemoryCheck]:
    """Yield the checks of device memory and of host memory."""
    node = place.partition.node if place.partition else None
    if estimate.gpu_memory_bytes is not None:
        yield check_memory("GPU", estimate.gpu_memory_bytes, estimate.device_memory_bytes, risk)
    if estimate.host_memory_bytes is not None:
        capacity: float | None = (node.usable_memory_bytes or node.memory_bytes) if node else None
        if place.device.kind is DeviceKind.CPU:
            capacity = capacity or place.device.memory_bytes
        # Each GPU of a node has a process of its own, and each process its own host memory.
        host = estimate.host_memory_bytes.scaled(max(1, -(-place.target.gpus // place.target.nodes)))
        if capacity is not None or place.device.kind is DeviceKind.CPU:
            yield check_memory("host", host, capacity, risk)


def _with_batch(question: _Question, answer: FitReport) -> FitReport:
    """Return the answer with the largest batch that fits."""
    if not can_change(question.workload) or answer.batch is None:
        source = "script" if question.workload.model.kind is ModelKind.COMMAND else "file"
        return replace(answer, why_no_batch=f"the {source} sets the batch")
    first = answer.checks[0]

    def needed(batch: int) -> float:
        if batch == answer.batch:
            return first.needed_bytes
        report_step(f"trying batch {batch}")
        estimate = question.estimate(with_batch(question.workload, batch))
        return next(_checks(estimate, question.place, question.risk)).needed_bytes

    return replace(answer, largest_batch=largest_batch(needed, float(first.there_bytes or 0), answer.batch))


def _changes(question: _Question, answer: FitReport, refused: list[str]) -> Iterator[FitChange]:
    """Yield changes: of each kind the smallest that fits, or else the largest there is.

    Changes that cannot be estimated, or need more GPUs than the target has, go to ``refused`` with their reason.
    """
    dtypes = frozenset(question.place.device.peak_flops_per_s)
    for ladder in memory_saving_ladders(question.workload, answer.batch or 1, dtypes):
        for number, variant in enumerate(ladder, 1):
            report_step(f"trying {' '.join(variant.options)}")
            try:
                change = _change_of(question, answer, variant)
            except LeadlineError as error:
                refused.append(f"unknown with {' '.join(variant.options)}: {error}")
                break
            if change.fits or number == len(ladder):
                yield change
                break
    yield from _expandable_segments(question, answer)
    loop = question.tracers[question.workload].first_job.loop
    microbatches = max(question.workload.accumulation, loop.accumulation)
    offloads = list_offloads(answer.estimate, question.place.device, question.workload, microbatches=microbatches)
    for offload in offloads:
        memory_check = check_memory("GPU", offload.memory_bytes, answer.estimate.device_memory_bytes, question.risk)
        asks = ChangeCost.HARDWARE if offload.gpus > 1 else ChangeCost.NOTHING
        before = answer.estimate.step_s
        slower = offload.step_s.point / before.point if offload.step_s and before else None
        yield FitChange(
            offload.description, (), asks, memory_check, offload.step_s, slower, slower and slower * offload.gpus
        )


def _expandable_segments(question: _Question, answer: FitReport) -> Iterator[FitChange]:
    """Yield the saving of PyTorch's expandable segments."""
    memory = answer.estimate.gpu_memory_bytes
    if memory is None or not _has_pytorchs_allocator(question):
        return
    graph, peak = _fullest_graph(question)
    saved = peak.reserved_bytes - device_memory.peak_memory(graph, expandable=True).reserved_bytes
    remaining = Interval(memory.point - saved, memory.low, max(memory.high - saved, memory.point - saved), memory.level)
    memory_check = check_memory("GPU", remaining, answer.estimate.device_memory_bytes, question.risk)
    description = "set PYTORCH_ALLOC_CONF=expandable_segments:True in the job's environment"
    if remaining.low <= remaining.point:
        yield FitChange(description, (), ChangeCost.NOTHING, memory_check, answer.estimate.step_s, 1.0, 1.0)


def _change_of(question: _Question, answer: FitReport, variant: WorkloadVariant) -> FitChange:
    estimate, before = question.estimate(variant.workload), answer.estimate
    memory_check = next(_checks(estimate, question.place, question.risk))
    slower = costlier = None
    if estimate.step_s is not None and before.step_s is not None:
        # For the same samples, relative to the unchanged job.
        samples = _samples(variant.workload, answer.batch) / _samples(question.workload, answer.batch)
        slower = estimate.step_s.point / before.step_s.point / samples
        costlier = slower * variant.workload.gpus / question.workload.gpus
    return FitChange(
        variant.description, variant.options, variant.cost, memory_check, estimate.step_s, slower, costlier
    )


def _samples(workload: Workload, batch: int | None) -> float:
    """Return the samples of one step over all GPUs."""
    copies = workload.parallelism.copies(workload.gpus)
    return float((workload.batch or batch or 1) * max(workload.accumulation, 1) * copies)


def _larger_devices(question: _Question, answer: FitReport) -> Iterator[FitChange]:
    """Yield the smallest devices with enough memory that are not too slow."""
    needed, current = answer.checks[0].needed_bytes, question.place.device
    if current.kind is DeviceKind.CPU:
        return
    same_kind = [
        device
        for device in question.tools.catalog.devices()
        if device.kind is current.kind and device.vendor == current.vendor and (device.memory_bytes or 0) >= needed
    ]
    for device in sorted(same_kind, key=lambda device: (device.memory_bytes or 0, device.name)):
        report_step(f"trying {device.name}")
        place = ResolvedTarget(Target(device.name, gpus=question.workload.gpus), device)
        estimate = question.at(place, question.workload)
        memory_check = next(_checks(estimate, place, question.risk), None)
        if memory_check is None or not memory_check.fits or estimate.step_s is None or answer.estimate.step_s is None:
            continue
        slower = estimate.step_s.point / answer.estimate.step_s.point
        if slower > SLOWER:
            continue
        yield FitChange(
            "a larger device", ("--on", f'"{device.name}"'), ChangeCost.HARDWARE, memory_check, estimate.step_s, slower
        )


def _dominates(change: FitChange, dominated: FitChange) -> bool:
    """Return whether a subset of the options fits too and is as fast."""
    words, more = set(change.options), set(dominated.options)
    if not change.fits or not words or not words < more or change.slower is None or dominated.slower is None:
        return False
    return (
        list(ChangeCost).index(change.asks) <= list(ChangeCost).index(dominated.asks)
        and change.slower <= 1.01 * dominated.slower
    )
