"""The white-box estimator: time every op, simulate the memory, and add the rest of the job."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from msgspec import field

from leadline.core.errors import InvalidInput
from leadline.core.estimate import NORMAL_90, Basis, Estimate, Interval, Target, Tier, TokenTimes
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.core.units import format_bytes
from leadline.core.workload import Phase, Workload
from leadline.estimators import gpu_memory_interval, walltime
from leadline.estimators.compiled_kernels import ReplayedKernels, launched_as
from leadline.estimators.memory.device import PeakMemory, describe_jax_memory, job_peak, usable_bytes
from leadline.estimators.memory.workspaces import Workspaces
from leadline.estimators.parallelism.divided_memory import (
    describe_exchange_buffers,
    divide_memory,
    widen_divided_memory,
)
from leadline.estimators.parallelism.division import DividedStep, divide_step
from leadline.estimators.parallelism.fabric import SCALE_SPREAD, Fabric, job_fabric
from leadline.estimators.parallelism.tensor import tensor_share
from leadline.estimators.recent_cache import RecentCache, RecentResults
from leadline.estimators.step_time.roofline import HOST_SPREAD, MATRIX_KINDS, SLOW_HOST, RooflineKernels
from leadline.estimators.step_time.selection import Domain, find_domain
from leadline.estimators.token_times import (
    GraphTime,
    describe_token_times,
    least_decode_s,
    predict_answer,
    token_times,
)

LEVEL = 0.9

# Predicts the peak memory of the job's process on the host, in bytes.
HostMemory = Callable[[Workload, TracedJob, Device], Interval]


class WholeStep(Frozen):
    """A step predicted as a whole: method, time over all GPUs, seconds of its parts, and reasons."""

    name: str
    step_s: Interval
    parts_s: dict[str, float]
    reasons: tuple[str, ...]


# Prices a step as a whole over the links of a job; `None` where kernels must be priced.
WholeStepPredictor = Callable[[Workload, TracedJob, Device, Fabric], WholeStep | None]


# Kernels of a serving engine for a job; `None` where an engine does not serve it.
EngineSelector = Callable[[Workload, TracedJob, Device], KernelModel | None]


class WhiteBox(Frozen):
    """An ``Estimator`` over op graphs; ``predict_whole_step`` replaces the kernels where it can.

    A job that a serving engine runs takes the ``engine_kernels``.
    """

    host_memory: HostMemory
    kernels: Callable[[Device, TracedJob], KernelModel] = lambda device, _: RooflineKernels(device)
    name: str = "white-box"
    predict_whole_step: WholeStepPredictor = lambda *_: None
    engine_kernels: EngineSelector = lambda *_: None
    _peaks: RecentResults[PeakMemory] = field(default_factory=RecentResults)
    _domain: RecentCache[OpGraph, Domain] = field(default_factory=lambda: RecentCache(find_domain))
    _hosts: RecentResults[Interval] = field(default_factory=RecentResults)

    def estimate(
        self,
        workload: Workload,
        job: TracedJob,
        device: Device,
        *,
        nodes: int | None = None,
        network_bytes_per_s: float | None = None,
        network_technology: str | None = None,
    ) -> Estimate:
        """Return the estimate of ``workload`` on ``workload.gpus`` such devices over ``nodes``."""
        fabric = job_fabric(workload, device, nodes, network_bytes_per_s, network_technology)
        unknown: dict[str, str] = {}
        reasons: list[str] = []
        memory = None
        memory_parts: dict[str, float] = {}
        if device.kind is not DeviceKind.CPU and job.step.events:
            # Devices with the same workspaces share one simulation.
            whole = self._peaks.get(job, Workspaces.of(device), partial(job_peak, job, device))
            peak = divide_memory(whole, workload, job.step)
            domain = self._domain(job.step)
            memory = gpu_memory_interval.predict_gpu_memory(peak, job.step, domain, device)
            memory = widen_divided_memory(memory, workload)
            memory, beyond = gpu_memory_interval.widen_unmeasured(memory, workload)
            memory_parts = {category.value: float(size) for category, size in peak.by_category.items()}
            reasons.append(_memory_reason(memory, peak, device, usable_bytes(workload, device)))
            reasons.append(gpu_memory_interval.describe_gpu_memory(job.step, domain))
            reasons += gpu_memory_interval.describe_context(device)
            reasons += filter(
                None, (beyond, describe_exchange_buffers(workload), describe_jax_memory(workload, device))
            )
        elif device.kind is DeviceKind.CPU:
            unknown["gpu_memory_bytes"] = f"{device.name} is a CPU: its memory is the host's"
        interval, tokens, elapsed = None, None, None
        parts: dict[str, float] = {}
        tier, name = Tier.SPECS, self.name
        try:
            engine = self.engine_kernels(workload, job, device)
            if engine is not None and runs_in_engine(workload, job):
                model = engine
            else:
                host = device.with_launch(workload.launch_s) if workload.launch_s else device
                model = launched_as(self.kernels(host, job), workload, device)
            tier, name = model.tier, f"{self.name}, {model.name}"
            if (step := self.predict_whole_step(workload, job, device, fabric)) is not None:
                tier, name = Tier.LEARNED, f"{self.name}, {step.name}"
                interval, parts = step.step_s, step.parts_s
                reasons = [*step.reasons, *reasons]
            else:
                priced, tokens = _predict_step(model, engine, workload, job, device, fabric)
                interval, parts = priced.interval, priced.parts
                reasons = [*model.reasons, *priced.sentences, *reasons]
        except InvalidInput as error:
            unknown["step_s"] = unknown["elapsed_s"] = str(error)
        if interval is not None:
            elapsed, interval, more = _predict_job(workload, job, device, interval, model)
            reasons += more
        return Estimate(
            target=Target(device.name, gpus=workload.gpus, nodes=fabric.nodes),
            estimator=name,
            basis=Basis(tier, tuple(reasons), parts, memory_parts),
            elapsed_s=elapsed,
            step_s=interval,
            gpu_memory_bytes=memory,
            host_memory_bytes=self._host(workload, job, device),
            device_memory_bytes=usable_bytes(workload, device),
            unknown=unknown,
            token_times=tokens,
        )

    def _host(self, workload: Workload, job: TracedJob, device: Device) -> Interval:
        """Return the host's memory; uncalibrated devices of one kind share the prediction."""
        predict = partial(self.host_memory, workload, job, device)
        return predict() if device.calibration else self._hosts.get(job, (workload, device.kind), predict)


