"""Each method's prediction of the points: Leadline's from a trace, and the alternatives'."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.memory.points import MemoryPoint
from leadline.core.errors import JobFailed
from leadline.core.estimate import Interval
from leadline.core.hardware import Calibration, Device, DeviceKind
from leadline.estimators.memory.heap import live_peak_bytes
from leadline.estimators.memory.host import host_memory
from leadline.estimators.memory.onednn import Processor
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_function

SCRIPT = Path(__file__).parents[1] / "measured" / "other_peaks.py"
TIMEOUT_S = 900.0
START_EVERY = 6
"""Points between two measurements of the start of Python and torch; its median is subtracted."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """Leadline's prediction of one point: live bytes, memory of the process, and its seconds."""

    live_bytes: int
    process: Interval
    seconds: float


@dataclass(frozen=True, slots=True)
class AlternativePeaks:
    """The alternatives' predictions of one point and the seconds of each.

    ``tracker_bytes`` is None where MemTracker refuses the point, with the reason in ``tracker_refused``.
    """

    weights_bytes: int
    weights_s: float
    tracker_bytes: int | None
    tracker_refused: str
    tracker_s: float


def device_of(measured: Mapping[str, Any]) -> Device:
    """Return the processor that the points were measured on; only its registers are calibrated."""
    figures = {"vector_bytes": float(measured["vector_bytes"]), "threads": float(measured["threads"])}
    calibration = Calibration("", measured["torch"], measured["threads"], figures=figures)
    return Device(measured["machine"]["processor"], "", DeviceKind.CPU, calibration=calibration)


def predict_points(
    points: Sequence[MemoryPoint], device: Device, *, jobs: int, progress: Progress = lambda *_: None
) -> dict[str, MemoryPrediction]:
    """Trace every point in a process of its own, ``jobs`` at a time; return predictions by the point's key."""
    predictions: dict[str, MemoryPrediction] = {}
    starts: list[float] = []
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder, ThreadPoolExecutor(jobs) as pool:

        def answer(number: int, point: MemoryPoint) -> MemoryPrediction:
            if number % START_EVERY == 0:
                starts.append(_start_s())
            return _predict(point, device, Path(folder))

        for point, prediction in zip(points, pool.map(answer, range(len(points)), points), strict=True):
            predictions[point.key] = prediction
            progress(len(predictions), len(points))
    start_s = median(starts)
    return {key: replace(prediction, seconds=prediction.seconds - start_s) for key, prediction in predictions.items()}


def _predict(point: MemoryPoint, device: Device, folder: Path) -> MemoryPrediction:
    """Predict one point; its seconds are those of the whole process."""
    workload = point.workload(folder)
    processor = Processor.of(device.calibration.figures if device.calibration else {})
    begun = time.perf_counter()
    job = trace_function(workload, runner=run_process, device_type="cpu")
    live, process = live_peak_bytes(job.step, processor), host_memory(workload, job, device)
    return MemoryPrediction(live, process, time.perf_counter() - begun)


def _start_s() -> float:
    """Return the seconds in which a process starts and imports torch, which every method needs."""
    begun = time.perf_counter()
    run_process([sys.executable, "-c", "import torch"], timeout_s=TIMEOUT_S)
    return time.perf_counter() - begun


def alternative_peaks(points: Sequence[MemoryPoint]) -> dict[str, AlternativePeaks]:
    """Run the alternatives on all points, in one process.

    Raises:
        JobFailed: The process failed.
    """
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        file = Path(folder, "requests.json")
        file.write_text(json.dumps([point.request() for point in points]), encoding="utf-8")
        done = run_process([sys.executable, str(SCRIPT), str(file)], timeout_s=TIMEOUT_S)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise JobFailed(f"the alternatives failed: {reason}")
    peaks = [json.loads(line) for line in done.stdout.splitlines()]
    return {peak.pop("key"): AlternativePeaks(**peak) for peak in peaks}
