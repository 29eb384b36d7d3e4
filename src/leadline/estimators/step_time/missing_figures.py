"""Rules for figures of a GPU that the catalog lacks. No rule takes the figures of another device."""

import math

from leadline.core.hardware import Device, DeviceKind

ASSUMED_L2_BYTES = 6 * 2.0**20
"""L2 size of most GPUs until 2022: little of a step fits in it."""
CLOCK_HZ = 1.7e9
"""Median boost clock of the catalog's GPUs."""
# Lanes of a compute unit by compute capability (CUDA C++ Programming Guide, arithmetic throughput); AMD's have 64 until
# CDNA2.
_LANES = {"6.1": 128, "8.6": 128, "8.7": 128, "8.9": 128, "9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128}
USUAL_LANES = 64
# Vector float32 operations for each byte of bandwidth: about the catalog's median GPU.
BALANCE = 15.0
# Process node by architecture, for the power cap.
PROCESS_NM = {
    "Kepler": 28, "Maxwell": 28, "Pascal": 16, "Volta": 12, "Turing": 12, "Ampere": 7.5, "Ada": 4.5, "Hopper": 4.5,
    "Blackwell": 4.5, "Blackwell Ultra": 4.5,
}  # fmt: skip
ASSUMED_SPREAD = 0.2
"""Log spread that assumed figures add, an assumption: a device's units or cache may be half or twice the rule's."""


def vector_flops_per_s(device: Device) -> float:
    """Return the float32 peak; NaN without a bandwidth to infer it from."""
    return device.peak_flops_per_s.get("float32") or BALANCE * float(device.memory_bytes_per_s or "nan")


def compute_units(device: Device) -> float:
    """Return the compute units, else those that reach the float32 peak at the clock."""
    if device.compute_units:
        return float(device.compute_units)
    lanes = device.lanes_per_unit or _LANES.get(device.compute_capability or "", USUAL_LANES)
    return max(vector_flops_per_s(device) / (2 * lanes * (device.boost_hz or CLOCK_HZ)), 1.0)


def clock_hz(device: Device) -> float:
    """Return the boost clock, else the clock at which all lanes reach the float32 peak."""
    if device.boost_hz:
        return device.boost_hz
    if not (device.compute_units and device.lanes_per_unit):
        return CLOCK_HZ
    return vector_flops_per_s(device) / (2 * device.compute_units * device.lanes_per_unit)


def describe_missing(device: Device) -> tuple[str, ...]:
    """Return a sentence about the figures that a rule replaces on a GPU; empty if the catalog has all of them."""
    if device.kind is not DeviceKind.GPU:
        return ()
    assumed = []
    if not device.peak_flops_per_s.get("float32"):
        assumed.append(f"float32 peak ({BALANCE:.0f} operations for each byte of bandwidth assumed)")
    if not device.compute_units:
        assumed.append(f"compute units ({compute_units(device):.0f} assumed, from its float32 peak)")
    if not device.boost_hz and not (device.compute_units and device.lanes_per_unit):
        assumed.append(f"clock ({CLOCK_HZ / 1e9:.1f} GHz assumed)")
    if not device.l2_bytes:
        assumed.append(f"L2 size ({ASSUMED_L2_BYTES / 2**20:.0f} MiB assumed)")
    if not device.tdp_w and device.architecture in PROCESS_NM:
        assumed.append("power limit (none assumed)")
    if not assumed:
        return ()
    return (f"wider interval: the catalog lacks figures of {device.name}: {', '.join(assumed)}",)


def widen_spread(spread: float, device: Device) -> float:
    """Return a log spread, wider if a rule replaces figures of the device."""
    return math.hypot(spread, ASSUMED_SPREAD) if describe_missing(device) else spread
