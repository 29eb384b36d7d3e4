"""What one GPU of a tensor-parallel group runs: sums that Megatron's division fixes, and what Vidur timed."""

import json
from dataclasses import replace

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import ModelKind, ModelSource, Phase, Precision, Workload
from leadline.estimators.parallelism.tensor import residual_width, tensor_share
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.graphs.hf_config.expand import expand

GROUPED = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
           "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000,
           "max_position_embeddings": 8192}  # fmt: skip


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(GROUPED))
    workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), batch=8, sequence=512, precision=Precision.BF16)
    decoding = replace(workload, phase=Phase.INFERENCE, generated=4)
    return {"training": expand(workload).step, "decoding": expand(decoding).generation.last}


def total(graph, figure, *kinds, name=""):
    chosen = [op for op in graph.ops if op.kind in kinds and name in op.name and op.stage is not Stage.OPTIMIZER]
    return sum(getattr(op, figure) * op.count for op in chosen)


@pytest.mark.parametrize("phase", ["training", "decoding"])
@pytest.mark.parametrize("ways", [2, 4, 8])
def test_the_arithmetic_of_products_and_attention_is_shared_evenly(traced, phase, ways):
    graph = traced[phase]
    for kind in (OpKind.GEMM, OpKind.ATTENTION):
        assert total(tensor_share(graph, ways), "flops", kind) == pytest.approx(total(graph, "flops", kind) / ways)


def test_the_residual_stream_is_whole_on_every_gpu(traced):
    """4,096 wide: norms as Llama writes them, and the additions behind attention and the feed-forward block."""
    graph = traced["decoding"]
    assert residual_width(graph) == 4096
    for name in ("aten.pow", "aten.rsqrt", "aten.mean"):
        kinds = (OpKind.ELEMENTWISE, OpKind.REDUCTION)
        assert total(graph, "bytes_written", *kinds, name=name) == total(
            tensor_share(graph, 8), "bytes_written", *kinds, name=name
        )


def test_the_activation_and_the_cache_are_shared_but_no_head_is_cut(traced):
    """Eight key-value heads: sixteen GPUs copy as much of the cache as eight."""
    graph = traced["decoding"]
    eighth, sixteenth = (tensor_share(graph, ways) for ways in (8, 16))
    silu = [total(case, "flops", OpKind.ELEMENTWISE, name="aten.silu") for case in (graph, eighth)]
    assert silu[1] / silu[0] == pytest.approx(1 / 8)
    cached = [
        max(op.bytes_written for op in case.ops if op.name == "aten.cat" and op.outputs[0].shape[2] > 1)
        for case in (graph, eighth, sixteenth)
    ]
    assert [cached[0] / case for case in cached[1:]] == pytest.approx([8.0, 8.0])


def test_as_many_ops_are_launched_on_every_gpu(traced):
    for graph in traced.values():
        assert sum(op.count for op in graph.ops) == sum(op.count for op in tensor_share(graph, 4).ops)


def test_a_graph_without_products_and_a_group_of_one_are_left_as_they_are(traced):
    graph = traced["decoding"]
    assert tensor_share(graph, 1) is graph
    bare = replace(graph, ops=tuple(op for op in graph.ops if op.kind is not OpKind.GEMM))
    assert tensor_share(bare, 4) is bare


@pytest.mark.parametrize(("ways", "least", "most"), [(2, 1.0, 1.1), (8, 1.1, 1.8)])
def test_the_products_of_a_share_take_longer_than_an_even_one_the_more_gpus_there_are(traced, ways, least, most):
    """Vidur's of up to 256 tokens take 1.02 and 1.2 times an even share on 2 and 8 A100s (keys apart, more)."""
    kernels = RooflineKernels(TomlCatalog().device("A100 SXM4 80GB"))
    graph = traced["decoding"]
    part, whole = (
        sum(kernels.op_s(op) * op.count for op in case.ops if op.kind is OpKind.GEMM)
        for case in (tensor_share(graph, ways), graph)
    )
    assert least < ways * part / whole < most
