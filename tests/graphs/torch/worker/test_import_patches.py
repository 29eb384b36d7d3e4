"""PyTorch's compiler stays unloaded until it is used, and then is the real one."""

import sys
from pathlib import Path

import pytest

from tests.support.forked_python import run_forked

pytest.importorskip("torch")

SOURCES = str(Path(__file__).parents[4] / "src")

POSTPONED = """
import sys, types, torch
from leadline.graphs.torch.worker import compiler
compiler.postpone_compiler()
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.ones(3) + 1
model = torch.nn.Linear(2, 2)
torch.optim.SGD(model.parameters(), 0.1).step()
assert "torch._dynamo.eval_frame" not in sys.modules, "loaded although nothing used it"
"""

USES = {
    "a name": "assert torch._dynamo.explain.__module__ == 'torch._dynamo.eval_frame'",
    "a part": "import torch._dynamo.utils; assert torch._dynamo.utils.counters is not None",
    "a name from a part": "from torch._dynamo.eval_frame import OptimizedModule; assert OptimizedModule",
    "a setting": "import torch._dynamo; torch._dynamo.config.suppress_errors = True; torch._dynamo.reset()",
    "compiling": "assert 3.0 == torch.compile(lambda x: x + 1, backend='eager')(torch.tensor(2.0)).item()",
}


def run_script(code, folder):
    script = folder / "script.py"
    script.write_text(code)
    return run_forked([sys.executable, str(script)], env={"PYTHONPATH": SOURCES})


@pytest.mark.parametrize("use", USES)
def test_the_compiler_loads_on_first_use(use, tmp_path):
    code = f"{POSTPONED}\n{USES[use]}\nassert 'torch._dynamo.eval_frame' in sys.modules\n"
    code += "assert type(sys.modules['torch._dynamo']) is types.ModuleType"
    completed = run_script(code, tmp_path)
    assert completed.returncode == 0, completed.stderr


PREPARED = """
import sys, torch
from leadline.graphs.torch.worker import compiler
from leadline.graphs.torch.worker.session import TraceSession
compiler.postpone_compiler()
from leadline.graphs.torch.worker import fake_tensors, main, patches
if "{policy}" == "cuda":
    fake_tensors.claim_device(spare=True)
patches.define_torchvision_ops()
main.install_hooks(TraceSession(policy="{policy}"))
import torch._dynamo.eval_frame
"""


@pytest.mark.parametrize("policy", ["cuda", "cpu"])
def test_the_compiler_still_loads_on_a_simulated_device(policy, tmp_path):
    code = PREPARED.format(policy=policy)
    completed = run_script(code, tmp_path)
    assert completed.returncode == 0, completed.stderr
