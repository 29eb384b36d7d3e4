"""Predict the peak memory of a job's processes on the host."""

from leadline.core.estimate import Interval
from leadline.core.graph import OpGraph, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, Phase, Precision, Workload
from leadline.estimators.heap import resident_peak_bytes
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

WORKER_BYTES = 30e6
"""Pages of its own that a forked DataLoader worker comes to hold: 5 to 45 MB by PSS in two scripts with two workers."""

PREFETCH = 2
"""Batches each worker keeps ahead (``prefetch_factor`` of DataLoader)."""

LOW, HIGH = 0.940, 1.114
"""Ends of the 90 % interval on a CPU over the point: conformal quantiles of what 97 real processes of 15 families of
models took over what was foretold; with each family left out in turn, 4.1 % exceed the upper end (``bench/memory``)."""

GPU_SLACK = 0.36
"""Half-width of the interval of a GPU's host side as a share of the point; an assumption."""


def host_memory(workload: Workload, job: TracedJob, device: Device) -> Interval:
    """Return the peak memory in bytes that the job's processes hold on one host, for each device they feed.

    What the script itself imports and reads is known where it was traced. On a CPU the tensors themselves live there,
    in glibc's heap; on a GPU the host holds the weights once while they are built, the CUDA libraries, and pinned
    batches.
    """
    figures = {**DEFAULTS, **(device.calibration.figures if device.calibration else {})}
    libraries = figures["interpreter_bytes"] + figures["framework_bytes"] + (job.loop.script_bytes or 0)
    data = _data_bytes(workload, job)
    if device.kind is DeviceKind.CPU:
        first = figures["first_step_bytes" if workload.phase is Phase.TRAINING else "first_pass_bytes"]
        tensors = resident_peak_bytes(_with_evaluation(job), Processor.of(figures))
        if job.generation and job.generation.last:
            tensors = max(tensors, resident_peak_bytes(job.generation.last, Processor.of(figures)))
        point = libraries + first + max(tensors, _cast_bytes(workload, job)) + data
        return Interval(point, point * LOW, point * HIGH)
    built = job.step.parameter_bytes * (2 if _is_cast(workload) else 1)
    point = libraries + CUDA_HOST_BYTES + built + data
    return Interval(point, point * (1 - GPU_SLACK), point * (1 + GPU_SLACK))


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


def _data_bytes(workload: Workload, job: TracedJob) -> float:
    """Return the bytes of loader workers, of the batches they keep ahead, and of a data set held in memory."""
    dataset = workload.dataset
    sample = float(dataset.bytes_per_sample or job.loop.bytes_per_sample or 0)
    batch = workload.batch or job.loop.batch or 1
    workers = dataset.workers or job.loop.loader_workers
    held = sample * (dataset.samples or job.loop.samples or 0) if dataset.held_in_memory else 0.0
    return workers * (WORKER_BYTES + PREFETCH * batch * sample) + held
