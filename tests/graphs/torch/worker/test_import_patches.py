"""PyTorch's compiler stays unloaded until it is used, and is the real one then."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

POSTPONED = """
import sys, types, torch
from leadline.graphs.torch.worker import compiler
compiler.postpone()
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.ones(3) + 1
model = torch.nn.Linear(2, 2)
torch.optim.SGD(model.parameters(), 0.1).step()
assert "torch._dynamo.eval_frame" not in sys.modules, "loaded although nothing needed it"
"""

USES = {
    "a name": "assert torch._dynamo.explain.__module__ == 'torch._dynamo.eval_frame'",
    "a part": "import torch._dynamo.utils; assert torch._dynamo.utils.counters is not None",
    "a name from a part": "from torch._dynamo.eval_frame import OptimizedModule; assert OptimizedModule",
    "a setting": "import torch._dynamo; torch._dynamo.config.suppress_errors = True; torch._dynamo.reset()",
    "compiling": "assert 3.0 == torch.compile(lambda x: x + 1, backend='eager')(torch.tensor(2.0)).item()",
}


@pytest.mark.parametrize("use", USES)
def test_the_compiler_is_there_as_soon_as_it_is_asked_for(use):
    code = f"{POSTPONED}\n{USES[use]}\nassert 'torch._dynamo.eval_frame' in sys.modules\n"
    code += "assert type(sys.modules['torch._dynamo']) is types.ModuleType"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PREPARED = """
import sys, torch
from leadline.graphs.torch.worker import compiler, main
from leadline.graphs.torch.worker.session import Session
compiler.postpone()
from leadline.graphs.torch.worker import fakes, vision
if "{policy}" == "cuda":
    fakes.take_spare_device()
vision.install()
main.prepare(Session(policy="{policy}"))
import torch._dynamo.eval_frame
"""


@pytest.mark.parametrize("policy", ["cuda", "cpu"])
def test_the_compiler_still_loads_once_a_device_is_pretended(policy):
    code = PREPARED.format(policy=policy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
