"""Measure steps of models on the device at hand, wherever torch is: nothing else is needed, not even Leadline.

The whole room also travels as one file (``pack.py``). It runs under Python 3.9 or later, and imports nothing of the
other rooms.
"""

SCHEMA = "leadline.measure/1"
"""Of the file that the kit writes."""
KIT_VERSION = "1"
"""Changes when figures of two kits should not stand in one file."""

OP_COLUMNS = ("op", "shapes", "count", "device_s", "host_s", "kernel", "kernels")
"""Of a row's ``ops``: name, shapes of its inputs, calls in a step, seconds on the device and on the host (the op's own,
without those it calls), the kernel that took longest, and how many kernels were started."""


class KitError(Exception):
    """Something went wrong that the user can act on; one sentence that names the value, the reason and the fix."""