def runs_in_engine(workload: Workload, job: TracedJob) -> bool:
    """Return whether only a serving engine runs a job: its cache is paged, or its products are in few bits."""
    narrow = any(op.scaled_dtype for op in job.step.ops)
    return workload.phase is Phase.INFERENCE and (workload.paged or narrow)


def _predict_step(
    model: KernelModel, engine: KernelModel | None, workload: Workload, job: TracedJob, device: Device, fabric: Fabric
) -> tuple[GraphTime, TokenTimes | None]:
    """Return the step as the job repeats it or whole answers, and the token times."""

    def price(graph: OpGraph, kernels: KernelModel = model) -> GraphTime:
        graph_job = replace(job, step=graph)
        return _predict_graph(kernels, workload, graph_job, device, fabric, engine=kernels is engine)

    if job.generation is None:
        return price(job.step), None
    answer = predict_answer(job, price)
    captures = device.kind is not DeviceKind.CPU and model is not engine
    replaying = engine or ReplayedKernels(model, model.tier)
    replayed = predict_answer(job, partial(price, kernels=replaying)) if captures else None
    tokens = token_times(answer, replayed, workload, job)
    more = describe_token_times(tokens, least_decode_s(workload, job, device)) if tokens else ()
    return replace(answer.whole, sentences=(*answer.whole.sentences, *more)), tokens


