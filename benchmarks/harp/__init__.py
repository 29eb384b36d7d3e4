"""Harp."""
