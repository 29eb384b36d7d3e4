"""What feeding a step and saving it takes of the host's memory, beside the process itself.

PyTorch's own rules: each worker of ``DataLoader`` has ``prefetch_factor`` batches made ahead (2 by default), which a
thread of the main process copies into page-locked memory where ``pin_memory`` asks for it; the allocator of such memory
rounds each tensor up to a power of two and never gives it back (``ATen/core/CachingHostAllocator.h``). Workers are
forked: a page they share with their parent is copied when something on it is written to, and reading a Python object
writes its count of references ("copy-on-read" in the documentation of ``torch.utils.data``); arrays and tensors have
one such count for all of their elements.
"""

from leadline.core.graph import StorageCategory, TracedJob
from leadline.core.workload import Phase, Sharding, Workload

WORKER_BYTES = 30e6
"""Pages of its own that a forked DataLoader worker comes to hold: 5 to 45 MB by PSS in two scripts with two workers."""

PREFETCH = 2
"""Batches each worker keeps ahead (``prefetch_factor`` of DataLoader)."""

WORKERS, AHEAD, COPIED, PINNED, HELD, STAGED = (
    "loader workers", "batches ahead", "objects of the data set, copied by workers", "pinned batches",
    "data set", "checkpoint staging",
)  # fmt: skip
"""Names of the parts."""


def data_parts(workload: Workload, job: TracedJob, *, on_gpu: bool) -> dict[str, float]:
    """Return the bytes of workers, of the batches they keep ahead, of pinned ones and of a data set held in memory.

    Batches are pinned for a GPU, unless the script does not: frameworks do so by default (Hugging Face's Trainer).
    """
    dataset, loop = workload.dataset, job.loop
    sample = float(dataset.bytes_per_sample or loop.bytes_per_sample or 0)
    batch_bytes = (workload.batch or loop.batch or 1) * sample
    workers = dataset.workers or loop.loader_workers
    each = PREFETCH if loop.prefetch is None else loop.prefetch
    pins = on_gpu and loop.pinned is not False
    parts = {
        WORKERS: workers * WORKER_BYTES,
        AHEAD: workers * (1 if pins else each) * batch_bytes,
        COPIED: float(workers * (loop.object_bytes or 0)),
        HELD: sample * (dataset.samples or loop.samples or 0) if dataset.held_in_memory else 0.0,
    }
    if pins:
        rounded = sum(power_of_two(size) for size in _tensors(job))
        parts[PINNED] = float((max(workers * each, 1) + 1) * (rounded or batch_bytes))
    return parts


def staging_bytes(workload: Workload, job: TracedJob) -> float:
    """Return what saving a checkpoint takes of the host of the process that does it.

    ``torch.save`` copies one storage after another from the device (``torch/serialization.py``), so that the largest of
    weights and optimizer states counts. Where weights are sharded, they are gathered on the host of the first process
    (FSDP's FULL_STATE_DICT with offload, DeepSpeed's ``gather_16bit_weights_on_model_save``), states saved by shard.
    """
    if workload.phase is not Phase.TRAINING:
        return 0.0
    if workload.parallelism.sharding is Sharding.FULL:
        return float(job.step.parameter_bytes)
    saved = (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE)
    sizes = [event.size_bytes for event in job.step.events if event.category in saved and event.op == 0]
    return float(max(sizes, default=0))


def assumed(job: TracedJob, parts: dict[str, float]) -> str:
    """Return what was taken of a loader that says nothing of itself, where it counts for a hundredth of the parts."""
    if job.loop.pinned is not None or parts.get(PINNED, 0.0) < 0.01 * sum(parts.values()):
        return ""
    return "batches are taken to be pinned for the GPU, as Hugging Face's Trainer does"


def power_of_two(size_bytes: int) -> int:
    """Return the least power of two that is no smaller."""
    return 1 << max(size_bytes - 1, 0).bit_length()


def _tensors(job: TracedJob) -> tuple[int, ...]:
    """Return the bytes of each tensor of one batch: of the loader's, else of what a step takes as input."""
    if job.loop.batch_tensor_bytes:
        return job.loop.batch_tensor_bytes
    taken = [event for event in job.largest.events if event.category is StorageCategory.INPUT and event.size_bytes > 0]
    played = min(max(job.loop.accumulation, 1), 2)  # of further micro-steps no events are written
    return tuple(event.size_bytes for event in taken[: len(taken) // played])