def _predict_graph(
    model: KernelModel, workload: Workload, job: TracedJob, device: Device, fabric: Fabric, *, engine: bool = False
) -> GraphTime:
    """Return the time of one graph over the job's GPUs, the seconds by kind, and sentences."""
    step_s = model.step_s(job.step)
    parts = _seconds_by_kind(model, job)
    kernels_s = sum(parts.values())
    launches_s = sum(model.launch_s(op) * op.count for op in job.step.ops)
    spread = _spread(model, job.step, kernels_s / workload.parallelism.tensor, launches_s) * (
        1.5 if job.low_confidence and not engine else 1.0
    )
    reasons = [_largest_part(parts, kernels_s, model, job, device)] if kernels_s else []
    if device.kind is not DeviceKind.CPU and launches_s > kernels_s:
        reasons.append(f"host-bound: launching takes {launches_s / kernels_s:.1f} × the kernels' time")
    parts["launch"] = launches_s
    faster = slower = 1.0
    matrix_share = sum(parts.get(kind, 0.0) for kind in MATRIX_KINDS) / kernels_s if kernels_s else 1.0
    divided = _divide(model, workload, job, device, step_s, launches_s, matrix_share, fabric, engine=engine)
    if divided is not None:
        link_spread = divided.link_spread * divided.exposed_s / divided.step_s
        step_s, spread = divided.step_s, math.hypot(spread, link_spread, SCALE_SPREAD * math.log(fabric.islands))
        faster, slower = step_s / min(divided.fastest_s, step_s), max(divided.slowest_s, step_s) / step_s
        parts |= {"communication": sum(divided.sent_s.values())}
        reasons += divided.sentences
    interval = _log_normal(step_s, spread)
    if device.kind is not DeviceKind.CPU and model.host_spread >= HOST_SPREAD:
        slowed = _slow_host_deviation(kernels_s / workload.parallelism.tensor, launches_s)
        interval = replace(interval, high=_log_normal(step_s, math.hypot(spread, slowed)).high)
    return GraphTime(interval.widened(faster, slower), parts, tuple(reasons))


def _slow_host_deviation(kernels_s: float, launches_s: float) -> float:
    """Return the log deviation by which an unknown host may be slower; it counts upwards only."""
    fast_s, slow_s = (max(kernels_s, times * launches_s) for times in (1.0, SLOW_HOST))
    return math.log(slow_s / fast_s) / NORMAL_90 if launches_s else 0.0


def _spread(model: KernelModel, graph: OpGraph, kernels_s: float, launches_s: float) -> float:
    """Return the spread of a step: that of the kernels, or of the host where launches decide.

    ``kernels_s`` are those of one GPU.
    """
    host = model.host_spread
    if 0 < launches_s < kernels_s:
        host -= math.log(kernels_s / launches_s) / NORMAL_90
    return max(model.spread_of(graph), host if launches_s else 0.0)


def _divide(
    model: KernelModel, workload: Workload, job: TracedJob, device: Device, whole_s: float, launches_s: float,
    matrix_share: float, fabric: Fabric, *, engine: bool,
) -> DividedStep | None:  # fmt: skip
    """Return the step divided over the GPUs; ``None`` for one GPU or independent copies."""
    plan = workload.parallelism
    apart = workload.phase is Phase.INFERENCE and plan.tensor * plan.pipeline == 1
    if workload.gpus < 2 or apart:
        return None
    if plan.tensor > 1:
        whole_s = plan.tensor * model.step_s(tensor_share(job.step, plan.tensor))
    update = [op for op in job.step.ops if op.stage is Stage.OPTIMIZER]
    optimizer_s = sum(seconds * op.count for seconds, op in zip(model.ops_s(update), update, strict=True))
    if workload.phase is Phase.TRAINING or device.kind is DeviceKind.CPU:
        launches_s = 0.0
    return divide_step(
        workload,
        job,
        device,
        whole_s,
        optimizer_s=optimizer_s,
        launches_s=launches_s,
        matrix_share=matrix_share,
        fabric=fabric,
        engine=engine,
    )


