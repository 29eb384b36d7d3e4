"""Run jobs on this machine."""
