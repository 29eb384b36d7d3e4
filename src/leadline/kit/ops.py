"""The ops of one step with shapes, kernels and times, from torch's profiler."""

import json
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch
from torch.profiler import ProfilerActivity, profile

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
    """Return the floating-point operations of one step as torch counts them; ``None`` if it cannot.

    Torch counts products, convolutions and attention, but neither recurrent layers nor elementwise ops.
    """
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
        if _is_device(event):
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


def _is_device(event: Any) -> bool:
    return bool(event.device_type != torch.autograd.DeviceType.CPU)
