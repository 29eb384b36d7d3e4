"""The name under which ``app/models/retrain.py`` imports the atomic write."""

from leadline.files.atomic import write_atomically

__all__ = ["write_atomically"]
