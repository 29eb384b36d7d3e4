"""Leadline tells how long an AI job takes, what memory it needs and what it costs, before it runs."""

__version__ = "0.1.0"
