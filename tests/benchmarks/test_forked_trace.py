"""Models are traced in forks of one process: an answer each, and why where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MODELS = {
    "good": "from torch.nn import Flatten, Linear, Sequential\n\n\n"
    "def build():\n    return Sequential(Flatten(), Linear(48, 2))\n",
    "bad": "def build():\n    raise ValueError('there are no such weights')\n",
}
RUN = """
import os, sys
from pathlib import Path
import torch
from benchmarks.forked_trace import traced
from leadline.graphs.torch.worker import compiler
compiler.postpone()
folder = Path(sys.argv[1])
for name in ("good", "bad"):
    traced(folder / f"{name}.json", folder / f"{name}.py", (2, 3, 4, 4), timeout_s=60.0,
           prepare=lambda: os.environ.update(PREPARED=name),
           told=lambda answer: {**answer, "prepared": os.environ["PREPARED"]})
assert "PREPARED" not in os.environ
"""


def test_each_model_has_an_answer_of_its_own(tmp_path):
    for name, content in MODELS.items():
        (tmp_path / f"{name}.py").write_text(content)
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(source)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    good, bad = (json.loads((tmp_path / f"{name}.json").read_text()) for name in MODELS)
    assert (good["prepared"], good["job"]["step"]["parameters"]) == ("good", 98)
    assert (bad["prepared"], "no such weights" in bad["failure"]["reason"]) == ("bad", True)
