"""Measurement of one point: build, step, time, memory, energy, ops, and cleanup."""

import gc
import json
import sys
import time
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch
from torch.profiler import ProfilerActivity, profile

from leadline.kit.design import MeasurementPoint
from leadline.kit.memory import DeviceMemory, HostMemory, is_out_of_memory
from leadline.kit.nvml import Nvml
from leadline.kit.steps import MeasuredModel
from leadline.kit.timing import Timer, TimingLimits

LEFT_BEHIND_BYTES = 64 * 2**20
"""Allocator memory that a failed point may leave before the process should be replaced."""


class PointMeasurer:
    """Measures points on one device, energy and clocks only with ``nvml``; with ``ops``, profiles one more step."""

    def __init__(self, device_type: str, nvml: Optional[Nvml], limits: TimingLimits, *, ops: bool) -> None:
        self.device_type, self.nvml, self.limits, self.ops = device_type, nvml, limits, ops
        self.memory = DeviceMemory() if device_type == "cuda" else HostMemory()
        self.spent = False
        self._modules = 0

    def measure(self, point: MeasurementPoint) -> Dict[str, Any]:
        """Return the point's row; a failed point has an outcome with the reason.

        Outcomes are ``ok``, ``oom`` (with lower bounds of memory) and ``error``. Afterwards ``spent`` is true if the
        process is unusable, because the device failed or memory was left behind.
        """
        begun = time.perf_counter()
        timer = Timer(self.device_type, self.limits)
        row: Dict[str, Any] = {"outcome": "ok", "reason": None}
        self.memory.begin()
        try:
            row.update(self._figures(point, timer))
        except Exception as error:  # noqa: BLE001 - whatever a model raises becomes a row
            row.update(outcome="oom" if is_out_of_memory(error) else "error", reason=_error_line(error))
        if "memory" not in row:
            row["memory"] = self._lower_bounds()
        self._clean_up(compiled=point.compiled)
        row.update(took_s=time.perf_counter() - begun, stepping_s=timer.stepping_s)
        return row

    def _figures(self, point: MeasurementPoint, timer: Timer) -> Dict[str, Any]:
        job = MeasuredModel(point, self.device_type)
        self.memory.record_model()
        step = job.ready()
        meter = _EnergyMeter(self.nvml)
        timed = timer.time(step, meter.read)
        return {
            "parameters": job.parameters,
            "parameter_bytes": job.parameter_bytes,
            **{name: value for name, value in timed.items() if name != "last_s"},
            "clocks": self.nvml.state() if self.nvml is not None else None,
            "energy": meter.figures(timed["samples"] * timed["steps_a_sample"]),
            "memory": {**self.memory.figures(), "censored": False},  # before what follows, which is no usual step
            **self._composition(point, step, timer),
        }

    def _composition(self, point: MeasurementPoint, step: Callable[[], object], timer: Timer) -> Dict[str, Any]:
        """Return the ops of a step, if requested; ``ops_reason`` explains missing ones."""
        nothing = {"flops": None, "ops": None, "ops_share": None, "device_busy_s": None, "kernels": None}
        if not self.ops:
            return nothing
        try:
            flops = None if point.compiled else count_flops(step)  # a compiled step has no ops to count
            return {"flops": flops, **profile_ops(step, self.device_type, timer.wait)}
        except Exception as error:  # noqa: BLE001 - whatever the profiler raises, the step was timed
            return {**nothing, "ops_reason": _error_line(error)}

    def _lower_bounds(self) -> Optional[Dict[str, Any]]:
        """Return the memory at the failure of a point; ``None`` if the device does not respond."""
        try:
            return {**self.memory.figures(), "censored": True}
        except RuntimeError:
            self.spent = True
            return None

    def _clean_up(self, *, compiled: bool) -> None:
        """Release the point; the process is spent if the device does not respond or memory stays allocated."""
        if compiled:
            torch._dynamo.reset()
        gc.collect()
        if len(sys.modules) > self._modules:  # what was imported stays, and need not be searched after each point
            self._modules = len(sys.modules)
            gc.freeze()
        if self.device_type != "cuda":
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self.spent = self.spent or torch.cuda.memory_allocated() > LEFT_BEHIND_BYTES
        except RuntimeError:
            self.spent = True


