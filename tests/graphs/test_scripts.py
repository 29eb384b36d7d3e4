"""The framework of a script is read from its imports and those of the files beside it."""

import sys

import pytest

from leadline.core.errors import Untraceable
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.frameworks import script_framework
from leadline.graphs.scripts import trace_script
from leadline.graphs.torch.command import PythonCommand
from tests.support.forked_python import run_forked

KERAS = "import os\n{}\nimport keras\nmodel.fit(x, y)"


@pytest.fixture(autouse=True)
def no_keras_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


@pytest.mark.parametrize(
    ("code", "framework"),
    [
        ("import torch", "torch"),
        ("print('nothing')", "torch"),
        ("import jax", "jax"),
        ("from flax import nnx", "jax"),
        ("import jax\nfrom torch.utils.data import DataLoader", "jax"),
        ("import jax\nimport torch\nloss.backward()", "torch"),
        ("import jax\nimport tensorflow as tf", "jax"),
        ("import tensorflow as tf", "tensorflow"),
        ("from tensorflow import keras", "tensorflow"),
        ("import tensorflow\nimport torch", "torch"),
        (KERAS.format(""), "tensorflow"),
        (KERAS.format("os.environ['KERAS_BACKEND'] = 'jax'"), "jax"),
        (KERAS.format("os.environ.setdefault('KERAS_BACKEND', 'torch')"), "torch"),
        ("def broken(:", "torch"),
    ],
)
def test_imports_decide(tmp_path, code, framework):
    (tmp_path / "train.py").write_text(code)
    assert script_framework(PythonCommand("python", "train.py"), tmp_path) == framework


def test_the_environment_and_the_settings_file_choose_the_backend_of_keras(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(KERAS.format(""))
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert script_framework(PythonCommand("python", "train.py"), tmp_path) == "torch"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert script_framework(PythonCommand("python", "train.py"), tmp_path) == "jax"


def test_keras_within_tensorflow_has_the_backend_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("from tensorflow.keras import layers\n")
    assert script_framework(PythonCommand("python", "train.py"), tmp_path) == "tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert script_framework(PythonCommand("python", "train.py"), tmp_path) == "jax"


def test_files_beside_the_script_count_and_circles_end(tmp_path):
    (tmp_path / "train.py").write_text("from lib import loop")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "loop.py").write_text("from .model import Net\nimport train")
    (tmp_path / "lib" / "model.py").write_text("import jax")
    assert script_framework(PythonCommand("python", "train.py"), tmp_path) == "jax"
    module = PythonCommand("python", "lib.loop", is_module=True)
    assert script_framework(module, tmp_path) == "jax"


@pytest.mark.parametrize(("backend", "framework"), [(None, "torch"), ("jax", "jax"), ("pytorch", "torch")])
def test_packages_on_the_path_count_and_a_variable_chooses_their_backend(tmp_path, monkeypatch, backend, framework):
    package = tmp_path / "agents"
    (package / "scripts").mkdir(parents=True)
    (package / "learner.py").write_text("import jax\n")
    (package / "scripts" / "run.py").write_text("from agents import learner\n")
    command = PythonCommand("python", "agents/scripts/run.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    assert script_framework(command, tmp_path) == "jax"
    (package / "learner.py").write_text("import jax, torch\ndef update(loss):\n    loss.backward()\n")
    if backend is not None:
        monkeypatch.setenv("AGENTS_BACKEND", backend)
    assert script_framework(command, tmp_path) == framework


def test_tensorflow_is_refused_with_the_way_on(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import tensorflow as tf")
    words = (sys.executable, str(script))
    with pytest.raises(Untraceable, match="KERAS_BACKEND=torch"):
        trace_script(Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words)), runner=run_forked)


def test_a_shell_script_starts_its_script_in_its_folder_and_with_its_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    code = "import os\nimport jax\nraise SystemExit(f\"seed {os.environ['SEED']} of {os.path.basename(os.getcwd())}\")"
    (tmp_path / "src" / "train.py").write_text(code)
    (tmp_path / "train.sh").write_text(f"export SEED=7\ncd src\n{sys.executable} train.py\n")
    words = ("sh", "train.sh")
    pytest.importorskip("jax")
    with pytest.raises(Untraceable, match="the script exited: seed 7 of src"):
        trace_script(Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words)), runner=run_forked)
    (tmp_path / "src" / "train.py").write_text(KERAS.format(""))
    command = PythonCommand("python", "train.py", folder="src", variables=(("KERAS_BACKEND", "jax"),))
    assert script_framework(command, command.start_folder(tmp_path)) == "jax"


LIBRARY = """
import jax
import jax.numpy as jnp


@jax.jit
def update(weights, rows):
    return weights - 0.1 * jax.grad(lambda w: jnp.square(rows @ w).mean())(weights)


def train(steps):
    weights = jnp.ones((8, 4))
    for _ in range(steps):
        weights = update(weights, jnp.ones((16, 8)))
"""


def test_a_script_whose_library_trains_with_jax_is_traced_by_it(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "agents.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text("import agents\nagents.train(50)")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    words = (sys.executable, str(tmp_path / "train.py"))
    job = trace_script(Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words)), runner=run_forked)
    assert job.step.source == "stablehlo"
    assert job.step.parameters == 32
