"""JAX functions, lowered for real, beside PyTorch's own trace, XLA's own count and formulas by hand.

The trace counts what each call of an uncompiled program reads and writes. Kernels that are fused move less. Their
traffic is compared with what XLA compiled for a GPU.
"""

import importlib.util
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import OpGraph, OpKind, Stage
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.graphs.hlo.jax_function import compile_function, lower_function, topology_arguments
from leadline.graphs.torch.trace import trace_function
from tests.support.forked_python import run_forked

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jax", "flax", "optax")), reason="needs the [jax] extra"
)
INPUTS = {
    "transformer": ((8, 128, 256), (8, 128, 256), "float32"),
    "pixels": ((32, 3, 32, 32), (32, 32, 32, 3), "float32"),
    "decoder": ((8, 64), (8, 64), "int32"),
    "bottlenecks": ((16, 3, 64, 64), (16, 64, 64, 3), "float32"),
    "depthwise": ((16, 3, 64, 64), (16, 64, 64, 3), "float32"),
}
"""The input of each model in PyTorch and in JAX."""


def workload(name, phase=Phase.INFERENCE, shape=None, optimizer=None, kind=ModelKind.JAX_FUNCTION):
    file = "models_in_torch.py" if kind is ModelKind.FUNCTION else "models_in_jax.py"
    inputs = (InputShape(shape, INPUTS[name][2] if name in INPUTS else "float32"),) if shape else ()
    batch = shape[0] if shape else None
    return Workload(
        ModelSource(kind, f"{HERE / file}:{name}"), phase=phase, batch=batch, inputs=inputs, optimizer=optimizer
    )  # fmt: skip


def lower(name, phase=Phase.INFERENCE, shape=None, optimizer=None):
    return lower_function(workload(name, phase, shape, optimizer), runner=run_forked)


def products(graph):
    """The multiply-adds of all matrix products, without what is fused to them."""
    sizes = [op.dims for op in graph.ops if op.kind is OpKind.GEMM]
    return sum(2 * dims["b"] * dims["m"] * dims["n"] * dims["k"] for dims in sizes)


@pytest.fixture(
    scope="module",
    params=[
        "transformer",
        "pixels",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("decoder", "bottlenecks", "depthwise")),
    ],
)
def model(request):
    return request.param


@pytest.fixture(scope="module", params=[Phase.INFERENCE, Phase.TRAINING])
def both(request, model):
    """The same model and phase in the two frameworks."""
    pytest.importorskip("torch")
    optimizer = Optimizer.SGD if request.param is Phase.TRAINING else None
    torch_shape, jax_shape, _ = INPUTS[model]
    traced = trace_function(
        workload(model, request.param, torch_shape, optimizer, ModelKind.FUNCTION), runner=run_forked
    )
    return traced.step, lower(model, request.param, jax_shape, optimizer).step


def test_the_same_model_in_pytorch_and_in_jax_has_the_same_arithmetic(both: tuple[OpGraph, OpGraph]):
    traced, lowered = both
    assert traced.flops == pytest.approx(lowered.flops, rel=0.02)


def test_fused_kernels_move_hardly_more_bytes_than_the_calls_of_pytorch(both: tuple[OpGraph, OpGraph]):
    traced, lowered = both
    assert 0.3 * traced.bytes_moved < lowered.bytes_moved < 1.15 * traced.bytes_moved


def test_the_same_model_in_pytorch_and_in_jax_runs_the_same_products(both: tuple[OpGraph, OpGraph]):
    traced, lowered = both
    assert products(traced) == pytest.approx(products(lowered), rel=0.001)
    convolutions = [sum(op.flops for op in graph.ops if op.kind is OpKind.CONV) for graph in both]
    assert convolutions[0] == pytest.approx(convolutions[1], rel=0.02)  # a bias is added within
    assert traced.parameters == pytest.approx(lowered.parameters, rel=0.02)  # running statistics are arguments too


def test_the_arithmetic_is_what_xla_counts_where_there_is_no_loop(tmp_path):
    """XLA leaves out exponentials and the like, and positions in the padding: hence products, without padding."""
    step = tmp_path / "step.py"
    step.write_text(
        "import jax, jax.numpy as jnp\n"
        "def step(w, k, x):\n"
        "    y = jax.lax.conv_general_dilated(x, k, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))\n"
        "    return jnp.maximum(y.reshape(y.shape[0], -1) @ w, 0)\n"
        "def build():\n"
        "    shapes = ((14 * 14 * 8, 64), (3, 3, 4, 8), (32, 16, 16, 4))\n"
        "    return step, tuple(jax.ShapeDtypeStruct(one, 'float32') for one in shapes)\n"
        "if __name__ == '__main__':\n"
        "    f, a = build()\n"
        "    print(jax.jit(f).lower(*a).cost_analysis()['flops'])\n"
    )
    import sys

    counted = run_forked([sys.executable, str(step)], env={"JAX_PLATFORMS": "cpu"}, timeout_s=120)
    assert counted.returncode == 0, counted.stderr
    lowered = lower_function(
        Workload(ModelSource(ModelKind.JAX_FUNCTION, f"{step}:build"), phase=Phase.INFERENCE), runner=run_forked
    )
    assert float(counted.stdout) == pytest.approx(lowered.step.flops, rel=0.002)


