"""Estimators that learn one figure from a table of runs."""
