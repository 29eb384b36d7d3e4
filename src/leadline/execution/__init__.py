"""Execution of jobs: schedulers, the plane that manages jobs, and the measuring wrapper."""
