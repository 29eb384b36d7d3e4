"""Fixtures for traces of PyTorch scripts."""

import pytest

from leadline.graphs.torch import trace


@pytest.fixture(autouse=True)
def _counted_soon(monkeypatch):
    """Count for less time than users wait: scripts here are short, or have no end."""
    monkeypatch.setattr(trace, "COUNT_S", 3.0)


@pytest.fixture
def _only_read(monkeypatch):
    """Let a trace read the steps from the source alone, as it does for a run that is too long to be counted."""
    monkeypatch.setattr(trace, "COUNT_S", 0.0)


@pytest.fixture
def _without_values(monkeypatch):
    """Let a trace assume what values decide, as it does for a model that is too large for the CPU."""
    monkeypatch.setattr(trace, "VALUES_S", 0)
