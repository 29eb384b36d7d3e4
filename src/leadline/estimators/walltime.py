"""From one step to the whole job: walltime = constant + epochs × (steps, evaluation, checkpoint)."""

import math
import operator
from collections.abc import Callable

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.graph import LoopFacts, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Phase, Workload

# Interpreter, imports, device context, model set-up and first-call tuning, where nothing was measured.
START_S = {
    DeviceKind.GPU: Interval(15.0, 5.0, 45.0),
    DeviceKind.CPU: Interval(6.0, 2.0, 20.0),
    DeviceKind.TPU: Interval(45.0, 15.0, 120.0),
    DeviceKind.ACCELERATOR: Interval(30.0, 10.0, 90.0),
}

LOAD_BYTES_PER_S = 150e6  # rate of one loader process that reads and decodes, where nothing was measured
# Loader time per sample in addition to its bytes (indexing, transforms, collation), where unmeasured.
LOAD_SAMPLE_S = 2e-5

# Import of torch from a cluster's shared file system, where nothing was measured; an assumption.
FRAMEWORK_IMPORT_S = 3.0


class JobLength(Frozen):
    """Number of steps and evaluation batches of a job, and the sentences that explain them."""

    steps: int
    epochs: float
    evaluation_batches: int
    reasons: tuple[str, ...]


def job_length(workload: Workload, job: TracedJob) -> JobLength:
    """Return the length of the job; the user's options take precedence over the script.

    Without epochs, steps or samples the job is one step, and the reason says so.
    """
    loop = job.loop
    gpus = max(workload.gpus, loop.world_size)
    batch = (workload.batch or loop.batch or 1) * gpus * max(workload.accumulation, loop.accumulation)
    samples = workload.dataset.samples or loop.samples
    per_epoch = loop.steps_per_epoch
    if samples and (per_epoch is None or workload.dataset.samples or workload.batch or gpus != loop.world_size):
        per_epoch = math.ceil(samples / batch)
    if workload.steps is not None:
        passes = workload.steps / per_epoch if per_epoch else 1.0
        return JobLength(workload.steps, passes, _evaluations(job, passes), (f"{workload.steps} steps, as requested",))
    epochs = workload.epochs or loop.epochs
    if per_epoch is None:
        return JobLength(1, 1.0, 0, ("one step: give --steps, or --samples and --epochs, for a whole job",))
    if workload.phase is Phase.INFERENCE:
        epochs = epochs or 1
    if epochs is None:
        return JobLength(per_epoch, 1.0, _evaluations(job, 1), (f"one epoch of {per_epoch} steps: give --epochs",))
    origin = "as requested" if workload.epochs else "from the script"
    steps = math.ceil(per_epoch * epochs)
    return JobLength(steps, epochs, _evaluations(job, epochs), (f"{epochs:g} × {per_epoch} steps, {origin}",))


def load_s(workload: Workload, job: TracedJob, device: Device) -> float:
    """Return the seconds that the input pipeline needs for one step's samples, by all workers."""
    # A traced loader is assumed to take the same time elsewhere. Otherwise the calibration of DataLoader and the
    # reading of the samples count.
    loop = job.loop
    batch = (workload.batch or loop.batch or 0) * max(workload.accumulation, loop.accumulation)
    workers = max(1, workload.dataset.workers or loop.loader_workers)
    if loop.load_s is not None and loop.batch and workload.dataset.bytes_per_sample in (None, loop.bytes_per_sample):
        return loop.load_s * batch / loop.batch / workers
    size = workload.dataset.bytes_per_sample or loop.bytes_per_sample or 0
    reading: float = 0.0 if workload.dataset.held_in_memory else size / LOAD_BYTES_PER_S
    figures = device.calibration.figures if device.calibration else {}
    once_s = figures.get("loader_batch_s", 0.0) if batch else 0.0
    return (once_s + batch * (figures.get("loader_sample_s", LOAD_SAMPLE_S) + reading)) / workers


def step_with_loading(compute: Interval, loading_s: float, workers: int) -> Interval:
    """Return the step with its input: overlapped with workers, sequential without."""
    join: Callable[[float, float], float] = max if workers else operator.add
    point, low = join(compute.point, loading_s), join(compute.low, loading_s / 2)
    return Interval(point, low, join(compute.high, loading_s * 2), compute.level)


def startup_interval(device: Device, loop: LoopFacts) -> Interval:
    """Return the start-up seconds of a process, by the device's calibration where there is one."""
    # A traced script's own imports and reading are a multiple of the framework's import in the same process, because a
    # slow machine lengthens both.
    figures = device.calibration.figures if device.calibration else {}
    import_s = figures.get("framework_import_s")
    script_share = loop.script_s / loop.framework_s if loop.script_s and loop.framework_s else 0.0
    if import_s is None:
        begin, own_s = START_S[device.kind], script_share * FRAMEWORK_IMPORT_S
        return Interval(begin.point + own_s, begin.low + own_s / 3, begin.high + own_s * 3, begin.level)
    point = import_s * (1.0 + script_share) + figures.get("first_step_s", 0.2 * import_s)
    return Interval(point, point * 0.7, point * 1.7)


def _evaluations(job: TracedJob, epochs: float) -> int:
    return math.ceil((job.loop.evaluation_batches_per_epoch or 0) * epochs) if job.evaluation else 0
