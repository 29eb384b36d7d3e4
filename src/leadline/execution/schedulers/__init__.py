"""Schedulers that run jobs, and the port they share."""
