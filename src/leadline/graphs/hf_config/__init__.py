"""Expand a Hugging Face ``config.json`` into an op graph by formula, without torch."""
