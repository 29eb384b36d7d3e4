"""Fixtures for traces of PyTorch scripts."""

import pytest

from leadline.graphs.torch import trace


@pytest.fixture
def _without_values(monkeypatch):
    """Let a trace assume what values decide, as it does for a model that is too large for the CPU."""
    monkeypatch.setattr(trace, "VALUES_S", 0)
