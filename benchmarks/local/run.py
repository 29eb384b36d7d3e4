"""``bench local``: small real models, predicted from the calibration alone, then measured on this CPU."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.best_constant import best_constant
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most
from leadline.app.machines.this_machine import calibrate
from leadline.core.errors import JobFailed
from leadline.core.graph import OpGraph, TracedJob
from leadline.core.hardware import Device
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Precision, Workload
from leadline.estimators.memory.host import host_memory
from leadline.estimators.step_time.calibrated_kernels import CalibratedKernels
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_function
from leadline.uncertainty.metrics import mape

MODELS_FILE = Path(__file__).with_name("models.py")
MEASURE_FILE = Path(__file__).with_name("measured.py")

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, int], str]] = {
    "mlp": ((784,), (32, 256), "float32"),
    "cnn": ((3, 32, 32), (16, 64), "float32"),
    "resnet18": ((3, 112, 112), (2, 8), "float32"),
    "mobilenet": ((3, 96, 96), (4, 16), "float32"),
    "lstm": ((50, 32), (16, 64), "float32"),
    "gru": ((50, 32), (16, 64), "float32"),
    "encoder": ((128,), (4, 16), "int64"),
    "decoder": ((128,), (2, 8), "int64"),
    "vit": ((3, 64, 64), (4, 16), "float32"),
    "unet": ((1, 64, 64), (2, 8), "float32"),
    "gnn": ((32,), (512, 4096), "float32"),
    "autoencoder": ((3, 32, 32), (16, 64), "float32"),
}
"""Model → shape of one sample, two batch sizes, dtype."""

ROUNDS = 5
"""Rounds of a sweep and a fresh process for each step.

The layout of pages in memory differs between processes, and makes the steps of some models twice as fast. What counts
is their mean, since the median jumps from the one to the other. A virtual machine differs from one quarter of an hour
to the next, so each sweep predicts all steps, and its error is against the mean of all rounds.
"""

STEP_TARGET = 20.0
MEMORY_TARGET = 15.0


@dataclass(frozen=True, slots=True)
class LocalPoint:
    """Prediction from one sweep, and measurement, of a model at one batch size in one phase; ``noise`` is a share."""

    model: str
    phase: str
    batch: int
    predicted_s: float
    roofline_s: float
    predicted_bytes: float
    measured_s: float = 0.0
    measured_bytes: float = 0.0
    noise: float = 0.0


def run(*, quick: bool = False) -> BenchmarkResult:
    """Calibrate, predict every model and then measure it, in rounds; ``quick`` takes the smaller batch of each."""
    jobs = [
        (workload, trace_function(workload, runner=run_process, device_type="cpu"))
        for name, (_, batches, _) in SHAPES.items()
        for phase in Phase
        for batch in (batches[:1] if quick else batches)
        for workload in [workload_of(name, phase, batch)]
    ]
    sweeps, rounds = [], []
    for _ in range(2 if quick else ROUNDS):
        device = calibrate(device_type="cpu", budget_s=25.0 if quick else 75.0, progress=_silent, save=False)
        sweeps.append([predict(device, workload, job) for workload, job in jobs])
        rounds.append([measure(point, budget_s=0.4) for point in sweeps[-1]])
    measured = [mean(point, runs) for sweep in sweeps for point, *runs in zip(sweep, *rounds, strict=True)]
    return BenchmarkResult(
        "local",
        rows(measured),
        machine={"device": device.name, "software": _software(device)},
        details=tuple(_detail(point) for point in measured),
    )


def workload_of(name: str, phase: Phase, batch: int) -> Workload:
    """Return one model's step as a workload."""
    sample, _, dtype = SHAPES[name]
    return Workload(
        ModelSource(ModelKind.FUNCTION, f"{MODELS_FILE}:build_{name}"), phase, batch,
        (InputShape((batch, *sample), dtype),), precision=Precision.FP32, optimizer=Optimizer.ADAMW,
    )  # fmt: skip


def predict(device: Device, workload: Workload, job: TracedJob) -> LocalPoint:
    """Estimate a traced step from the calibration."""
    name = workload.model.reference.rpartition(":build_")[2]
    return LocalPoint(
        name, workload.phase.value, workload.inputs[0].shape[0], CalibratedKernels(device).step_s(job.step),
        roofline_s(job.step, device), host_memory(workload, job, device).point,
    )  # fmt: skip


