"""Micro-benchmarks of the device at hand, from which estimates for it are made."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Told what is measured now, its number, and how many there are."""
