"""The white-box estimator: price every op, simulate the memory, and add what surrounds the step."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.graph import Op, OpGraph, OpKind, StorageCategory, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import KernelModel
from leadline.core.units import format_bytes
from leadline.core.workload import Phase, Workload
from leadline.estimators.communication import exchange_s, ring_of
from leadline.estimators.device_memory import CONTEXT_BYTES, PeakMemory, peak_memory
from leadline.estimators.roofline import SpecsKernels
from leadline.estimators.walltime import job_length, load_s, start_up, step_with_loading

NORMAL_90 = 1.645
"""Standard deviations that hold 90 % of a normal distribution on both sides."""

LEVEL = 0.9

HostMemory = Callable[[Workload, TracedJob, Device], Interval]
"""Predicts the peak memory of the job's process on the host, in bytes."""


@dataclass(frozen=True, slots=True)
class WhiteBox:
    """An ``Estimator`` over op graphs; ``kernels`` prices a device's ops, ``host_memory`` predicts the host's part."""

    host_memory: HostMemory
    kernels: Callable[[Device], KernelModel] = SpecsKernels
    name: str = "white-box"
    _peaks: list[tuple[OpGraph, PeakMemory]] = field(default_factory=list)
    _hosts: list[tuple[Workload, TracedJob, DeviceKind, Interval]] = field(default_factory=list)

    def estimate(
        self, workload: Workload, job: TracedJob, device: Device, *, nodes: int = 1, interconnect: str | None = None
    ) -> Estimate:
        """Return the estimate of ``workload`` on ``workload.gpus`` such devices over ``nodes``."""
        unknown: dict[str, str] = {}
        reasons: list[str] = []
        memory = None
        memory_parts: dict[str, float] = {}
        if device.kind is not DeviceKind.CPU and job.step.events:
            peak = self._peak(job.step)
            memory = _device_memory(peak, device)
            memory_parts = {category.value: float(size) for category, size in peak.by_category.items()}
            reasons.append(_memory_reason(memory, peak, device))
        elif device.kind is DeviceKind.CPU:
            unknown["gpu_memory_bytes"] = f"{device.name} is a CPU: its memory is the host's"
        step: float | None = None
        parts: dict[str, float] = {}
        tier, spread = Tier.SPECS, 0.0
        try:
            model = self.kernels(device)
            tier, spread = model.tier, model.spread * (1.5 if job.low_confidence else 1.0)
            step, parts, more = self._step(model, workload, job, device, nodes, interconnect)
            reasons = [*more, *reasons]
        except InvalidInput as error:
            unknown["step_s"] = unknown["elapsed_s"] = str(error)
        interval = _log_normal(step, spread) if step is not None else None
        elapsed = None
        if interval is not None:
            elapsed, interval, more = _whole_job(workload, job, device, interval, model)
            reasons += more
        return Estimate(
            target=Target(device.name, gpus=workload.gpus, nodes=nodes),
            estimator=self.name,
            basis=Basis(tier, tuple(reasons), parts, memory_parts),
            elapsed_s=elapsed,
            step_s=interval,
            gpu_memory_bytes=memory,
            host_memory_bytes=self._host(workload, job, device),
            device_memory_bytes=device.memory_bytes,
            unknown=unknown,
        )

    def _peak(self, graph: OpGraph) -> PeakMemory:
        """Return the peak of ``graph``, simulated once for all devices of a catalog (a few graphs are remembered)."""
        for known, peak in self._peaks:
            if known is graph:
                return peak
        peak = peak_memory(graph)
        self._peaks[:] = [(graph, peak), *self._peaks[:3]]
        return peak

    def _host(self, workload: Workload, job: TracedJob, device: Device) -> Interval:
        """Return the host's memory; devices of one kind on which nothing was measured share the answer."""
        if device.calibration is not None:
            return self.host_memory(workload, job, device)
        for known, traced, kind, memory in self._hosts:
            if known is workload and traced is job and kind is device.kind:
                return memory
        memory = self.host_memory(workload, job, device)
        self._hosts[:] = [(workload, job, device.kind, memory), *self._hosts[:7]]
        return memory

    @staticmethod
    def _step(
        model: KernelModel, workload: Workload, job: TracedJob, device: Device, nodes: int, interconnect: str | None
    ) -> tuple[float, dict[str, float], list[str]]:
        """Return the seconds of one step, the share of each kind, and the sentences about them."""
        step_s = model.step_s(job.step)
        parts = _by_kind(model, job)
        kernels_s = sum(parts.values())
        launches_s = sum(model.launch_s(op) * op.count for op in job.step.ops)
        reasons = [_largest_part(parts, kernels_s, model, job, device)] if kernels_s else []
        if device.kind is not DeviceKind.CPU and launches_s > kernels_s:
            reasons.append(f"the host is the limit: launching takes {launches_s / kernels_s:.1f} × the kernels' time")
        parts["launch"] = launches_s
        if workload.gpus > 1 and workload.phase is Phase.TRAINING:
            ring = ring_of(device, workload.gpus, nodes, interconnect)
            sent_s = exchange_s(ring, job.step)
            exposed_s = max(0.1 * sent_s, sent_s - 0.5 * step_s)
            parts["communication"] = sent_s
            reasons.append(
                f"{exposed_s / (step_s + exposed_s):.0%} of the step is gradient exchange not hidden behind it"
            )
            step_s += exposed_s
        return step_s, parts, reasons


