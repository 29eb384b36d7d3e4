"""Benchmarks of memory: measured peaks of training steps, their predictions and their bounds."""
