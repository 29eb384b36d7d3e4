"""Rows become the same batches of graphs as one would make of their ops by hand."""

import numpy as np
import pytest

from benchmarks.dnn.vision_graphs import vision_graphs
from benchmarks.dnn.vision_lab import read_setting, select_graphs
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.estimators.step_time.op_table import OpTable
from leadline.estimators.step_time.op_utilization import OpBasis
from leadline.estimators.step_time.step_kernels import NETWORK_INPUTS, GraphBatch, connect_graphs

BATCH = 32


def by_hand(traced, name, setting):
    device = TomlCatalog(None).device(name)
    table, edges = connect_graphs([vision_graphs().graph(traced, BATCH).ops])
    return GraphBatch.from_basis(OpBasis.from_table(table, device), edges, device, read_setting(device, setting))


def test_graphs_are_selected_in_the_requested_order():
    device, sizes = TomlCatalog(None).device("RTX 3090"), (2, 4, 8)
    specs = [TensorSpec((size, 2), "float32") for size in sizes]
    table = OpTable.from_graphs(
        [[Op("aten.add", OpKind.ELEMENTWISE, Stage.FORWARD, "float32", 1.0, 8.0, 8.0, (spec,), (spec,))]
         for spec in specs]
    )  # fmt: skip
    picked = select_graphs(OpBasis.from_table(table, device), np.array([2, 0])).table
    assert picked.graphs == 2
    assert picked.sizes.tolist() == table.sizes[[2, 0]].tolist()


@pytest.mark.parametrize(
    ("row", "asked"),
    [(0, ("RTX 3090", "rtx3090 infer nhwc 240")), (1, ("RTX 3090", "rtx3090 train nchw 112")),
     (2, ("RTX 4090", "rtx4090 infer nchw 291"))],
)  # fmt: skip
def test_what_is_learned_from_is_what_is_asked_with(graph_rows, traced_models, row, asked):
    expected, found = by_hand(traced_models[row], *asked), graph_rows.batch(np.array([row]))
    for name in NETWORK_INPUTS:
        if name not in {"source", "target"}:
            assert pytest.approx(getattr(expected, name), rel=1e-6) == getattr(found, name), name
    pairs = [set(zip(one.source.tolist(), one.target.tolist(), strict=True)) for one in (expected, found)]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) > 20


def test_a_batch_is_its_rows_one_after_another(graph_rows):
    whole, parts = graph_rows.batch(np.array([2, 0])), [graph_rows.batch(np.array([one])) for one in (2, 0)]
    first = len(parts[0].kind)
    assert (np.concatenate([one.node for one in parts]) == whole.node).all()
    assert (np.concatenate([parts[0].source, parts[1].source + first]) == whole.source).all()
    assert (whole.owner[whole.source] == whole.owner[whole.target]).all()
    assert [first, len(parts[1].kind)] == np.bincount(whole.owner).tolist()


def test_batches_hold_every_row_once(graph_rows):
    seen = [row for chosen, _ in graph_rows.batches(np.array([2, 0, 1]), 2) for row in chosen]
    assert seen == [2, 0, 1]
