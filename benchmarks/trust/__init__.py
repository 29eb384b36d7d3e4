"""Benchmarks of what must never happen: silent harm, wrong answers to bad input, lost or doubled work."""
