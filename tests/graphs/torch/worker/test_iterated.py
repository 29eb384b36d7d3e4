"""Modules that are loaded after the hook on loops are compiled with it, and none is needed to tell which."""

import subprocess
import sys

CODE = """
import sys
from leadline.graphs.torch.worker import iterated
for name in [name for name in sys.modules if name.startswith("importlib.metadata")]:
    del sys.modules[name]  # as before Python 3.10, where PyTorch does not load it
iterated.record_iterables()
import importlib.metadata
import own
assert importlib.metadata.distributions and own.total == 3
"""


def test_the_module_that_finds_installed_projects_is_loaded_before_the_hook(tmp_path):
    (tmp_path / "own.py").write_text("total = 0\nfor number in range(3):\n    total += 1\n")
    (tmp_path / "train.py").write_text(CODE)
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