def roofline_s(graph: OpGraph, device: Device) -> float:
    """Return the plain roofline: each op takes the longer of its arithmetic and its memory traffic."""
    bandwidth = device.memory_bytes_per_s or 1.0
    peak = device.peak_flops_per_s["float32"]
    return sum(max(op.flops / peak, (op.bytes_read + op.bytes_written) / bandwidth) * op.count for op in graph.ops)


def measure(point: LocalPoint, *, budget_s: float, file: Path = MODELS_FILE) -> LocalPoint:
    """Run the model in a fresh process; return the point with its time and memory."""
    sample, _, dtype = SHAPES[point.model]
    request = {
        "file": str(file), "function": f"build_{point.model}", "shape": [point.batch, *sample], "dtype": dtype,
        "training": point.phase == Phase.TRAINING.value, "budget_s": budget_s,
    }  # fmt: skip
    done = run_process([sys.executable, str(MEASURE_FILE), json.dumps(request)], timeout_s=120)
    if done.returncode != 0:
        raise JobFailed(f"{point.model} did not run: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    truth = json.loads(done.stdout)
    return replace(point, measured_s=truth["step_s"], measured_bytes=truth["peak_bytes"])


def mean(point: LocalPoint, runs: Sequence[LocalPoint]) -> LocalPoint:
    """Return the point with the mean time and median memory of its runs, and their mean distance from that time."""
    step_s = fmean(run.measured_s for run in runs)
    noise = fmean(abs(run.measured_s / step_s - 1) for run in runs)
    return replace(point, measured_s=step_s, measured_bytes=median(run.measured_bytes for run in runs), noise=noise)


def rows(points: list[LocalPoint]) -> tuple[BenchmarkRow, ...]:
    """Return the promised metrics, and those of simpler predictions on the same runs."""
    truth = [point.measured_s for point in points]
    constant = best_constant(truth, [point.roofline_s for point in points])
    scaled = mape(truth, [point.roofline_s * constant for point in points])
    plain = mape(truth, [point.roofline_s for point in points])
    count = len({(point.model, point.phase, point.batch) for point in points})
    sweeps = [points[at : at + count] for at in range(0, len(points), count)]
    errors = [mape(truth[:count], [point.predicted_s for point in sweep]) for sweep in sweeps]
    how = (
        f"traced, priced from the sweep alone, then run in fresh processes; mean of {len(sweeps)} sweeps of this "
        f"machine ({min(errors):.1f} to {max(errors):.1f} % on all steps)"
    )
    step_rows = [at_most("step time MAPE", fmean(errors), STEP_TARGET, "%", baseline=scaled, n=count, how=how)]
    for phase in Phase:
        phase_points = [point for point in points if point.phase == phase.value]
        error = mape([p.measured_s for p in phase_points], [p.predicted_s for p in phase_points])
        step_rows.append(
            BenchmarkRow(f"step time MAPE, {phase.value}", error, "%", n=len(phase_points) // len(sweeps), how=how)
        )
    memory = mape([p.measured_bytes for p in points], [p.predicted_bytes for p in points])
    noise = 100 * fmean(point.noise for point in points)
    return (
        *step_rows,
        at_most("host memory MAPE", memory, MEMORY_TARGET, "%", n=count, how="peak resident (VmHWM)"),
        BenchmarkRow("plain roofline MAPE", plain, "%", n=count, how="flops or bytes at the sweep's best rates"),
        BenchmarkRow("best constant MAPE", scaled, "%", n=count,
                 how=f"roofline × {constant:.2f}, the constant chosen on these very runs"),
        BenchmarkRow("noise floor", noise, "%", n=count, how="mean distance of a process from their mean"),
    )  # fmt: skip


def _detail(point: LocalPoint) -> dict[str, object]:
    return {
        "model": point.model, "phase": point.phase, "batch": point.batch,
        "predicted_s": point.predicted_s, "measured_s": point.measured_s, "roofline_s": point.roofline_s,
        "noise_percent": point.noise * 100, "error_percent": (point.predicted_s / point.measured_s - 1) * 100,
        "predicted_memory_bytes": point.predicted_bytes, "measured_memory_bytes": point.measured_bytes,
        "memory_error_percent": (point.predicted_bytes / point.measured_bytes - 1) * 100,
    }  # fmt: skip


def _software(device: Device) -> str:
    return device.calibration.software if device.calibration else ""


def _silent(kind: str, number: int, total: int) -> None:
    """Ignore the progress of the sweep."""
