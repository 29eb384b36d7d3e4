"""Slurm: scripts, parsing, and the scheduler and queue that run jobs on it."""
