"""Peak host memory of a job's processes: libraries, tensors on a CPU, data loading, checkpoints.

The data loader follows PyTorch. Each worker of ``DataLoader`` keeps ``prefetch_factor`` batches ready (2 by default).
With ``pin_memory`` a thread copies them into page-locked memory, whose allocator rounds each tensor up to a power of
two and never frees it (``ATen/core/CachingHostAllocator.h``). Workers are forked, so a shared page is copied when it is
written. Reading a Python object writes its reference count ("copy-on-read" in the documentation of
``torch.utils.data``). An array or tensor has one such count for all its elements.
"""

from dataclasses import replace

from leadline.core.estimate import Interval
from leadline.core.graph import OpGraph, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, Phase, Precision, Sharding, Workload
from leadline.estimators.memory.heap import resident_peak_bytes
from leadline.estimators.memory.onednn import Processor

# Pages of its own that a forked DataLoader worker comes to hold: 0 to 45 MB by PSS in seven scripts with two to four
# workers, and 11 MB in their median.
WORKER_BYTES = 11e6

PREFETCH = 2  # batches each worker keeps ahead (`prefetch_factor` of DataLoader)
# Names of parts.
PINNED_PART, DATASET_PART, CHECKPOINT_PART = "pinned batches", "data set", "checkpoint staging"
LIBRARIES_PART, SCRIPT_PART = "interpreter and libraries", "imports and data of the script"


def data_parts(workload: Workload, job: TracedJob, *, on_gpu: bool) -> dict[str, float]:
    """Return the bytes of loader workers, prefetched and pinned batches, and an in-memory data set."""
    # Batches count as pinned on a GPU unless the script disables it, as in Hugging Face's Trainer.
    dataset, loop = workload.dataset, job.loop
    sample = float(dataset.bytes_per_sample or loop.bytes_per_sample or 0)
    batch_bytes = (workload.batch or loop.batch or 1) * sample
    workers = dataset.workers or loop.loader_workers
    each = PREFETCH if loop.prefetch is None else loop.prefetch
    pins = on_gpu and loop.pinned is not False
    parts = {
        "loader workers": workers * WORKER_BYTES,
        "batches ahead": workers * (1 if pins else each) * batch_bytes,
        "objects of the data set, copied by workers": float(workers * (loop.object_bytes or 0)),
        DATASET_PART: sample * (dataset.samples or loop.samples or 0) if dataset.held_in_memory else 0.0,
    }
    if pins:
        rounded = sum(1 << max(size - 1, 0).bit_length() for size in _tensors(job))
        parts[PINNED_PART] = float((max(workers * each, 1) + 1) * (rounded or batch_bytes))
    return parts


def staging_bytes(workload: Workload, job: TracedJob) -> float:
    """Return what saving a checkpoint takes of the host of the process that does it."""
    # `torch.save` copies one storage after another from the device (`torch/serialization.py`), so that the largest
    # of weights and optimizer states counts. Where weights are sharded, they are gathered on the host of the first
    # process (FSDP's FULL_STATE_DICT with offload, DeepSpeed's `gather_16bit_weights_on_model_save`), states saved by
    # shard.
    if workload.phase is not Phase.TRAINING:
        return 0.0
    if workload.parallelism.sharding is Sharding.FULL:
        return float(job.step.parameter_bytes)
    saved = (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE)
    sizes = [event.size_bytes for event in job.step.events if event.category in saved and event.op == 0]
    return float(max(sizes, default=0))


def describe_pinning_assumption(job: TracedJob, parts: dict[str, float]) -> str:
    """Return a sentence if pinning is assumed and matters for at least 1 % of the bytes."""
    if job.loop.pinned is not None or parts.get(PINNED_PART, 0.0) < 0.01 * sum(parts.values()):
        return ""
    return "assuming pinned batches, the default of Hugging Face's Trainer"


