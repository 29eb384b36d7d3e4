"""Expand a Hugging Face ``config.json`` into an op graph by formula, without torch."""

from leadline.graphs.hf_config.expand import expand

__all__ = ["expand"]
