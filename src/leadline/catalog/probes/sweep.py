"""The calibration sweep of one device."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter

import numpy as np
import psutil
import torch

from leadline.catalog.probes import Progress, matrix, memory_bound
from leadline.catalog.probes.cases import KernelCase
from leadline.catalog.probes.overheads import (
    loader_figures,
    memory_figures,
    overhead_figures,
    processor_figures,
    product_flops_per_s,
    warm_memory,
)
from leadline.catalog.probes.start_up import start_up_figures
from leadline.catalog.probes.stopwatch import Stopwatch
from leadline.catalog.probes.timing_cost import worth_timing
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Calibration, Confidence, Device, DeviceKind, KernelTiming
from leadline.core.processes import ProcessRunner
from leadline.core.units import pluralize
from leadline.kit.processor import cpu_name

CPU_VENDORS = ("AMD", "Intel", "ARM", "IBM")


def sweep_cases(device: str) -> list[KernelCase]:
    """Return all kernels of the sweep for ``cpu`` or ``cuda``.

    Kinds alternate, so that a short budget skips all of them evenly.
    """
    families = (
        matrix.gemms(device),
        matrix.convolutions(device),
        matrix.attentions(device),
        matrix.recurrences(device),
        memory_bound.pointwise(device),
        memory_bound.movements(device),
        memory_bound.rows(device),
        memory_bound.pools(device),
    )
    kernels: dict[tuple[str, str], list[KernelCase]] = {}
    for case in chain.from_iterable(families):
        kernels.setdefault((case.kind, case.dtype), []).append(case)
    places = [(n / len(cases), case) for cases in kernels.values() for n, case in enumerate(cases)]
    return [case for _, case in sorted(places, key=itemgetter(0))]


OVERHEAD_SHARE = 0.15
"""Share of the budget for measurements other than kernels."""
REPEAT_SHARE = 0.15
"""Share of the kernels' budget that is kept for those that other processes interrupted."""
SHORT_CALL_S = 1e-5
"""What the shortest kernels take (an order of magnitude)."""


def sweep(device_type: str, *, budget_s: float, runner: ProcessRunner, progress: Progress) -> Device:
    """Measure the local device within about ``budget_s`` and return it with its calibration.

    Kernels that this device or torch version does not support are left out.

    Raises:
        InvalidInput: there is no such local device.
    """
    device = describe_local_device(device_type)
    cases = sweep_cases(device_type)
    watch = Stopwatch(device_type, call_budget_s=0.02)
    busy = psutil.cpu_percent(interval=0.5) / 100
    figures = {
        **overhead_figures(watch),
        **memory_figures(watch),
        **loader_figures(),
        **start_up_figures(runner, [sys.executable]),
        **processor_figures(),
    }
    figures["busy_share"] = busy
    if device_type == "cuda":
        cases = _worth_timing(cases, watch, figures["copy_bytes_per_s"])
    with warm_memory():
        timings = time_kernels(cases, watch, budget_s * (1 - OVERHEAD_SHARE), progress)
    progress("done", len(cases), len(cases))
    calibration = Calibration(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"), software=f"torch {torch.__version__}",
        threads=torch.get_num_threads(), timings=tuple(timings), figures=figures,
    )  # fmt: skip
    return replace(
        device, memory_bytes_per_s=figures["copy_bytes_per_s"], peak_flops_per_s=calibration.best_flops_per_s(),
        calibration=calibration, as_of=calibration.measured_at[:10],
    )  # fmt: skip


def _worth_timing(cases: list[KernelCase], watch: Stopwatch, bytes_per_s: float) -> list[KernelCase]:
    """Return the kernels worth their measuring time at this memory bandwidth, in their order."""
    flops_per_s = product_flops_per_s(watch)
    kinds: dict[tuple[str, str], list[int]] = {}
    for number, case in enumerate(cases):
        kinds.setdefault((case.kind, case.dtype), []).append(number)
    selected = np.zeros(len(cases), bool)
    for members in kinds.values():
        expected_s = [
            max(cases[member].flops / flops_per_s, cases[member].bytes_moved / bytes_per_s) for member in members
        ]
        selected[members] = worth_timing(np.array(expected_s))
    return [case for case, keep in zip(cases, selected.tolist(), strict=True) if keep]