class _EnergyMeter:
    """Reads the board's energy, or its power without an energy counter, around and during the timed steps."""

    def __init__(self, nvml: Optional[Nvml]) -> None:
        self.nvml = nvml
        self.read_at: List[Tuple[float, Optional[float], Optional[float]]] = []

    def read(self) -> None:
        """Record the time, the energy and the power."""
        if self.nvml is not None:
            self.read_at.append((time.perf_counter(), self.nvml.energy_j(), self.nvml.power_w()))

    def figures(self, steps: int) -> Optional[Dict[str, Any]]:
        """Return the energy of a step and the mean power; ``None`` without a meter."""
        if len(self.read_at) < 2:
            return None
        (begun, first_j, _), (ended, last_j, _) = self.read_at[0], self.read_at[-1]
        window_s = ended - begun
        powers = [power for _, _, power in self.read_at[1:] if power is not None]
        if first_j is not None and last_j is not None and last_j > first_j:
            return {"step_j": (last_j - first_j) / steps, "mean_w": (last_j - first_j) / window_s,
                    "method": "counter", "window_s": window_s}  # fmt: skip
        if not powers:
            return None
        mean_w = sum(powers) / len(powers)
        return {"step_j": mean_w * window_s / steps, "mean_w": mean_w, "method": "samples", "window_s": window_s}


def _error_line(error: BaseException) -> str:
    """Return an error as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


MAX_OPS = 80
LONGEST_NAME = 100
MARKS = ("Optimizer.", "ProfilerStep")
"""Name prefixes of torch's own spans, which older versions report like ops, also on the device."""


def profile_ops(step: Callable[[], object], device_type: str, wait: Callable[[], None]) -> Dict[str, Any]:
    """Profile one step and return its ops, longest first (``OP_COLUMNS``)."""
    activities = [ProfilerActivity.CPU]
    if device_type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        step()
        wait()
    return summarize_ops(profiler.events(), on_device=device_type == "cuda")


def count_flops(step: Callable[[], object]) -> Optional[float]:
    """Return the floating-point operations of one step as torch counts them; ``None`` if it cannot."""
    # Torch counts products, convolutions and attention, but neither recurrent layers nor elementwise ops.
    try:
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - torch has it since 2.1
    except ImportError:
        return None
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def summarize_ops(events: Iterable[Any], *, on_device: bool) -> Dict[str, Any]:
    """Aggregate the profiler's events by op and shapes.

    A kernel counts for the op that launched it. ``ops_share`` is the share of the listed ops in the step's time, and
    ``device_busy_s`` the total time of all kernels, copies and fills.
    """
    by_op: Dict[str, Dict[str, Any]] = {}
    busy_us = host_us = 0.0
    for event in events:
        if getattr(event, "is_user_annotation", False) or event.name.startswith(MARKS):
            continue
        if event.device_type != torch.autograd.DeviceType.CPU:
            busy_us += event.time_range.elapsed_us()
            continue
        kernels = getattr(event, "kernels", [])
        self_us = max(0.0, float(event.self_cpu_time_total))
        host_us += self_us
        if kernels or not on_device:
            _add(by_op, event, kernels, self_us)
    weight = "device_us" if on_device else "host_us"
    ranked = sorted(by_op.values(), key=lambda op: -float(op[weight]))
    whole_us = busy_us if on_device else host_us
    listed_us = sum(op[weight] for op in ranked[:MAX_OPS])
    return {
        "ops": [_row(op) for op in ranked[:MAX_OPS]],
        "ops_share": listed_us / whole_us if whole_us else None,
        "device_busy_s": busy_us * 1e-6 if on_device else None,
        "kernels": sum(op["kernels"] for op in by_op.values()) if on_device else None,
    }


def _add(by_op: Dict[str, Dict[str, Any]], event: Any, kernels: List[Any], self_us: float) -> None:
    shapes = [shape for shape in event.input_shapes or [] if shape]
    key = event.name + json.dumps(shapes)
    new = {"op": event.name, "shapes": shapes, "count": 0, "device_us": 0.0, "host_us": 0.0, "kernels": 0,
           "by_kernel": Counter()}  # fmt: skip
    op = by_op.setdefault(key, new)
    op["count"] += 1
    op["host_us"] += self_us
    for kernel in kernels:
        op["device_us"] += kernel.duration
        op["kernels"] += 1
        op["by_kernel"][kernel.name] += kernel.duration


def _row(op: Dict[str, Any]) -> List[Any]:
    longest = op["by_kernel"].most_common(1)
    kernel = longest[0][0][:LONGEST_NAME] if longest else None
    device_s = op["device_us"] * 1e-6 if op["kernels"] else None
    return [op["op"][:LONGEST_NAME], op["shapes"], op["count"], _short(device_s), _short(op["host_us"] * 1e-6),
            kernel, op["kernels"]]  # fmt: skip


def _short(seconds: Optional[float]) -> Optional[float]:
    """Round to four digits, more than the repeatability of a step."""
    return None if seconds is None else float(f"{seconds:.4g}")
