"""Benchmarks that measure every promised metric again; a package of the repository, not of the wheel."""
