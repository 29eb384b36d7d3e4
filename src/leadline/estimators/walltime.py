"""From one step to the whole job: walltime = constant + epochs × (steps, evaluation, checkpoint)."""

import math
from dataclasses import dataclass

from leadline.core.estimate import Interval
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Phase, Workload

START_S = {
    DeviceKind.GPU: Interval(15.0, 5.0, 45.0),
    DeviceKind.CPU: Interval(6.0, 2.0, 20.0),
    DeviceKind.TPU: Interval(45.0, 15.0, 120.0),
    DeviceKind.ACCELERATOR: Interval(30.0, 10.0, 90.0),
}
"""Interpreter, imports, device context, model set-up and first-call tuning, where nothing was measured."""

LOAD_BYTES_PER_S = 150e6
"""What one loader process reads and decodes, where nothing was measured."""

LOAD_SAMPLE_S = 2e-5
"""Cost of one sample in the loader beside its bytes: indexing, transforms, collation."""


@dataclass(frozen=True, slots=True)
class JobLength:
    """How many steps and evaluation batches a job has, and the sentences that say where the figures came from."""

    steps: int
    epochs: float
    evaluation_batches: int
    reasons: tuple[str, ...]


def job_length(workload: Workload, job: TracedJob) -> JobLength:
    """Return the length of the job; what the user said wins over what the script says.

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
        return JobLength(workload.steps, passes, _evaluations(job, passes), (f"{workload.steps} steps, as asked",))
    epochs = workload.epochs or loop.epochs
    if per_epoch is None:
        return JobLength(1, 1.0, 0, ("one step: give --steps, or --samples and --epochs, for a whole job",))
    if workload.phase is Phase.INFERENCE:
        epochs = epochs or 1
    if epochs is None:
        return JobLength(per_epoch, 1.0, _evaluations(job, 1), (f"one epoch of {per_epoch} steps: give --epochs",))
    origin = "as asked" if workload.epochs else "as the script says"
    steps = math.ceil(per_epoch * epochs)
    return JobLength(steps, epochs, _evaluations(job, epochs), (f"{epochs:g} × {per_epoch} steps, {origin}",))


def load_s(workload: Workload, job: TracedJob) -> float:
    """Return the seconds the input pipeline needs for the samples of one step, by all its worker processes."""
    batch = (workload.batch or job.loop.batch or 0) * max(workload.accumulation, job.loop.accumulation)
    size = workload.dataset.bytes_per_sample or job.loop.bytes_per_sample or 0
    workers = workload.dataset.workers or job.loop.loader_workers
    reading: float = 0.0 if workload.dataset.held_in_memory else size / LOAD_BYTES_PER_S
    return batch * (LOAD_SAMPLE_S + reading) / max(1, workers)


def step_with_loading(compute: Interval, loading_s: float, workers: int) -> Interval:
    """Return the step with its input: overlapped where workers load ahead, one after the other where none do."""
    if workers:
        return Interval(
            max(compute.point, loading_s),
            max(compute.low, loading_s / 2),
            max(compute.high, loading_s * 2),
            compute.level,
        )
    return Interval(compute.point + loading_s, compute.low + loading_s / 2, compute.high + 2 * loading_s, compute.level)


def start_up(device: Device) -> Interval:
    """Return the seconds before the first step: measured by the device's calibration where there is one."""
    measured = device.calibration.figures.get("framework_import_s") if device.calibration else None
    if measured is None:
        return START_S[device.kind]
    return Interval(measured * 1.2, measured * 0.8, measured * 2.0)


def _evaluations(job: TracedJob, epochs: float) -> int:
    return math.ceil((job.loop.evaluation_batches_per_epoch or 0) * epochs) if job.evaluation else 0
