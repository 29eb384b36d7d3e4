"""From one step to the whole job: walltime = constant + epochs × (steps, evaluation, checkpoint)."""

import math

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.graph import LoadingTime, LoopFacts, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, Phase, Workload

# Interpreter, imports, device context, model set-up and first-call tuning, where nothing was measured.
START_S = {
    DeviceKind.GPU: Interval(15.0, 5.0, 45.0),
    DeviceKind.CPU: Interval(6.0, 2.0, 20.0),
    DeviceKind.TPU: Interval(45.0, 15.0, 120.0),
    DeviceKind.ACCELERATOR: Interval(30.0, 10.0, 90.0),
}

# Rate of one loader process that reads files, an assumption. It only bounds unmeasured reading from above.
LOAD_BYTES_PER_S = 150e6
# Factor on both sides of a measured loading time or of a script's work: other processors, other storage. On the
# machine of the trace, which is calibrated, only caches and other jobs change it.
LOAD_SPREAD, LOCAL_LOAD_SPREAD = 2.0, 1.5

# Import of torch from a cluster's shared file system, where nothing was measured, and the shortest that there is.
# Both are assumptions.
FRAMEWORK_IMPORT_S, LEAST_IMPORT_S = 3.0, 0.1


class JobLength(Frozen):
    """Number of steps, epochs and evaluation batches of a job, and the sentences that explain them."""

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
        return JobLength(1, 0, 0, ("one step: give --steps, or --samples and --epochs, for a whole job",))
    if workload.phase is Phase.INFERENCE:
        epochs = epochs or 1
    if epochs is None:
        return JobLength(per_epoch, 1, _evaluations(job, 1), (f"one epoch of {per_epoch} steps: give --epochs",))
    origin = "as requested" if workload.epochs else "from the script"
    steps = math.ceil(round(per_epoch * epochs, 6))  # a limit on steps may be a part of an epoch
    return JobLength(steps, epochs, _evaluations(job, epochs), (f"{epochs:g} × {per_epoch} steps, {origin}",))


class Loading(Frozen):
    """Seconds of one step for its samples, or other work beside its kernels, and the sentence that explains them."""

    step_s: Interval
    reason: str = ""


def loading(workload: Workload, job: TracedJob, device: Device) -> Loading:
    """Return the loading time of one step, by all workers.

    It is the user's own, else that of the traced script, else that of the device's calibration. Unmeasured loading is
    not counted.
    """
    loop, dataset = job.loop, workload.dataset
    batch = workload.batch or loop.batch or 0
    share = _batches_per_step(workload, loop) / max(1, dataset.workers or loop.loader_workers)
    if dataset.load_s is not None:
        return Loading(_exactly(dataset.load_s * share), f"loading takes {dataset.load_s:.3g} s a batch, as requested")
    if loop.loading is not None:
        measured = loading_interval(loop.loading, _read_bytes(workload, loop), device)
        scale = batch / loop.batch if batch and loop.batch else 1.0
        return Loading(measured.scaled(share * scale), _describe_measured(loop.loading))
    figures = device.calibration.figures if device.calibration else {}
    has_data = bool(dataset.samples or dataset.bytes_per_sample or dataset.workers)
    calibrated_s = 0.0
    if batch and has_data and workload.model.kind is not ModelKind.COMMAND and "loader_sample_s" in figures:
        calibrated_s = figures.get("loader_batch_s", 0.0) + batch * figures["loader_sample_s"]
    unread_s = 0.0 if dataset.held_in_memory else batch * (dataset.bytes_per_sample or 0) / LOAD_BYTES_PER_S
    high_s = LOAD_SPREAD * calibrated_s + unread_s
    return Loading(
        Interval(calibrated_s * share, calibrated_s / LOAD_SPREAD * share, high_s * share),
        _describe_unmeasured(calibrated_s, unread_s, has_data or workload.model.kind is ModelKind.COMMAND),
    )


def _batches_per_step(workload: Workload, loop: LoopFacts) -> float:
    """Return the batches that an optimizer step loads: those that it accumulates, or more as the script showed."""
    shown = loop.loading.per_step if loop.loading is not None else None
    return max(workload.accumulation, loop.accumulation) * (1.0 if shown is None else shown / loop.accumulation)


def loading_interval(measured: LoadingTime, read_bytes: float, device: Device) -> Interval:
    """Return the loading time of one batch in one process at another time, beside the device.

    The low end needs no waiting, as with cached files. The high end reads all files anew. Both are wider the busier
    the machine was: a shared processor is slower, even while it runs the loader.
    """
    spread = _load_spread(device) * (1.0 + (0.5 if measured.queued_share is None else measured.queued_share))
    waited_s = measured.batch_s - measured.cpu_s
    high_s = spread * measured.cpu_s + max(spread * waited_s, read_bytes / LOAD_BYTES_PER_S)
    return Interval(measured.batch_s, measured.cpu_s / spread, max(high_s, measured.batch_s))


def _load_spread(device: Device) -> float:
    return LOCAL_LOAD_SPREAD if device.calibration else LOAD_SPREAD


