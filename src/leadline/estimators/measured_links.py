"""All-reduces that were measured inside nodes: seconds by size and number of devices.

Knots of the curves that ``collectives.fit`` learns from the network profiles published with Vidur (MIT licence,
data/profiling/network/a100_dgx and h100_dgx): nodes of eight GPUs joined by NVSwitch. Straight lines between their
logarithms meet the measured means above 1 MiB within 2.3 to 4.6 % (mean absolute); below it single times jump between
two values, and the knots are their middle.
"""

from leadline.core.hardware import Device

Curve = tuple[tuple[float, float], ...]
"""Points (size in bytes, seconds), both ascending; empty where nothing was measured."""

_BYTES = (
    8192, 32768, 131072, 524288, 1048576, 1482910, 2097152, 2965820, 4194304, 5931641, 8388608, 11863283, 16777216,
    23726566, 33554432, 47453132, 67108864,
)  # fmt: skip
_MICROSECONDS = {
    ("Ampere", 2): (49.6, 52.2, 52.2, 52.2, 55.5, 55.5, 58.1, 60.3, 65.1, 77.1, 96.4, 115, 142, 184, 246, 326, 421),
    ("Ampere", 4): (24.1, 29.9, 55.1, 55.1, 62.8, 62.8, 62.8, 70.2, 85.2, 108, 132, 164, 204, 250, 322, 438, 587),
    ("Ampere", 8): (26.1, 33.6, 48.3, 48.3, 51.9, 69.7, 71.2, 79, 97.8, 119, 153, 199, 270, 351, 413, 515, 663),
    ("Hopper", 2): (17.4, 27, 27, 31.5, 39.9, 39.9, 39.9, 39.9, 40, 42.2, 45.7, 57, 74.2, 100, 135, 181, 239),
    ("Hopper", 4): (35.3, 40.9, 40.9, 40.9, 40.9, 40.9, 40.9, 40.9, 48.2, 50.2, 62, 74.1, 93, 123, 168, 230, 308),
    ("Hopper", 8): (25.8, 30.9, 30.9, 32.2, 33, 35.2, 40.4, 45.5, 52, 60, 75.9, 92.8, 119, 152, 198, 261, 335),
}
_LINKS_BYTES_PER_S = {"Ampere": 600e9, "Hopper": 900e9}
"""The link of the measured devices, both ways together: a bridge or another link of their generation is not theirs."""


def all_reduce_curve(device: Device, devices: int) -> Curve:
    """Return the measured all-reduces of ``devices`` such devices in one node, empty where there are none."""
    architecture = device.architecture or ""
    if not (device.form_factor or "").startswith("SXM"):
        return ()
    if device.link_bytes_per_s != _LINKS_BYTES_PER_S.get(architecture):
        return ()
    times = _MICROSECONDS.get((architecture, devices), ())
    return tuple((float(size), time * 1e-6) for size, time in zip(_BYTES, times, strict=False))
