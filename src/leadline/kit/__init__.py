"""Measuring kit: times training and inference steps on any machine with torch, without Leadline.

The package also travels as one file. It runs under Python 3.9 or later and imports nothing else of Leadline.
"""

SCHEMA = "leadline.measure/1"
"""Schema of the kit's output file."""
KIT_VERSION = "1"
"""Changed when measurements of two kit versions must not share a file."""

OP_COLUMNS = ("op", "shapes", "count", "device_s", "host_s", "kernel", "kernels")
"""Columns of a row's ``ops``: name, input shapes, calls per step, seconds on the device, own seconds on the host
(without callees), longest kernel, number of kernels."""


class KitError(Exception):
    """An error that the user can act on; one sentence with the value, the reason and the fix."""
