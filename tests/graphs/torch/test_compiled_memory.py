"""What a compiled step keeps from forward to backward is what PyTorch's own partitioner keeps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.graphs.torch.compiled_memory import drop_recomputed_tensors
from leadline.graphs.torch.trace import trace_function
from tests.support.forked_python import run_forked

pytest.importorskip("torch")
NETS = Path(__file__).with_name("compiled_nets.py")
SHAPES = {"decoder": (8, 64, 128), "gated": (8, 64, 128), "perceptron": (512, 256), "convolutions": (8, 3, 32, 32)}


def traced(name):
    workload = Workload(
        ModelSource(ModelKind.FUNCTION, f"{NETS}:{name}"), optimizer=Optimizer.SGD,
        inputs=(InputShape(SHAPES[name.removeprefix("compiled_")]),),
    )  # fmt: skip
    return trace_function(workload, runner=run_forked, device_type="cpu")


def kept(graph):
    """Return the bytes of activations that are held when backward begins."""
    begins = next(place for place, op in enumerate(graph.ops) if op.stage is Stage.BACKWARD)
    live = {}
    for event in graph.events:
        if event.op <= begins and event.size_bytes > 0:
            live[event.storage] = event
        elif event.op <= begins:
            live.pop(event.storage, None)
    return sum(event.size_bytes for event in live.values() if event.category is StorageCategory.ACTIVATION)


@pytest.fixture(scope="module")
def really():
    """Return what autograd saves of each model, eager and compiled, as PyTorch does it in a process of its own."""
    process = subprocess.run([sys.executable, str(NETS)], capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the compiler takes minutes on a busy machine
@pytest.mark.parametrize("name", SHAPES)
def test_a_compiled_step_holds_less_by_what_pytorchs_partitioner_drops(really, name):
    """``aot_eager_decomp_partition`` cuts the graph as the default compiler does, and runs it op by op."""
    graph, (real, cut) = traced(name).step, really[name]
    eager = kept(graph)
    assert real - cut == pytest.approx(eager - kept(drop_recomputed_tensors(graph)), rel=0.1, abs=0.01 * real)
    assert eager == pytest.approx(real, rel=0.15)


def chain(reader, *, product_is_held=True):
    """A product, what a pointwise op makes of it, and a backward pass in which ``reader`` reads the latter."""
    ops = (
        Op("mm", OpKind.GEMM, Stage.FORWARD, "float32", 1.0, 1.0, 1.0),
        Op("gelu", OpKind.ELEMENTWISE, Stage.FORWARD, "float32", 1.0, 1.0, 1.0, sources=(0,)),
        Op("mean", OpKind.REDUCTION, Stage.FORWARD, "float32", 1.0, 1.0, 1.0, sources=(1,)),
        Op("read", reader, Stage.BACKWARD, "float32", 1.0, 1.0, 1.0, sources=(1,)),
        Op("gelu_backward", OpKind.ELEMENTWISE, Stage.BACKWARD, "float32", 1.0, 1.0, 1.0, sources=(0,)),
    )
    end = 5 if product_is_held else 2
    kind = StorageCategory.ACTIVATION
    events = (StorageEvent(0, 1, 100, kind), StorageEvent(1, 2, 60, kind),
              StorageEvent(end, 1, -100, kind), StorageEvent(4, 2, -60, kind))  # fmt: skip
    return OpGraph(ops, tuple(sorted(events, key=lambda event: event.op)))


def test_a_pointwise_result_that_fused_kernels_read_is_recomputed():
    graph = drop_recomputed_tensors(chain(OpKind.ELEMENTWISE))
    assert kept(graph) == 100
    assert [(event.op, event.size_bytes) for event in graph.events] == [(0, 100), (1, 60), (3, -60), (5, -100)]


@pytest.mark.parametrize("graph", [chain(OpKind.GEMM), chain(OpKind.ELEMENTWISE, product_is_held=False)])
def test_operands_of_products_and_results_that_cannot_be_recomputed_are_kept(graph):
    assert graph == drop_recomputed_tensors(graph)


def test_inference_has_nothing_to_recompute():
    forward = OpGraph(chain(OpKind.GEMM).ops[:2], (StorageEvent(0, 1, 100), StorageEvent(1, 2, 60)))
    assert forward is drop_recomputed_tensors(forward)


def test_a_model_that_is_compiled_holds_less_than_the_same_one_eager():
    eager, compiled = traced("perceptron"), traced("compiled_perceptron")
    assert pytest.approx(kept(eager.step) - kept(compiled.step), rel=0.01) == 512 * 512 * 4
    assert peak_memory(compiled.step).allocated_bytes < peak_memory(eager.step).allocated_bytes
    assert any("reduce-overhead" in note for note in compiled.notes)
    assert eager.step.flops == compiled.step.flops
