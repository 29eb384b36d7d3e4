"""Devices and systems: read, probe, calibrate and measure them."""
