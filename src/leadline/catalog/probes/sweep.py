"""Run the whole sweep on one device and return its record."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import psutil
import torch

from leadline.catalog.probes import Progress
from leadline.catalog.probes.cases import Case
from leadline.catalog.probes.kernels import all_cases
from leadline.catalog.probes.machine import describe
from leadline.catalog.probes.overheads import (
    loader_figures,
    memory_figures,
    overhead_figures,
    processor_figures,
    start_up_figures,
    warm_memory,
)
from leadline.catalog.probes.timing import Stopwatch
from leadline.core.hardware import Calibration, Device, KernelTiming
from leadline.core.ports import ProcessRunner

OVERHEAD_SHARE = 0.15
"""Share of the budget left for what is not a kernel."""


def sweep(device_type: str, *, budget_s: float, runner: ProcessRunner, progress: Progress) -> Device:
    """Measure the device at hand within about ``budget_s`` and return it with its calibration.

    A kernel that this device or this version of torch does not run is left out. ``progress`` is told the kernel, its
    number and how many there are.

    Raises:
        InvalidInput: there is no such device here.
    """
    device = describe(device_type)
    cases = all_cases(device_type)
    watch = Stopwatch(device_type, call_budget_s=0.02)
    busy = psutil.cpu_percent(interval=0.5) / 100
    figures = {
        **overhead_figures(watch),
        **memory_figures(watch),
        **loader_figures(),
        **start_up_figures(runner),
        **processor_figures(),
    }
    figures["busy_share"] = busy
    with warm_memory():
        timings = _timings(cases, watch, budget_s * (1 - OVERHEAD_SHARE), progress)
    progress("done", len(cases), len(cases))
    calibration = Calibration(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        software=f"torch {torch.__version__}",
        threads=torch.get_num_threads(),
        timings=tuple(timings),
        figures=figures,
    )
    return replace(
        device,
        memory_bytes_per_s=figures["copy_bytes_per_s"],
        peak_flops_per_s=_peaks(timings),
        calibration=calibration,
        as_of=calibration.measured_at[:10],
    )


def _timings(cases: list[Case], watch: Stopwatch, budget_s: float, progress: Progress) -> list[KernelTiming]:
    """Time the cases until the budget is spent; what slow ones take above their share, later ones miss."""
    until = time.perf_counter() + budget_s
    timings = []
    for number, case in enumerate(cases):
        if time.perf_counter() > until:
            break
        share_s = (until - time.perf_counter()) / (len(cases) - number)
        watch.call_budget_s = min(max(share_s * 0.6, 0.002), 0.1)
        progress(case.kind, number, len(cases))
        elapsed_s = _elapsed(case, watch)
        if elapsed_s is not None:
            timings.append(KernelTiming(case.kind, case.dtype, case.dims, elapsed_s, case.flops, case.bytes_moved))
    return timings


def _elapsed(case: Case, watch: Stopwatch) -> float | None:
    """Return the kernel's seconds; ``None`` if it is not implemented here or does not fit in memory."""
    grad = case.kind.startswith(("attention", "lstm", "gru", "rnn"))
    try:
        with torch.set_grad_enabled(grad):
            return watch.call_s(case.call())
    except (RuntimeError, NotImplementedError):
        return None


def _peaks(timings: list[KernelTiming]) -> dict[str, float]:
    """Return the best rate any matrix product or convolution reached, by dtype."""
    peaks: dict[str, float] = {}
    for timing in timings:
        if timing.flops and timing.dims.get("k"):
            peaks[timing.dtype] = max(peaks.get(timing.dtype, 0.0), timing.flops / timing.elapsed_s)
    return peaks
