"""Slurm: what it is told and says, and the queues and the scheduler that run jobs on it."""
