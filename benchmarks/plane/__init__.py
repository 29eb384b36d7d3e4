"""Benchmarks of the Intelligence Plane, which manages jobs while they run."""
