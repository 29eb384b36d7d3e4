"""Schedulers."""