def time_kernels(cases: list[KernelCase], watch: Stopwatch, budget_s: float, progress: Progress) -> list[KernelTiming]:
    """Time the cases within the budget, then those again that other processes interrupted: the shorter time counts.

    Slow cases take time from later ones.
    """
    until = time.perf_counter() + budget_s
    first_until = until - REPEAT_SHARE * budget_s
    timings: list[KernelTiming] = []
    interrupted: dict[int, KernelCase] = {}
    for number, case in enumerate(cases):
        if time.perf_counter() > first_until:
            break
        share_s = (first_until - time.perf_counter()) / (len(cases) - number)
        watch.call_budget_s = min(max(share_s * 0.6, 0.002), 0.1)
        progress(case.kind, number, len(cases))
        elapsed_s = _elapsed(case, watch)
        if elapsed_s is not None:
            if watch.interruptions:
                interrupted[len(timings)] = case
            timings.append(KernelTiming(case.kind, case.dtype, case.dims, elapsed_s, case.flops, case.bytes_moved))
    watch.call_budget_s = 0.02
    for place in most_delayed(timings, interrupted):
        if time.perf_counter() > until:
            break
        progress(timings[place].kind, len(cases), len(cases))
        again_s = _elapsed(interrupted[place], watch)
        if again_s is not None:
            timings[place] = replace(timings[place], elapsed_s=min(again_s, timings[place].elapsed_s))
    return timings


def most_delayed(timings: list[KernelTiming], places: Iterable[int]) -> list[int]:
    """Return ``places``, those first whose timing is the longest for what the kernel calculates and moves.

    A product on two threads waits for both. Where another process holds one of the cores, a call of a microsecond takes
    a time slice of some milliseconds.
    """
    flops_per_s = max((timing.flops / timing.elapsed_s for timing in timings), default=0.0)
    bytes_per_s = max((timing.bytes_moved / timing.elapsed_s for timing in timings), default=0.0)

    def excess(place: int) -> float:
        timing = timings[place]
        expected_s = timing.flops / (flops_per_s or 1.0) + timing.bytes_moved / (bytes_per_s or 1.0)
        return timing.elapsed_s / (expected_s + SHORT_CALL_S)

    return sorted(places, key=excess, reverse=True)


def _elapsed(case: KernelCase, watch: Stopwatch) -> float | None:
    """Return the kernel's seconds; ``None`` if it is not implemented here or does not fit in memory."""
    grad = case.kind.startswith(("attention", "lstm", "gru", "rnn"))
    try:
        with torch.set_grad_enabled(grad):
            return watch.call_s(case.call())
    except (RuntimeError, NotImplementedError):
        return None


def describe_local_device(device_type: str) -> Device:
    """Return the local device without measured numbers.

    Raises:
        InvalidInput: there is no ``cuda`` device, or the type is neither ``cpu`` nor ``cuda``.
    """
    if device_type == "cpu":
        return _describe_cpu()
    if device_type != "cuda":
        raise InvalidInput(f"--device {device_type} is not known: give cpu or cuda")
    if not torch.cuda.is_available():
        raise InvalidInput("--device cuda cannot be measured: torch sees no NVIDIA GPU here; give --device cpu")
    properties = torch.cuda.get_device_properties(0)
    return Device(properties.name, "NVIDIA", DeviceKind.GPU, memory_bytes=properties.total_memory,
                  compute_units=properties.multi_processor_count, aliases=("local",),
                  confidence=Confidence.MEASURED, source="calibrate")  # fmt: skip


def _describe_cpu() -> Device:
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    model = cpu_name()
    vendor = next((vendor for vendor in CPU_VENDORS if vendor.lower() in model.lower()), "unknown")
    return Device(
        f"{model} ({pluralize(cores, 'core')})", vendor, DeviceKind.CPU, memory_bytes=psutil.virtual_memory().total,
        compute_units=cores, aliases=("local", "cpu"), confidence=Confidence.MEASURED, source="calibrate",
    )  # fmt: skip