def test_a_scan_counts_its_body_once_a_trip():
    graph = lower("scanned").step
    assert sum(op.flops * op.count for op in graph.ops if op.kind is OpKind.GEMM) == 5 * 2 * 32 * 64 * 64
    assert graph.parameters == 5 * 64 * 64
    assert graph.fallbacks == {}


def test_an_nnx_module_is_trained_with_the_named_optimizer():
    job = lower("perceptron", Phase.TRAINING, (16, 64), Optimizer.ADAMW)
    weights = 64 * 128 + 128 + 128 * 32 + 32
    assert weights == job.step.parameters
    assert job.loop.batch == 16
    assert {Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER} == {op.stage for op in job.step.ops}
    backward = 64 * 128 + 2 * 128 * 32
    assert 2 * 16 * (64 * 128 + 128 * 32 + backward) == products(job.step)
    expected = 4 * (3 * weights + 16 * 64)
    allocated = sum(event.size_bytes for event in job.step.events if event.op == 0 and event.size_bytes > 0)
    assert expected == pytest.approx(allocated, rel=0.2)
    assert any("adamw" in note for note in job.notes)


def test_a_function_that_cannot_be_lowered_is_an_error_with_the_users_line():
    with pytest.raises(Untraceable) as caught:
        lower("broken")
    assert "models_in_jax.py" in caught.value.location
    with pytest.raises(Untraceable, match="returned int: return \\(step, arguments\\), or"):
        lower("nothing")
    with pytest.raises(Untraceable, match="does not change: leave it out"):
        lower("scanned", optimizer=Optimizer.ADAM)
    with pytest.raises(InvalidInput, match="trains nothing"):
        lower("scanned", Phase.TRAINING)
    with pytest.raises(InvalidInput, match="names no JAX function"):
        lower_function(replace(workload("x"), model=ModelSource(ModelKind.JAX_FUNCTION, "no.py:x")), runner=run_forked)


CUDA = importlib.util.find_spec("jax_plugins") is not None and importlib.util.find_spec("jax_cuda12_plugin") is not None


@pytest.mark.slow
@pytest.mark.skipif(not CUDA, reason="needs the [xla-cuda] extra")
@pytest.mark.parametrize("name", ["A100 SXM4 80GB", "V100 SXM2 16GB", "H100 SXM5 80GB"])
def test_xla_compiles_for_a_gpu_that_is_absent(name):
    job_workload = workload("transformer", Phase.TRAINING, INPUTS["transformer"][1], Optimizer.ADAMW)
    compiled = compile_function(job_workload, TomlCatalog(None).device(name), runner=run_forked).step
    lowered = lower_function(job_workload, runner=run_forked).step
    assert lowered.flops == pytest.approx(compiled.flops, rel=0.02)
    assert lowered.bytes_moved == pytest.approx(compiled.bytes_moved, rel=0.3)
    assert pytest.approx(peak_memory(lowered).allocated_bytes / peak_memory(compiled).allocated_bytes, rel=0.3) == 1
    assert pytest.approx(peak_memory(compiled).allocated_bytes / compiled.planned_bytes, rel=0.1) == 1
    assert lowered.parameters == compiled.parameters
    assert math.isclose(len(lowered.ops), len(compiled.ops), rel_tol=0.5)


CATALOG = TomlCatalog(None)


def figure(text, name):
    return re.search(rf"\b{name}: (\S+)", text)[1]


def test_a_target_has_the_numbers_of_the_catalog_and_of_its_architecture():
    target = topology_arguments(CATALOG.device("A100 SXM4 80GB"))
    text = target["target_config"]
    assert target["platform"] == "cuda"
    assert figure(text, "core_count") == "108"
    assert figure(text, "fpus_per_core") == "64"
    assert figure(text, "clock_rate_ghz") == "1.41"
    assert pytest.approx(int(figure(text, "memory_bandwidth")), rel=0.05) == 2.0e12
    assert figure(text, "shared_memory_per_core") == "167936"
    assert "cuda_compute_capability { major: 8 minor: 0 }" in text


def test_a_clock_missing_in_the_catalog_follows_from_the_peak():
    device = CATALOG.device("H100 NVL")
    assert device.boost_hz is None
    clock = float(figure(topology_arguments(device)["target_config"], "clock_rate_ghz"))
    assert device.peak_flops_per_s["float32"] == pytest.approx(clock * 1e9 * 2 * device.compute_units * 128, rel=1e-4)


def test_a_tpu_is_named_by_its_smallest_topology():
    assert topology_arguments(CATALOG.device("Cloud TPU v5e")) == {"platform": "tpu", "topology_name": "v5e:2x2"}


@pytest.mark.parametrize(
    ("name", "message"),
    [("MI300X", "GPUs of NVIDIA and TPUs"), ("B300 SXM", "compute capability 10.3"), ("A10G", "has no compute_units")],
)
def test_a_device_that_xla_cannot_compile_for_is_an_error(name, message):
    with pytest.raises(InvalidInput, match=message):
        topology_arguments(CATALOG.device(name))
