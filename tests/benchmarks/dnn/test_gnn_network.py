"""The network's promises hold whatever its weights are, in torch and as the ONNX file that onnxruntime runs."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from benchmarks.dnn.gnn_data import NODE_KINDS, NODE_WIDTH, SETTING_WIDTH  # noqa: E402
from benchmarks.dnn.gnn_network import MOST_LEFT, StepNetwork, onnx_network, tensors  # noqa: E402
from leadline.estimators.step_time.op_utilization import LEAST_MULTIPLE  # noqa: E402
from leadline.estimators.step_time.step_kernels import GraphBatch  # noqa: E402
from leadline.training.shipped_models import load_network  # noqa: E402


def random_batch(seed, ops, edges, graphs):
    chance = np.random.default_rng(seed)
    owner = np.sort(np.concatenate([np.arange(graphs), chance.integers(0, graphs, ops - graphs)]))
    source = chance.integers(0, ops, edges)
    begins, sizes = np.searchsorted(owner, owner[source]), np.bincount(owner)[owner[source]]
    return GraphBatch(
        chance.integers(0, NODE_KINDS, ops), chance.normal(size=(ops, NODE_WIDTH)).astype(np.float32),
        chance.uniform(1, 500, ops).astype(np.float32), chance.integers(1, 9, ops).astype(np.float32),
        chance.integers(1, 9, ops).astype(np.float32), owner, source, begins + chance.integers(0, sizes),
        chance.normal(size=(graphs, SETTING_WIDTH)).astype(np.float32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = StepNetwork(np.zeros(NODE_WIDTH, np.float32), np.ones(NODE_WIDTH, np.float32))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # what begins at zero is to matter, too
    return found.eval()


@pytest.fixture(scope="module")
def content(network):
    return onnx_network(network, random_batch(0, 40, 60, 3))


@pytest.fixture(scope="module")
def shipped(content):
    return load_network(content, "the network of the test")


def test_the_file_tells_nothing_of_the_machine_that_made_it(content):
    assert b".py" not in content
    assert b"site-packages" not in content


@pytest.mark.parametrize(("ops", "edges", "graphs"), [(1500, 2600, 1), (300, 700, 7), (1, 0, 1), (5, 3, 2)])
def test_onnxruntime_says_what_torch_says_whatever_the_sizes(network, shipped, ops, edges, graphs):
    batch = random_batch(1, ops, edges, graphs)
    with torch.no_grad():
        expected = network(*tensors(batch)).numpy() * 1e-6
    assert (graphs,) == expected.shape
    assert pytest.approx(expected, rel=1e-4) == shipped.step_s(batch)


def test_the_order_of_ops_and_edges_does_not_matter(shipped):
    batch = random_batch(2, 200, 500, 3)
    chance = np.random.default_rng(0)
    order, mixed = chance.permutation(200), chance.permutation(500)
    place = np.argsort(order)
    moved = replace(
        batch, kind=batch.kind[order], node=batch.node[order], roofline_us=batch.roofline_us[order],
        count=batch.count[order], launches=batch.launches[order], owner=batch.owner[order],
        source=place[batch.source][mixed], target=place[batch.target][mixed],
    )  # fmt: skip
    assert pytest.approx(shipped.step_s(batch), rel=1e-4) == shipped.step_s(moved)


def test_a_step_grows_with_the_count_of_any_op(shipped):
    batch = random_batch(3, 12, 20, 1)
    before = shipped.step_s(batch)[0]
    for op in range(12):
        more = np.where(np.arange(12) == op, 50, 1).astype(np.float32)
        grown = replace(batch, count=batch.count * more, launches=batch.launches * more)
        assert shipped.step_s(grown)[0] > before


def test_a_graph_in_a_batch_takes_what_it_takes_alone(shipped):
    one, other = random_batch(4, 30, 50, 1), random_batch(5, 80, 90, 1)
    both = GraphBatch(
        *(np.concatenate([getattr(one, name), getattr(other, name)]) for name in
          ("kind", "node", "roofline_us", "count", "launches")),
        np.concatenate([one.owner, other.owner + 1]), np.concatenate([one.source, other.source + 30]),
        np.concatenate([one.target, other.target + 30]), np.concatenate([one.setting, other.setting]),
    )  # fmt: skip
    expected = [shipped.step_s(one)[0], shipped.step_s(other)[0]]
    assert pytest.approx(expected, rel=1e-4) == shipped.step_s(both)


def test_what_an_op_reads_from_changes_its_price(shipped):
    batch = random_batch(6, 30, 50, 1)
    cut = replace(batch, source=batch.source[:0], target=batch.target[:0])
    assert abs(np.log(shipped.step_s(cut) / shipped.step_s(batch)))[0] > 1e-3


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_no_weights_make_a_step_faster_than_its_roofline_s_floor(network, scale):
    wild = StepNetwork(np.zeros(NODE_WIDTH, np.float32), np.ones(NODE_WIDTH, np.float32)).eval()
    wild.load_state_dict({name: one * (scale if one.is_floating_point() else 1)
                          for name, one in network.state_dict().items()})  # fmt: skip
    batch = random_batch(7, 100, 200, 4)
    roofline_us = np.bincount(batch.owner, batch.roofline_us * batch.count)
    with torch.no_grad():
        told = wild(*tensors(batch)).numpy()
    assert np.isfinite(told).all()
    assert (told >= LEAST_MULTIPLE * np.exp(-MOST_LEFT) * roofline_us * 0.999).all()
