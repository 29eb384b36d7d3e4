"""Predict the peak memory of a job's processes on the host."""

from dataclasses import replace

from leadline.core.estimate import Interval
from leadline.core.graph import OpGraph, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, Phase, Precision, Workload
from leadline.estimators.heap import resident_peak_bytes
from leadline.estimators.host_data import HELD, STAGED, data_parts, staging_bytes
from leadline.estimators.onednn import Processor

DEFAULTS = {
    "interpreter_bytes": 10e6,
    "framework_bytes": 220e6,
    "first_pass_bytes": 15e6,
    "first_step_bytes": 90e6,
}
"""Peak resident bytes of CPython 3.11, of importing torch 2.13 (CPU build), of a first inference and a first training
step, by ``VmHWM`` on x86-64 Linux; ``leadline calibrate`` measures them anew."""

CUDA_HOST_BYTES = 1.2e9
"""Host pages of a CUDA build of torch, its context and cuBLAS; an assumption, hence the wide interval."""

LOW, HIGH = 0.940, 1.114
"""Ends of the 90 % interval on a CPU over the point: conformal quantiles of what 97 real processes of 15 families of
models took over what was foretold; with each family left out in turn, 4.1 % exceed the upper end (``bench/memory``)."""

GPU_SLACK = 0.36
"""Half-width of the interval of a GPU's host side as a share of the point; an assumption."""


def host_memory(workload: Workload, job: TracedJob, device: Device) -> Interval:
    """Return the peak memory in bytes that the job's processes hold on one host, for each device they feed."""
    return host_interval(sum(host_parts(workload, job, device).values()), device)


def host_interval(point: float, device: Device) -> Interval:
    """Return the interval around the memory that was foretold of a process beside ``device``."""
    if device.kind is DeviceKind.CPU:
        return Interval(point, point * LOW, point * HIGH)
    return Interval(point, point * (1 - GPU_SLACK), point * (1 + GPU_SLACK))


def host_parts(workload: Workload, job: TracedJob, device: Device) -> dict[str, float]:
    """Return what the process of one device holds at its peak with what its loaders hold: bytes by name.

    What the script itself imports and reads is known where it was traced. On a CPU the tensors themselves live there,
    in glibc's heap. On a GPU the host holds the CUDA libraries, and first the weights while they are built, later what
    a loader keeps ahead and what saving a checkpoint takes: the fuller of these two moments.
    """
    figures = {**DEFAULTS, **(device.calibration.figures if device.calibration else {})}
    parts = {
        "interpreter and libraries": figures["interpreter_bytes"] + figures["framework_bytes"],
        "imports and data of the script": float(job.loop.script_bytes or 0),
    }
    data = data_parts(workload, job, on_gpu=device.kind is not DeviceKind.CPU)
    if device.kind is DeviceKind.CPU:
        first = figures["first_step_bytes" if workload.phase is Phase.TRAINING else "first_pass_bytes"]
        tensors = resident_peak_bytes(_with_evaluation(replace(job, step=job.largest)), Processor.of(figures))
        if job.generation and job.generation.last:
            tensors = max(tensors, resident_peak_bytes(job.generation.last, Processor.of(figures)))
        return {
            **parts,
            "kernels of the first step": first,
            "tensors": max(tensors, _cast_bytes(workload, job)),
            **data,
        }
    parts["CUDA context and libraries"] = CUDA_HOST_BYTES
    built = float(job.step.parameter_bytes * (2 if _is_cast(workload) else 1))
    begin = {"weights while they are built": built, HELD: data[HELD]}
    later = {**data, STAGED: staging_bytes(workload, job)}
    return {**parts, **(begin if sum(begin.values()) >= sum(later.values()) else later)}


def _is_cast(workload: Workload) -> bool:
    """Tell whether the weights are built in float32, as a function of the user does, and cast to two bytes then."""
    precision = workload.precision or Precision.FP32
    return workload.model.kind is ModelKind.FUNCTION and precision.weights in ("float16", "bfloat16")


def _cast_bytes(workload: Workload, job: TracedJob) -> int:
    """Return the most bytes that tensors hold before the first step.

    That is what was seen while the model was built, and while one weight after another is cast, each beside its old
    self.
    """
    built = job.loop.built_bytes or 0
    if not _is_cast(workload):
        return built
    first = (event for event in job.step.events if event.op == 0)
    sizes = [one.size_bytes for one in first if one.category is StorageCategory.PARAMETER and one.size_bytes > 0]
    level = highest = 2 * sum(sizes)
    for size in sizes:
        highest = max(highest, level + size)
        level -= size
    return max(highest, built)


def _with_evaluation(job: TracedJob) -> OpGraph:
    """Return the step followed by a batch of evaluation, whose tensors come on top of what the heap keeps.

    What evaluation finds already held is the step's own, so only what it takes and gives back is added.
    """
    if job.evaluation is None:
        return job.step
    passing = {event.storage for event in job.evaluation.events if event.size_bytes < 0}
    found = {event.storage for event in job.evaluation.events if event.op == 0} - passing
    after = max([len(job.step.ops), *(event.op for event in job.step.events)])
    own = 1 + max((event.storage for event in job.step.events), default=0)
    events = tuple(
        StorageEvent(event.op + after, own + event.storage, event.size_bytes, event.category)
        for event in job.evaluation.events
        if event.storage in passing and event.storage not in found
    )
    return OpGraph((*job.step.ops, *job.evaluation.ops), (*job.step.events, *events))
