"""What the graph neural network reads of a graph: its ops and edges past views, the device, and the setting."""

import numpy as np
import pytest
from msgspec import structs

from benchmarks.dnn.gnn_data import NODE_KINDS, NODE_WIDTH, SETTING_WIDTH
from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.step_time.op_table import KERNEL_CLASSES
from leadline.estimators.step_time.op_utilization import OpBasis
from leadline.estimators.step_time.op_utilization_kernels import StepSetting
from leadline.estimators.step_time.step_kernels import (
    NETWORK_INPUTS,
    GraphBatch,
    GraphNetwork,
    connect_graphs,
)

FIGURES = {"memory_bytes_per_s": 1e12, "l2_bytes": 6_000_000, "compute_units": 80, "boost_hz": 1.7e9}
PEAKS = {"float32": 2e13, "float16": 1e14}
DEVICE = Device("Made up", "nobody", DeviceKind.GPU, peak_flops_per_s=PEAKS, **FIGURES)
SETTING_OF = StepSetting("Made up", training=True, channels_last=True, release=(2, 40))


def add(size, sources=(), count=1):
    spec = TensorSpec((size,), "float32")
    moved = 4.0 * size
    return Op("aten.add.Tensor", OpKind.ELEMENTWISE, Stage.FORWARD, "float32", float(size), 2 * moved, moved,
              (spec, spec), (spec,), sources=sources, count=count)  # fmt: skip


def view(sources):
    return Op("aten.view.default", OpKind.COPY, Stage.FORWARD, "float32", 0.0, 0.0, 0.0, sources=sources)


def test_edges_go_past_views():
    _, edges = connect_graphs([[add(100), view((0,)), view((1,)), add(200, (2,))]])
    assert (edges[0].tolist(), edges[1].tolist()) == ([0], [1])


def test_equal_ops_are_one_with_their_counts_and_all_their_edges():
    table, edges = connect_graphs([[add(100), add(200, (0,)), add(100, (1,), count=3), add(300, (2,))]])
    assert table.count.tolist() == [4.0, 1.0, 1.0]
    assert set(zip(edges[0].tolist(), edges[1].tolist(), strict=True)) == {(0, 1), (1, 0), (0, 2)}


def test_a_merged_graph_keeps_the_edges_that_lead_back():
    """Equal layers that were merged read from ops that stand later."""
    _, edges = connect_graphs([[add(100, (1,), count=8), add(200, (0,), count=8)]])
    assert set(zip(edges[0].tolist(), edges[1].tolist(), strict=True)) == {(1, 0), (0, 1)}


def test_no_edge_joins_two_graphs():
    table, edges = connect_graphs([[add(100), add(200, (0,))], [add(100), add(200, (0,)), add(300, (0, 1))]])
    assert table.first.tolist() == [0, 2, 5]
    assert (table.owner[edges[0]] == table.owner[edges[1]]).all()
    assert edges.shape[1] == 4


def test_a_batch_has_the_shapes_that_the_network_reads():
    table, edges = connect_graphs([[add(100), add(200, (0,))], [add(300)]])
    inputs = structs.asdict(GraphBatch.from_basis(OpBasis.from_table(table, DEVICE), edges, DEVICE, SETTING_OF))
    assert set(NETWORK_INPUTS) == set(inputs)
    assert inputs["node"].shape == (3, NODE_WIDTH)
    assert inputs["setting"].shape == (2, SETTING_WIDTH)
    assert inputs["owner"].tolist() == [0, 0, 1]
    assert all(np.isfinite(value).all() for value in inputs.values())
    assert (inputs["kind"] >= len(KERNEL_CLASSES)).all(), "channels last has kinds of its own"
    assert (inputs["kind"] < NODE_KINDS).all()


def test_a_faster_device_shortens_the_roofline_that_the_network_scales():
    table, edges = connect_graphs([[add(10_000_000)]])
    twice = Device("Twice", "nobody", DeviceKind.GPU, peak_flops_per_s=PEAKS, **{**FIGURES, "memory_bytes_per_s": 2e12})
    slow, fast = (
        GraphBatch.from_basis(OpBasis.from_table(table, case), edges, case, SETTING_OF) for case in (DEVICE, twice)
    )
    assert (fast.roofline_us / slow.roofline_us)[0] == pytest.approx(0.5, rel=0.02)
    assert (fast.setting != slow.setting).any()


def test_the_session_s_microseconds_become_seconds():
    def session(inputs):
        return np.bincount(inputs["owner"], inputs["roofline_us"] * inputs["count"]).astype(np.float32)

    told = GraphNetwork(session).predict([[add(1_000_000, count=2)], [add(1_000_000)]], DEVICE, SETTING_OF)
    assert told[1] == pytest.approx(12e6 / 1e12, rel=0.15)
    assert told[0] / told[1] == pytest.approx(2.0)


def test_a_device_without_a_figure_is_named():
    bare = Device("Bare", "nobody", DeviceKind.GPU, memory_bytes_per_s=1e12, peak_flops_per_s=PEAKS)
    with pytest.raises(InvalidInput, match="Bare has no L2 size in the catalog"):
        GraphNetwork(lambda _: np.zeros(1)).predict([[add(100)]], bare, SETTING_OF)


def test_a_graph_of_views_alone_is_refused():
    with pytest.raises(InvalidInput, match="graph 1 has no op that moves data"):
        GraphNetwork(lambda _: np.zeros(2)).predict([[add(100)], [view(())]], DEVICE, SETTING_OF)