def _tensors(job: TracedJob) -> tuple[int, ...]:
    """Return the bytes of each tensor of one batch: of the loader's, else of what a step takes as input."""
    if job.loop.batch_tensor_bytes:
        return job.loop.batch_tensor_bytes
    inputs = [
        event for event in job.largest_step.events if event.category is StorageCategory.INPUT and event.size_bytes > 0
    ]
    played = min(max(job.loop.accumulation, 1), 2)  # of further micro-steps no events are written
    return tuple(event.size_bytes for event in inputs[: len(inputs) // played])


# Peak resident bytes of CPython 3.11, of importing torch 2.13 (CPU build), of a first inference and a first training
# step, by `VmHWM` on x86-64 Linux; `leadline calibrate` measures them anew.
DEFAULT_HOST_BYTES = {
    "interpreter_bytes": 10e6,
    "framework_bytes": 220e6,
    "first_pass_bytes": 15e6,
    "first_step_bytes": 90e6,
}

# Host pages of a CUDA build of torch, its context and cuBLAS. An assumption, so the interval is wide.
CUDA_HOST_BYTES = 1.2e9

# Bounds of the 90 % interval on a CPU: conformal quantiles of measured over predicted peaks of 97 processes of 15 model
# families. With each family left out in turn, 4.1 % exceed the upper bound (`bench/memory`).
CPU_LOW_FACTOR, CPU_HIGH_FACTOR = 0.940, 1.114
# The same of whole scripts, whose code after the traced steps is not seen: chosen on the 50 runs of docs/reference/
# scripts.md, of which 90 % are within.
SCRIPT_LOW_FACTOR, SCRIPT_HIGH_FACTOR = 0.91, 1.17

GPU_SLACK = 0.36  # half-width of the interval of a GPU's host side as a share of the point; an assumption


def host_memory(workload: Workload, job: TracedJob, device: Device) -> Interval:
    """Return the peak host memory in bytes of the process that feeds one device."""
    point = sum(host_parts(workload, job, device).values())
    if device.kind is DeviceKind.CPU:
        if workload.model.kind is ModelKind.COMMAND:
            return Interval(point, point * SCRIPT_LOW_FACTOR, point * SCRIPT_HIGH_FACTOR)
        return Interval(point, point * CPU_LOW_FACTOR, point * CPU_HIGH_FACTOR)
    return Interval(point, point * (1 - GPU_SLACK), point * (1 + GPU_SLACK))


def host_parts(workload: Workload, job: TracedJob, device: Device) -> dict[str, float]:
    """Return the bytes by name of one device's process and its loaders at the peak, which may be before training."""
    training = _training_parts(workload, job, device)
    start = {LIBRARIES_PART: training[LIBRARIES_PART], SCRIPT_PART: float(job.loop.script_peak_bytes or 0)}
    return max(start, training, key=lambda parts: sum(parts.values()))


def _training_parts(workload: Workload, job: TracedJob, device: Device) -> dict[str, float]:
    # A traced script's own imports and data are known. On a CPU the tensors live in glibc's heap. On a GPU the host
    # holds the CUDA libraries and the larger of two moments: the weights while they are built, or later prefetched
    # batches and checkpoint staging.
    calibrated = device.calibration.figures if device.calibration else {}
    figures = {**DEFAULT_HOST_BYTES, **calibrated, **(job.loop.start_up if device.kind is DeviceKind.CPU else {})}
    parts = {
        LIBRARIES_PART: figures["interpreter_bytes"] + figures["framework_bytes"],
        SCRIPT_PART: float(job.loop.script_bytes or 0),
    }
    data = data_parts(workload, job, on_gpu=device.kind is not DeviceKind.CPU)
    if device.kind is DeviceKind.CPU:
        first = figures["first_step_bytes" if workload.phase is Phase.TRAINING else "first_pass_bytes"]
        if job.loop.loads_compiler and workload.phase is Phase.TRAINING:
            first -= figures.get("compiler_bytes", 0.0)  # which is among the script's imports
        graphs = [_with_evaluation(replace(job, step=job.largest_step))]
        if job.generation and job.generation.last:
            graphs.append(job.generation.last)
        processor, mapped_from = Processor.of(figures), job.loop.mapped_block_bytes
        tensors = max(resident_peak_bytes(graph, processor, mapped_from) for graph in graphs)
        return {
            **parts,
            "kernels of the first step": first,
            "tensors": max(tensors, _cast_bytes(workload, job)),
            **data,
        }
    parts["CUDA context and libraries"] = CUDA_HOST_BYTES
    built = float(job.step.parameter_bytes * (2 if _is_cast(workload) else 1))
    begin = {"weights while they are built": built, DATASET_PART: data[DATASET_PART]}
    later = {**data, CHECKPOINT_PART: staging_bytes(workload, job)}
    return {**parts, **(begin if sum(begin.values()) >= sum(later.values()) else later)}


def _is_cast(workload: Workload) -> bool:
    precision = workload.precision or Precision.FP32
    return workload.model.kind is ModelKind.FUNCTION and precision.weights in ("float16", "bfloat16")


def _cast_bytes(workload: Workload, job: TracedJob) -> int:
    """Return the most tensor bytes before the first step."""
    # That is the traced peak of building the model, or of casting one weight after another while its old copy lives.
    built = job.loop.built_bytes or 0
    if not _is_cast(workload):
        return built
    first = (event for event in job.step.events if event.op == 0)
    sizes = [e.size_bytes for e in first if e.category is StorageCategory.PARAMETER and e.size_bytes > 0]
    level = highest = 2 * sum(sizes)
    for size in sizes:
        highest = max(highest, level + size)
        level -= size
    return max(highest, built)


def _with_evaluation(job: TracedJob) -> OpGraph:
    """Return the step followed by one evaluation batch, whose tensors extend the heap."""
    # Storages that evaluation shares with the step are not counted again.
    if job.evaluation is None:
        return job.step
    passing = {event.storage for event in job.evaluation.events if event.size_bytes < 0}
    inherited = {event.storage for event in job.evaluation.events if event.op == 0} - passing
    after = max([len(job.step.ops), *(event.op for event in job.step.events)])
    first_storage = 1 + max((event.storage for event in job.step.events), default=0)
    events = tuple(
        StorageEvent(event.op + after, first_storage + event.storage, event.size_bytes, event.category)
        for event in job.evaluation.events
        if event.storage in passing and event.storage not in inherited
    )
    return OpGraph((*job.step.ops, *job.evaluation.ops), (*job.step.events, *events))
