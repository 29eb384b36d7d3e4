"""Micro-benchmarks of the local device, from which its estimates are calibrated."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Callback with the current measurement, its number, and the total count."""
