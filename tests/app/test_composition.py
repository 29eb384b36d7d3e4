"""The adapters that the verbs share: traces of configuration files are remembered."""

import json
import os
import sys

from leadline.app.composition import toolbox
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.workload import ModelKind

CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128, "vocab_size": 500}


def traced(file, **options):
    workload = read_workload([str(file)], WorkloadOptions(**options))
    return toolbox().sources[ModelKind.HF_CONFIG](workload)


def test_what_if_questions_that_leave_the_step_as_it_is_share_its_trace(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    job = traced(file, batch=2)
    assert traced(file, batch=2, epochs=3, samples=100, gpus=4, name="other") is job
    assert traced(file, batch=4) is not job
    assert traced(file, batch=2, precision="fp32") is not job


def test_a_changed_file_is_traced_again(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    before = traced(file)
    file.write_text(json.dumps({**CONFIG, "n_embd": 32}))
    os.utime(file, ns=(1, 1))
    assert traced(file).step.parameters < before.step.parameters


def test_a_script_on_the_cpu_has_the_start_of_its_own_python(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(9):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
    )
    workload = read_workload([sys.executable, str(script)], WorkloadOptions())
    trace = toolbox().sources[ModelKind.COMMAND]
    assert trace(workload, device_type="cpu").loop.start_up["framework_bytes"] > 1e8
