"""Benchmarks of estimates of deep-learning jobs on held-out devices, model families and scales."""
