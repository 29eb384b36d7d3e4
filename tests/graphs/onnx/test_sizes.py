"""Sizes are found where an exported graph computes them itself, from the length of its input."""

import math

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.onnx.read import read_onnx

onnx = pytest.importorskip("onnx", reason="needs the [onnx] extra")


def saved(path, nodes, inputs, outputs, weights=()):
    from onnx import TensorProto, helper

    kinds = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
    values = [helper.make_tensor_value_info(name, kinds[kind], shape) for name, kind, shape in inputs]
    results = [helper.make_tensor_value_info(name, kinds[kind], shape) for name, kind, shape in outputs]
    graph = helper.make_graph(nodes, "net", values, results, list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return str(path)


def integers(name, *values):
    return onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)


def read(path, **settings):
    return read_onnx(Workload(ModelSource(ModelKind.ONNX, path), phase=Phase.INFERENCE, **settings)).step


@pytest.fixture
def positions(tmp_path):
    """Positions cut to the length of the input, compared with each other: a causal mask added to scores."""
    from onnx import TensorProto, helper

    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Gather", ["shape", "one"], ["length"]),
        make("Constant", [], ["zero"], value=helper.make_tensor("", TensorProto.INT64, [], [0])),
        make("Constant", [], ["step"], value=helper.make_tensor("", TensorProto.INT64, [], [1])),
        make("Squeeze", ["length"], ["count"]),
        make("Range", ["zero", "count", "step"], ["rows"]),
        make("Unsqueeze", ["rows", "one"], ["columns"]),
        make("LessOrEqual", ["rows", "columns"], ["seen"]),
        make("Concat", ["length", "length"], ["square"], axis=0),
        make("Expand", ["small", "square"], ["spread"]),
        make("Where", ["seen", "x2", "spread"], ["y"]),
        make("Slice", ["x", "start", "length", "one"], ["head"]),
        make("MatMul", ["head", "y"], ["z"]),
    ]
    weights = [integers("one", 1), integers("start", 0),
               helper.make_tensor("small", TensorProto.FLOAT, [1], [0.0]),
               helper.make_tensor("x2", TensorProto.FLOAT, [], [1.0])]  # fmt: skip
    inputs = [("x", "float32", ["batch", "length"])]
    return saved(tmp_path / "net.onnx", nodes, inputs, [("z", "float32", ["a", "b"])], weights)


def test_a_mask_has_the_size_of_the_input(positions):
    product = next(op for op in read(positions, batch=3, sequence=100).ops if op.kind is OpKind.GEMM)
    assert product.dims == {"b": 1, "m": 3, "n": 100, "k": 100}


def test_long_ranges_are_sized_without_evaluating_them(positions):
    product = next(op for op in read(positions, batch=1, sequence=100_000).ops if op.kind is OpKind.GEMM)
    assert product.flops == 2 * 100_000**2


def test_an_unknown_operator_is_named_with_the_size_that_is_missing(tmp_path):
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["y"])]
    path = saved(tmp_path / "net.onnx", nodes, [("x", "float32", [2, 3])], [("y", "int64", ["a", "b"])])
    with pytest.raises(InvalidInput, match=r"'y' \(NonZero\)"):
        read(path)


def masked_attention(torch):
    """One attention whose heads and mask are sized by the input, as transformers write it."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.both, self.out = (
                torch.nn.Embedding(100, 32),
                torch.nn.Linear(32, 96),
                torch.nn.Linear(32, 50),
            )
            self.register_buffer("mask", torch.ones(512, 512, dtype=torch.bool).tril())

        def forward(self, tokens):
            batch, length = tokens.shape
            parts = self.both(self.words(tokens)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
            scores = parts[0] @ parts[1].transpose(-1, -2)
            scores = scores.masked_fill(~self.mask[:length, :length], -1e9).softmax(-1)
            return self.out((scores @ parts[2]).transpose(1, 2).reshape(batch, length, 32))

    return Attention().eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [16, 24])
def test_an_exported_attention_multiplies_as_much_as_it_does_in_torch(tmp_path, length):
    torch = pytest.importorskip("torch")
    path = str(tmp_path / "net.onnx")
    axes = {"x": {0: "batch", 1: "length"}} if length != 16 else None
    torch.onnx.export(
        masked_attention(torch), (torch.zeros(2, 16, dtype=torch.long),), path, input_names=["x"], output_names=["y"],
        dynamic_axes=axes, dynamo=False,
    )  # fmt: skip
    step = read(path, batch=2, sequence=length)
    products = sum(op.flops for op in step.ops if op.kind is OpKind.GEMM)
    assert 2 * 2 * length * (32 * 96 + 32 * 50 + 2 * length * 32) == products
    assert all(math.prod(spec.shape) for op in step.ops for spec in op.outputs)
