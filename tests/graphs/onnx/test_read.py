"""An ONNX file becomes a forward pass with the arithmetic and memory of its nodes."""

import sys

import pytest

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.graph import OpKind, StorageCategory
from leadline.core.workload import InputShape, ModelKind, ModelSource, Phase, Precision, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.graphs.onnx.read import read_onnx

onnx = pytest.importorskip("onnx", reason="needs the [onnx] extra")


@pytest.fixture
def network(tmp_path):
    """A convolution, a pooling, a flattening and a classifier, with a symbolic batch."""
    from onnx import TensorProto, helper

    def weight(name, *shape):
        return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(4 * onnx_prod(shape)), raw=True)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [weight("w", 16, 3, 3, 3), weight("v", 10, 16), weight("b", 10)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph), path)
    return str(path)


def onnx_prod(shape):
    result = 1
    for size in shape:
        result *= size
    return result


def read(path, **settings):
    settings.setdefault("phase", Phase.INFERENCE)
    return read_onnx(Workload(ModelSource(ModelKind.ONNX, path), **settings))


def test_the_arithmetic_is_that_of_the_nodes_times_the_batch(network):
    ops = {op.kind: op for op in read(network, batch=8).step.ops}
    assert ops[OpKind.CONV].flops == 2 * 8 * 32 * 32 * 16 * 3 * 9
    assert ops[OpKind.GEMM].flops == 2 * 8 * 16 * 10
    assert ops[OpKind.GEMM].dims == {"b": 1, "m": 8, "n": 10, "k": 16}


def test_parameters_are_the_initializers(network):
    step = read(network).step
    assert step.parameters == 16 * 27 + 160 + 10
    assert 4 * step.parameters == step.parameter_bytes


def test_an_activation_is_freed_after_its_last_reader(network):
    step = read(network, batch=8).step
    activation, source = 4 * 8 * 16 * 32 * 32, 4 * 8 * 3 * 32 * 32
    small = peak_memory(step).allocated_bytes - 2 * activation - source
    assert 0 <= small < 16384


def test_every_op_but_the_first_names_its_source(network):
    ops = read(network).step.ops
    assert [op.sources for op in ops] == [(), (0,), (1,), (2,)]


def test_a_narrower_precision_halves_the_memory(network):
    full, half = (read(network, precision=precision).step for precision in (Precision.FP32, Precision.FP16))
    assert full.parameter_bytes == 2 * half.parameter_bytes
    assert {"float16"} == {op.dtype for op in half.ops}


def test_given_input_shapes_decide_all_sizes(network):
    ops = read(network, inputs=(InputShape((4, 3, 32, 32)),)).step.ops
    assert ops[0].outputs[0].shape == (4, 16, 32, 32)


def test_inputs_of_another_rank_are_refused(network):
    with pytest.raises(InvalidInput, match="4 dimensions, not 2"):
        read(network, inputs=(InputShape((4, 3)),))


def test_training_is_refused(network):
    with pytest.raises(InvalidInput, match="inference"):
        read(network, phase=Phase.TRAINING)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InvalidInput, match="not an ONNX model"):
        read(str(path))
    with pytest.raises(InvalidInput, match="No such file"):
        read(str(tmp_path / "other.onnx"))


def test_without_the_package_the_extra_is_named(network, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"leadline\[onnx\]"):
        read(network)


def test_weights_are_held_from_the_start(network):
    first = read(network).step.events[:3]
    assert {StorageCategory.PARAMETER} == {event.category for event in first}
