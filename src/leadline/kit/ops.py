"""What one step consists of: its ops with their shapes, kernels and times, by torch's profiler."""

import json
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch
from torch.profiler import ProfilerActivity, profile

MAX_OPS = 80
LONGEST_NAME = 100
MARKS = ("Optimizer.", "ProfilerStep")
"""Begin the names of spans that torch marks by itself, on the device too, and that older versions do not tell apart."""


def profile_ops(step: Callable[[], object], device_type: str, wait: Callable[[], None]) -> Dict[str, Any]:
    """Run one step under the profiler and return its ops, those that took longest first (``OP_COLUMNS``)."""
    activities = [ProfilerActivity.CPU]
    if device_type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as seen:
        step()
        wait()
    return summarize_ops(seen.events(), on_device=device_type == "cuda")


def count_flops(step: Callable[[], object]) -> Optional[float]:
    """Run one step and return its floating point operations as torch counts them; ``None`` where it cannot count.

    Torch counts products, convolutions and attention, and neither recurrent layers nor elementwise ops.
    """
    try:
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - torch has it since 2.1
    except ImportError:
        return None
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def summarize_ops(events: Iterable[Any], *, on_device: bool) -> Dict[str, Any]:
    """Return the ops of a step from the profiler's events: each op with each shapes once, with all its calls.

    A kernel counts for the op that started it. ``ops_share`` is how much of the step's time the listed ops hold, and
    ``device_busy_s`` the sum of the times of all kernels, copies and fills.
    """
    found: Dict[str, Dict[str, Any]] = {}
    busy_us = host_us = 0.0
    for event in events:
        if getattr(event, "is_user_annotation", False) or event.name.startswith(MARKS):
            continue
        if _is_device(event):
            busy_us += event.time_range.elapsed_us()
            continue
        kernels = getattr(event, "kernels", [])
        own_us = max(0.0, float(event.self_cpu_time_total))
        host_us += own_us
        if kernels or not on_device:
            _add(found, event, kernels, own_us)
    weight = "device_us" if on_device else "host_us"
    ranked = sorted(found.values(), key=lambda one: -float(one[weight]))
    whole_us = busy_us if on_device else host_us
    listed_us = sum(one[weight] for one in ranked[:MAX_OPS])
    return {
        "ops": [_row(one) for one in ranked[:MAX_OPS]],
        "ops_share": listed_us / whole_us if whole_us else None,
        "device_busy_s": busy_us * 1e-6 if on_device else None,
        "kernels": sum(one["kernels"] for one in found.values()) if on_device else None,
    }


def _add(found: Dict[str, Dict[str, Any]], event: Any, kernels: List[Any], own_us: float) -> None:
    shapes = [shape for shape in event.input_shapes or [] if shape]
    key = event.name + json.dumps(shapes)
    new = {"op": event.name, "shapes": shapes, "count": 0, "device_us": 0.0, "host_us": 0.0, "kernels": 0,
           "by_kernel": Counter()}  # fmt: skip
    one = found.setdefault(key, new)
    one["count"] += 1
    one["host_us"] += own_us
    for kernel in kernels:
        one["device_us"] += kernel.duration
        one["kernels"] += 1
        one["by_kernel"][kernel.name] += kernel.duration


def _row(one: Dict[str, Any]) -> List[Any]:
    longest = one["by_kernel"].most_common(1)
    kernel = longest[0][0][:LONGEST_NAME] if longest else None
    device_s = one["device_us"] * 1e-6 if one["kernels"] else None
    return [one["op"][:LONGEST_NAME], one["shapes"], one["count"], _short(device_s), _short(one["host_us"] * 1e-6),
            kernel, one["kernels"]]  # fmt: skip


def _short(seconds: Optional[float]) -> Optional[float]:
    """Keep four digits, which is more than a step repeats to."""
    return None if seconds is None else float(f"{seconds:.4g}")


def _is_device(event: Any) -> bool:
    return bool(event.device_type != torch.autograd.DeviceType.CPU)
