"""The folder that stands on ``PYTHONPATH`` while an interpreter starts."""
