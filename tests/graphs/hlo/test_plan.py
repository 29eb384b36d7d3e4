"""What the compiler says of memory reaches the graph of the step that it compiled."""

import importlib.util
import json
from pathlib import Path

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.processes import CompletedProcess
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Workload
from leadline.estimators.memory.device import apply_xla_plan, peak_memory
from leadline.execution.processes import run_process
from leadline.graphs.hlo.jax_function import compile_function
from tests.graphs.hlo.texts import COMPILED

A100 = TomlCatalog(None).device("A100 SXM4 80GB")
ON_THIS_CPU = """
import json, runpy, sys
from pathlib import Path
request = json.loads(Path(sys.argv[2]).read_text())
confinement = runpy.run_path(sys.argv[1])["confine"](request, request["target"])
from leadline.graphs.hlo.worker import run
run._sharding = lambda topology: None
run.serve(request, confinement)
"""
"""The process in the user's environment, except that it compiles for its own CPU."""


def compiled_here(argv, **settings):
    return run_process([argv[0], "-c", ON_THIS_CPU, *argv[1:]], **settings)


def compiler(memory):
    """Return a runner that answers as the process in the user's environment does, with the plan given."""

    def run(argv, **_):
        request = json.loads(Path(argv[-1]).read_text())
        assert "platform" in request["topology"]
        answer = {"text": COMPILED, "memory": memory, "notes": [], "jax": "0.10.2"}
        Path(request["answer"]).write_text(json.dumps(answer))
        return CompletedProcess(0, "", "")

    return run


@pytest.mark.parametrize(
    ("memory", "planned"),
    [
        ({"argument": 100, "output": 40, "alias": 30, "temp": 500, "generated_code": 7}, 617),
        ({"argument": 100, "output": 40, "alias": 30, "temp": 0, "generated_code": 0}, 110),
        ({}, None),
    ],
)
def test_arguments_results_and_temporaries_are_planned_but_not_what_shares_memory(tmp_path, memory, planned):
    (tmp_path / "step.py").write_text("")
    workload = Workload(ModelSource(ModelKind.JAX_FUNCTION, f"{tmp_path / 'step.py'}:build"), phase=Phase.INFERENCE)
    assert planned == compile_function(workload, A100, runner=compiler(memory)).step.planned_bytes


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jax", "flax", "optax")), reason="needs the [jax] extra"
)
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("transformer", (8, 128, 256), "float32"),
        pytest.param("pixels", (32, 32, 32, 3), "float32", marks=pytest.mark.slow),
        pytest.param("decoder", (8, 64), "int32", marks=pytest.mark.slow),
        pytest.param("bottlenecks", (16, 64, 64, 3), "float32", marks=pytest.mark.slow),
        pytest.param("depthwise", (16, 64, 64, 3), "float32", marks=pytest.mark.slow),
    ],
)
def test_the_plan_of_a_real_compiler_is_close_to_the_live_memory_of_its_module(name, shape, dtype):
    """XLA's compiler for CPUs, on a training step: what it assigns, and Leadline's own liveness over its schedule."""
    models = Path(__file__).with_name("models_in_jax.py")
    workload = Workload(
        ModelSource(ModelKind.JAX_FUNCTION, f"{models}:{name}"), batch=shape[0], optimizer=Optimizer.ADAMW,
        inputs=(InputShape(shape, dtype),),
    )  # fmt: skip
    job = compile_function(workload, A100, runner=compiled_here)
    planned, alive = job.step.planned_bytes, peak_memory(job.step)
    assert 3 * job.step.parameter_bytes < planned
    assert pytest.approx(alive.allocated_bytes / planned, abs=0.1) == 1
    assert planned == apply_xla_plan(job.step, alive).reserved_bytes
    assert any("the compiler plans" in note for note in job.notes)
