"""Rates of a GPU under a power limit, and of boards whose factory limit is low for their peak.

Under a lower limit the driver lowers the core clock. Arithmetic follows the clock. Memory keeps its own clock, and
streaming draws less, so it slows only under low limits.
"""

import math

from msgspec.structs import replace

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device, DeviceKind

# Exponent of the arithmetic rate in limit ÷ factory limit, fitted to MLPerf Inference 2.0 to 4.1: A2, A30, A100,
# H100 and H200 that were submitted with and without a power limit (`benchmarks.scale.power` leaves each device out).
LIMIT_EXPONENT = 0.62
# Share of the factory limit that streaming draws, an assumption: no submission only streams.
STREAMING_DRAW = 0.6
# Deviation of the exponent between devices and jobs, shared by all the work of a device.
EXPONENT_SPREAD = 0.17
OTHER_VENDOR_SPREAD = 0.3  # the same for vendors without such submissions, an assumption
# Lowest limit that was measured, and the lowest that is accepted, as shares of the factory limit. Drivers accept no
# less than about a quarter.
LEAST_MEASURED, LEAST_SHARE = 0.42, 0.2
SAME_LIMIT = 0.98  # of the factory limit: boards of other makers differ by that
# Watts for each TFLOP/s of the 16-bit peak, of the board with the highest limit of each compute capability: V100 SXM2,
# Titan RTX, A100 SXM4, A40, L40S, H100 SXM5, B200. 12.0 has the process node of Ada.
HIGHEST_W_PER_TFLOP = {
    "7.0": 300 / 125, "7.5": 280 / 130, "8.0": 400 / 312, "8.6": 300 / 149.7, "8.9": 350 / 362, "9.0": 700 / 989,
    "10.0": 1000 / 2250, "10.3": 1000 / 2250, "12.0": 350 / 362,
}  # fmt: skip
# Exponent of the rate in these watts, between boards of one generation: fitted to the same submissions on A30, A100,
# L4, L40S and H100 at their factory limits.
BOARD_EXPONENT = 0.38


def limit_power(device: Device, limit_w: float) -> Device:
    """Return a device under a power limit in W: its rates are those that it sustains there.

    A calibration was made under another limit and is dropped.

    Raises:
        InvalidInput: the catalog lacks the factory limit, or the device does not accept such a limit.
    """
    if device.kind is not DeviceKind.GPU:
        raise InvalidInput(f"{device.name} is no GPU, and power limits are for GPUs: leave the power limit out")
    factory_w = device.tdp_w
    if not factory_w:
        raise InvalidInput(
            f"the catalog has no factory power limit of {device.name}, so the effect of {limit_w:g} W is not known: "
            "leave the power limit out, or state tdp_w in a device file of your own"
        )
    if not LEAST_SHARE * factory_w <= limit_w <= factory_w:
        raise InvalidInput(
            f"a power limit of {limit_w:g} W is not possible on {device.name}: give watts for each GPU, from "
            f"{LEAST_SHARE * factory_w:.0f} to {factory_w:g}"
        )
    if limit_w == factory_w:
        return device
    clock, memory = limited_rates(limit_w / factory_w)
    return replace(
        device,
        power_limit_w=limit_w,
        calibration=None,
        peak_flops_per_s={dtype: peak * clock for dtype, peak in device.peak_flops_per_s.items()},
        memory_bytes_per_s=device.memory_bytes_per_s and device.memory_bytes_per_s * memory,
        boost_hz=device.boost_hz and device.boost_hz * clock,
    )


def measured_under(device: Device, limit_w: float | None) -> Device:
    """Return a device as it was measured under a limit that the driver reported.

    A calibrated device stays as it is, since it was measured under its own limit. So does one without a lower limit.
    """
    if not limit_w or not device.tdp_w or device.is_calibrated:
        return device
    return limit_power(device, limit_w) if LEAST_SHARE <= limit_w / device.tdp_w < SAME_LIMIT else device


def limited_rates(share: float, exponent: float = LIMIT_EXPONENT) -> tuple[float, float]:
    """Return the rates of arithmetic and memory under a ``share`` of the factory limit, over those at all of it."""
    return share**exponent, min(1.0, share / STREAMING_DRAW) ** exponent


def clock_share(device: Device) -> float:
    """Return the core clock under the device's power limit, over that at its factory limit."""
    if not (device.power_limit_w and device.tdp_w):
        return 1.0
    return limited_rates(device.power_limit_w / device.tdp_w)[0]


def matrix_share(device: Device) -> float:
    """Return the share of the matrix units' peak that the factory limit sustains, in (0, 1].

    It is 1 for the boards with the highest limit of a generation, and where the limit or the 16-bit peak is unknown.
    """
    ratio = _board_power_ratio(device)
    return float(ratio**BOARD_EXPONENT)


def limit_spread(device: Device, measured_w: float | None = None) -> float:
    """Return the log deviation that the device's limit adds to rates measured under another (the factory limit)."""
    if not device.tdp_w:
        return 0.0
    apart = math.log((device.power_limit_w or device.tdp_w) / (measured_w or device.tdp_w))
    return _exponent_spread(device) * abs(apart)


def power_spread(device: Device) -> float:
    """Return the log deviation of a device's rates that its power limits add; 0 at a full factory limit."""
    return math.hypot(limit_spread(device), _exponent_spread(device) * math.log(_board_power_ratio(device)))


def _exponent_spread(device: Device) -> float:
    return EXPONENT_SPREAD if device.vendor == "nvidia" else OTHER_VENDOR_SPREAD


def describe_power_limit(device: Device) -> tuple[str, ...]:
    """Return a sentence about the power limit of a device; empty at its factory limit."""
    if not (device.power_limit_w and device.tdp_w):
        return ()
    text = (
        f"power limit {device.power_limit_w:g} W of {device.tdp_w:g} W: arithmetic at {clock_share(device):.0%} of its "
        "full rate; wider interval"
    )
    if device.power_limit_w < LEAST_MEASURED * device.tdp_w:
        text += f" (extrapolating: measured down to {LEAST_MEASURED:.0%} of the factory limit)"
    return (text,)


def _board_power_ratio(device: Device) -> float:
    """Return the factory limit over that of a board of the same peak with the highest watts, at most 1."""
    usual = HIGHEST_W_PER_TFLOP.get(device.compute_capability or "")
    peaks = device.peak_flops_per_s
    peak = peaks.get("bfloat16") or peaks.get("float16")
    if not (usual and peak and device.tdp_w):
        return 1.0
    return min(1.0, device.tdp_w / (usual * peak / clock_share(device) / 1e12))
