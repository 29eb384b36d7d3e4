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
from benchmarks.forked_trace import trace_in_forks
from leadline.graphs.torch.worker import compiler
compiler.postpone_compiler()
folder = Path(sys.argv[1])
for name in ("good", "bad"):
    trace_in_forks(folder / f"{name}.json", folder / f"{name}.py", (2, 3, 4, 4), timeout_s=60.0,
           prepare=lambda: os.environ.update(PREPARED=name),
           convert=lambda answer: {**answer, "prepared": os.environ["PREPARED"]})
assert "PREPARED" not in os.environ
"""


def test_each_model_has_an_answer_of_its_own(tmp_path):
    for name, content in MODELS.items():
        (tmp_path / f"{name}.py").write_text(content)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    good, bad = (json.loads((tmp_path / f"{name}.json").read_text()) for name in MODELS)
    assert (good["prepared"], good["job"]["step"]["parameters"]) == ("good", 98)
    assert (bad["prepared"], "no such weights" in bad["failure"]["reason"]) == ("bad", True)