def _by_kind(model: KernelModel, job: TracedJob) -> dict[str, float]:
    parts: dict[str, float] = {}
    for op in job.step.ops:
        parts[op.kind.value] = parts.get(op.kind.value, 0.0) + model.op_s(op) * op.count
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _largest_part(parts: dict[str, float], kernels_s: float, model: KernelModel, job: TracedJob, device: Device) -> str:
    kind, seconds = next(iter(parts.items()))
    ops = [op for op in job.step.ops if op.kind.value == kind]
    flops = sum(op.flops * op.count for op in ops)
    moved = sum((op.bytes_read + op.bytes_written) * op.count for op in ops)
    matrix = kind in (OpKind.GEMM.value, OpKind.CONV.value, OpKind.ATTENTION.value)
    if matrix or not device.memory_bytes_per_s:
        rate = f"at {flops / seconds / 1e12:.3g} TFLOP/s in {_main_dtype(ops)}"
    else:
        rate = f"moving {moved / seconds / 1e9:.3g} GB/s"
    origin = "measured here" if model.tier is not Tier.SPECS else "from the maker's figures"
    return f"{seconds / kernels_s:.0%} of the kernels' time is {kind} {rate} ({origin})"


def _main_dtype(ops: list[Op]) -> str:
    weight: dict[str, float] = {}
    for op in ops:
        weight[op.dtype] = weight.get(op.dtype, 0.0) + op.flops * op.count
    return max(weight, key=lambda dtype: weight[dtype])


def _device_memory(peak: PeakMemory, device: Device) -> Interval:
    """Return reserved memory plus the context; the low end is what tensors hold, the high end a tenth above."""
    context = CONTEXT_BYTES if device.kind is DeviceKind.GPU else 0
    return Interval(
        peak.reserved_bytes + context,
        peak.allocated_bytes + context / 2,
        peak.reserved_bytes * 1.1 + 1.6 * context,
        LEVEL,
    )


def _memory_reason(memory: Interval, peak: PeakMemory, device: Device) -> str:
    largest = sorted(peak.by_category.items(), key=lambda part: -part[1])[:3]
    held = ", ".join(f"{format_bytes(size)} {_CATEGORY_WORDS[category]}" for category, size in largest if size)
    if device.memory_bytes is None:
        return f"memory at the peak: {held}; the memory of {device.name} is not known"
    verdict = (
        "does not fit"
        if memory.low > device.memory_bytes
        else "may not fit"
        if memory.high > device.memory_bytes
        else "fits"
    )
    return f"memory at the peak: {held}; {verdict} in {format_bytes(device.memory_bytes)}"


_CATEGORY_WORDS = {
    StorageCategory.PARAMETER: "weights",
    StorageCategory.GRADIENT: "gradients",
    StorageCategory.OPTIMIZER_STATE: "optimizer state",
    StorageCategory.ACTIVATION: "activations",
    StorageCategory.INPUT: "inputs",
    StorageCategory.TEMPORARY: "temporaries",
    StorageCategory.OTHER: "other tensors",
}


def _log_normal(point: float, spread: float) -> Interval:
    factor = math.exp(NORMAL_90 * spread)
    return Interval(point, point / factor, point * factor, LEVEL)


def _whole_job(
    workload: Workload, job: TracedJob, device: Device, step: Interval, model: KernelModel
) -> tuple[Interval, Interval, list[str]]:
    """Return the elapsed time, the step with its input, and the sentences about the length of the job."""
    length = job_length(workload, job)
    loading_s = load_s(workload, job, device)
    fed = step_with_loading(step, loading_s, workload.dataset.workers or job.loop.loader_workers)
    reasons = list(length.reasons)
    if loading_s > step.point:
        reasons.append(
            f"the input pipeline is the limit: {loading_s:.3g} s a step to load, {step.point:.3g} s to compute"
        )
    begin = start_up(device, job.loop)
    evaluation_s = model.step_s(job.evaluation) if job.evaluation else 0.0
    extra_s = evaluation_s * length.evaluation_batches
    elapsed = Interval(
        begin.point + fed.point * length.steps + extra_s,
        begin.low + fed.low * length.steps + extra_s / 2,
        begin.high + fed.high * length.steps + extra_s * 2,
        LEVEL,
    )
    return elapsed, fed, reasons