def _seconds_by_kind(model: KernelModel, job: TracedJob) -> dict[str, float]:
    parts = defaultdict[str, float](float)
    for op, seconds in zip(job.step.ops, model.ops_s(job.step.ops), strict=True):
        parts[op.kind.value] += seconds * op.count
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _largest_part(parts: dict[str, float], kernels_s: float, model: KernelModel, job: TracedJob, device: Device) -> str:
    kind, seconds = next(iter(parts.items()))
    ops = [op for op in job.step.ops if op.kind.value == kind]
    flops = sum(op.flops * op.count for op in ops)
    moved = sum((op.bytes_read + op.bytes_written) * op.count for op in ops)
    peak = device.peak_flops_per_s.get(_main_dtype(ops, device), 0.0)
    arithmetic = kind in (OpKind.GEMM.value, OpKind.CONV.value, OpKind.ATTENTION.value)
    if peak and device.memory_bytes_per_s:  # what the larger of both bounds is
        arithmetic = arithmetic and flops / peak >= moved / device.memory_bytes_per_s
    if arithmetic or not device.memory_bytes_per_s:
        rate = f"at {flops / seconds / 1e12:.3g} TFLOP/s in {_main_dtype(ops, device)}"
    else:
        rate = f"moving {moved / seconds / 1e9:.3g} GB/s"
    return f"{seconds / kernels_s:.0%} of the kernels' time is {kind} {rate} ({_ORIGIN[model.tier]})"


_ORIGIN = {
    Tier.SPECS: "from vendor specifications",
    Tier.CALIBRATED: "measured here",
    Tier.LEARNED: "learned from other devices and models",
}


def _main_dtype(ops: list[Op], device: Device) -> str:
    """Return the number format of most of the arithmetic; of scaled products theirs, if the device has it."""
    weight = defaultdict[str, float](float)
    for op in ops:
        narrow = op.scaled_dtype
        weight[narrow if narrow and narrow in device.peak_flops_per_s else op.dtype] += op.flops * op.count
    return max(weight, key=weight.__getitem__)


def _memory_reason(memory: Interval, peak: PeakMemory, device: Device, usable: int | None) -> str:
    largest = sorted(peak.by_category.items(), key=lambda part: -part[1])[:3]
    contents = ", ".join(f"{format_bytes(size)} {_CATEGORY_WORDS[category]}" for category, size in largest if size)
    if usable is None:
        return f"memory at the peak: {contents}; the memory of {device.name} is not known"
    verdict = "does not fit" if memory.low > usable else "may not fit" if memory.high > usable else "fits"
    return f"memory at the peak: {contents}; {verdict} in {format_bytes(usable)}"


_CATEGORY_WORDS = {
    StorageCategory.PARAMETER: "weights",
    StorageCategory.GRADIENT: "gradients",
    StorageCategory.OPTIMIZER_STATE: "optimizer state",
    StorageCategory.ACTIVATION: "activations",
    StorageCategory.INPUT: "inputs",
    StorageCategory.KV_CACHE: "KV cache",
    StorageCategory.TEMPORARY: "temporaries",
    StorageCategory.WORKSPACE: "workspaces",
    StorageCategory.OTHER: "other tensors",
}


def _log_normal(point: float, spread: float) -> Interval:
    factor = math.exp(NORMAL_90 * spread)
    return Interval(point, point / factor, point * factor, LEVEL)


def _predict_job(
    workload: Workload, job: TracedJob, device: Device, step: Interval, model: KernelModel
) -> tuple[Interval, Interval, list[str]]:
    """Return the elapsed time, the step with its input, and sentences about the job's length."""
    length = walltime.job_length(workload, job)
    loaded = walltime.loading(workload, job, device)
    workers = workload.dataset.workers or job.loop.loader_workers
    fed = walltime.step_with_loading(step, loaded.step_s, workers, device)
    reasons = [*length.reasons, *filter(None, [loaded.reason])]
    if (work := walltime.script_work(job, device)) is not None:
        fed = fed.plus(work.step_s)
        reasons.append(work.reason)
    if loaded.step_s.point > step.point:
        reasons.append(f"input-bound: {loaded.step_s.point:.3g} s a step to load, {step.point:.3g} s to compute")
    elapsed = walltime.startup_interval(device, job.loop).plus(fed.scaled(length.steps))
    if (between := walltime.epoch_work(job, device)) is not None:
        elapsed = elapsed.plus(between.step_s.scaled(length.epochs))
        reasons.append(between.reason)
    if job.evaluation and length.evaluation_batches:
        batch = walltime.evaluation_interval(workload, job, device, model.step_s(job.evaluation))
        elapsed = elapsed.plus(batch.scaled(length.evaluation_batches))
    return elapsed, fed, reasons
