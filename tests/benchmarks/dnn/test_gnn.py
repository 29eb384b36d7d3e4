"""The bench of the graph neural network names what it lacks before it trains."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dnn.gnn import NEEDED, predicted_steps, splits
from benchmarks.dnn.run import TABLES
from leadline.core.errors import MissingExtra
from leadline.estimators.step_time.step_kernels import GraphNetwork


@pytest.mark.parametrize("absent", NEEDED)
def test_what_is_missing_is_told_before_anything_is_read(monkeypatch, absent):
    monkeypatch.setitem(sys.modules, absent, None)
    assert importlib.util.find_spec(absent) is None
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[gnn-train\]'"):
        splits(Path("no such folder"), quick=True)


def test_the_bench_asks_the_network():
    assert "gnn" in TABLES


def test_every_row_is_answered_in_the_order_asked(graph_rows):
    def rooflines(inputs):
        return np.bincount(inputs["owner"], inputs["roofline_us"] * inputs["count"])

    network = GraphNetwork(rooflines)
    alone = [predicted_steps(graph_rows, network, np.array([row]))[0] for row in (2, 0, 1)]
    assert pytest.approx(alone) == predicted_steps(graph_rows, network, np.array([2, 0, 1])).tolist()
    assert len(set(alone)) == 3
