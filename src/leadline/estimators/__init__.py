"""Predict time and memory of an op graph on a device."""
