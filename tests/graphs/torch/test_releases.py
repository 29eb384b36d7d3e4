"""Scripts traced by the oldest and newest releases of Python and PyTorch that users have.

``python3 dev matrix`` makes the environments and runs these tests in them.
"""

import os
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks.corpus import CORPUS
from benchmarks.trace import wrong_facts
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch import trace

PYTHONS = [python for python in os.environ.get("LEADLINE_PYTHONS", "").split(os.pathsep) if python]
NAMES = ("word_lm", "moe", "custom_function", "char_gpt", "resnet_amp", "dcgan", "ddp_mlp", "fsdp2_gpt")
SCRIPTS = {script.name: script for script in CORPUS if script.name in NAMES}
SINCE = {"char_gpt": (2, 3), "resnet_amp": (2, 3), "fsdp2_gpt": (2, 6)}
"""First release of PyTorch that has all that a script calls."""


def job(name, python, **request):
    command = (python, *SCRIPTS[name].command()[1:])
    workload = Workload(ModelSource(ModelKind.COMMAND, name, command))
    with pytest.MonkeyPatch.context() as patch:
        ask = trace.run_worker
        patch.setattr(trace, "run_worker", lambda asked, **settings: ask({**asked, **request}, **settings))
        return trace.trace_command(workload, runner=run_process)


@cache
def expected_flops(name):
    return job(name, sys.executable).step.flops


@cache
def release(python):
    printed = run_process([python, "-c", "import torch; print(torch.__version__)"]).stdout
    return tuple(map(int, printed.split(".")[:2]))


@pytest.mark.skipif(not PYTHONS, reason="LEADLINE_PYTHONS names no Python: run python3 dev matrix")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).parents[1].name)
def test_a_release_gives_the_facts_and_the_work_of_a_script(python, name):
    if release(python) < SINCE.get(name, (0, 0)):
        pytest.skip(f"PyTorch {release(python)} has not all that {name} calls")
    traced = job(name, python)
    assert wrong_facts(SCRIPTS[name], traced) == []
    assert traced.step.device_type == "cuda"
    assert traced.step.flops == pytest.approx(expected_flops(name), rel=0.01)


@pytest.mark.parametrize("name", ["word_lm", "resnet_amp"])
def test_a_gpu_without_the_spare_device_gives_the_same_work(name):
    without = job(name, sys.executable, without=["spare device"])
    assert wrong_facts(SCRIPTS[name], without) == []
    assert without.step.flops == pytest.approx(expected_flops(name), rel=0.01)
