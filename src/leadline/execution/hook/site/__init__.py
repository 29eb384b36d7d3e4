"""Folder on ``PYTHONPATH`` while an interpreter starts."""
