"""What the compiler says of memory reaches the graph of the step that it compiled."""

import json
from pathlib import Path

import pytest
from tests.graphs.hlo.texts import COMPILED

from leadline.catalog.read import TomlCatalog
from leadline.core.ports import Completed
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hlo.lower import compile_function


def compiler(memory):
    """Return a runner that answers as the process in the user's environment does, with the plan given."""

    def run(argv, **_):
        request = json.loads(Path(argv[-1]).read_text())
        assert "platform" in request["target"]
        answer = {"text": COMPILED, "memory": memory, "notes": [], "jax": "0.10.2"}
        Path(request["answer"]).write_text(json.dumps(answer))
        return Completed(0, "", "")

    return run


@pytest.mark.parametrize(
    ("memory", "planned"),
    [({"argument": 100, "output": 40, "alias": 30, "temp": 500, "generated_code": 7}, 617), ({}, None)],
)
def test_arguments_results_and_temporaries_are_planned_but_not_what_shares_memory(tmp_path, memory, planned):
    (tmp_path / "step.py").write_text("")
    workload = Workload(ModelSource(ModelKind.JAX_FUNCTION, f"{tmp_path / 'step.py'}:build"), phase=Phase.INFERENCE)
    device = TomlCatalog(None).device("A100 SXM4 80GB")
    assert planned == compile_function(workload, device, runner=compiler(memory)).step.planned_bytes