def _read_bytes(workload: Workload, loop: LoopFacts) -> float:
    """Return the bytes of files in a batch of the script: the user's own figure, else the measured one."""
    if workload.dataset.held_in_memory or loop.loading is None:
        return 0.0
    if workload.dataset.bytes_per_sample is not None:
        return float(workload.dataset.bytes_per_sample * (loop.batch or 0))
    return float(loop.loading.read_bytes)


def _describe_measured(measured: LoadingTime) -> str:
    count = f"{measured.batches} batch{'es' if measured.batches > 1 else ''}"
    text = f"loading measured on this machine, {count}: {measured.batch_s:.3g} s a batch in one process"
    if measured.batch_s - measured.cpu_s > 0.1 * measured.batch_s:
        text += f", {1 - measured.cpu_s / measured.batch_s:.0%} of it waiting for files or the network"
    if measured.queued_share is None:
        return f"{text}; wider, as the kernel does not report waiting for a processor"
    if measured.queued_share >= 0.05:
        text += f"; wider, as the machine is busy ({measured.queued_share:.0%} waiting for a processor, not counted)"
    return text


def _describe_unmeasured(calibrated_s: float, unread_s: float, is_expected: bool) -> str:
    if calibrated_s:
        return f"loading takes {calibrated_s:.3g} s a batch, as DataLoader on the calibrated device"
    if unread_s:
        return f"loading is not counted, as it was not measured; reading at 150 MB/s, up to {unread_s:.3g} s a batch"
    return "loading is not counted: no DataLoader was measured (--load-s sets it)" if is_expected else ""


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)


def step_with_loading(compute: Interval, loading_s: Interval, workers: int, device: Device) -> Interval:
    """Return the step with its input: one after the other without workers, overlapped with them.

    A batch of a worker is also sent to the process that trains. Where that runs on the CPU, the workers take their
    processor time from it.
    """
    if not workers:
        return compute.plus(loading_s)
    figures = device.calibration.figures if device.calibration else {}
    loading_s = loading_s.joined(_exactly(figures.get("loader_send_s", 0.0) / workers))
    compute = compute.joined(_exactly(figures.get("loader_receive_s", 0.0)))
    if device.kind is DeviceKind.CPU and device.compute_units:
        compute = compute.joined(loading_s.scaled(workers / device.compute_units))
    return compute.joined(loading_s, max)


def script_work(job: TracedJob, device: Device) -> Loading | None:
    """Return the script's own work in a step, if there is any, and the sentence that explains it."""
    work, spread = job.loop.script_work, _load_spread(device)
    if work is None:
        return None
    reason = f"the script's own work outside the framework, measured on this machine: {work.step_s:.3g} s a step"
    return Loading(Interval(work.step_s, work.least_s / spread, work.most_s * spread), reason)


def epoch_work(job: TracedJob, device: Device) -> Loading | None:
    """Return the script's own work between two epochs, if there is any, and the sentence that explains it."""
    seconds, spread = job.loop.epoch_work_s, _load_spread(device)
    if not seconds:
        return None
    reason = f"the script's own work between epochs, measured on this machine: {seconds:.3g} s an epoch"
    return Loading(Interval(seconds, seconds / spread, seconds * spread), reason)


def evaluation_interval(workload: Workload, job: TracedJob, device: Device, compute_s: float) -> Interval:
    """Return the seconds of one evaluation batch: its kernels, which take ``compute_s``, and its loading."""
    loop = job.loop
    workers = workload.dataset.workers or loop.loader_workers
    share = 1.0 / max(1, workers)
    if workload.dataset.load_s is not None:
        loading_s = _exactly(workload.dataset.load_s * share)
    elif loop.evaluation_loading is not None:
        read_bytes = 0 if workload.dataset.held_in_memory else loop.evaluation_loading.read_bytes
        loading_s = loading_interval(loop.evaluation_loading, read_bytes, device).scaled(share)
    else:
        loading_s = loading(workload, job, device).step_s.scaled(1.0 / _batches_per_step(workload, loop))
    return step_with_loading(Interval(compute_s, compute_s / 2, compute_s * 2), loading_s, workers, device)


def startup_interval(device: Device, loop: LoopFacts) -> Interval:
    """Return the start-up seconds of a process, by the device's calibration where there is one."""
    # A traced script's own imports and reading are a multiple of the framework's import in the same process, because a
    # slow machine lengthens both.
    figures = device.calibration.figures if device.calibration else {}
    if device.kind is DeviceKind.CPU and device.calibration:
        figures = {**figures, **loop.start_up}
    import_s = figures.get("framework_import_s")
    script_share = (loop.script_s or 0.0) / max(loop.framework_s, LEAST_IMPORT_S) if loop.framework_s else 0.0
    if import_s is None:
        begin, own_s = START_S[device.kind], script_share * FRAMEWORK_IMPORT_S
        return Interval(begin.point + own_s, begin.low + own_s / 3, begin.high + own_s * 3, begin.level)
    first_s = figures.get("first_step_s", 0.2 * import_s)
    if loop.loads_compiler:
        first_s -= min(figures.get("compiler_s", 0.0), first_s)  # which is among the script's imports
    point = import_s * (1.0 + script_share) + first_s
    return Interval(point, point * 0.7, point * 1.7)


def _evaluations(job: TracedJob, epochs: float) -> int:
    return math.ceil((job.loop.evaluation_batches_per_epoch or 0) * epochs) if job.evaluation else 0
