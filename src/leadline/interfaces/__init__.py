"""Thin faces over the verbs."""
