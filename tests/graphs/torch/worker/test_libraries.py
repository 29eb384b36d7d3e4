"""Library files are told from the user's own, wherever the libraries are installed."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from benchmarks.trust.fact_scripts import LIBRARY_LOOP, LIBRARY_SCRIPT, TWO_LOSSES
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

ASK = """
import json, sys
from leadline.graphs.torch.worker.libraries import is_user_file
folder, imports, *paths = sys.argv[1:]
for name in filter(None, imports.split(",")):
    __import__(name)
print(json.dumps([is_user_file(path, folder) for path in paths]))
"""


def user_files(folder: Path, *paths: Path | str, path: tuple[Path, ...] = (), imports: str = "", **env: str) -> list:
    """Ask a fresh interpreter with this ``PYTHONPATH`` which of the paths are the user's own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **env}
    words = [sys.executable, "-c", ASK, str(folder), imports, *map(str, paths)]
    return json.loads(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_standard_library_and_installed_packages_are_not_the_users(tmp_path):
    installed = [os.__file__, pytest.__file__, "/usr/lib/python3/dist-packages/numpy/core.py", "<string>"]
    installed.append("/opt/conda/lib/python3.12/site-packages/torch/optim/adam.py")
    installed.append(str(tmp_path / ".venv/lib/python3.12/site-packages/torch/optim/adam.py"))
    assert user_files(tmp_path, *installed) == [False] * len(installed)
    own = [tmp_path / "train.py", tmp_path / "models/net.py", tmp_path.parent / "shared/loop.py"]
    assert user_files(tmp_path, *own) == [True] * len(own)


def test_a_target_folder_inside_the_project_holds_libraries(tmp_path):
    write(tmp_path / "vendor/torchlike-2.0.dist-info/RECORD", "torchlike/__init__.py,,\nsixlike.py,,\n../bin/x,,\n")
    paths = [tmp_path / "vendor" / name for name in ("torchlike/optim/adam.py", "sixlike.py", "mine/loop.py")]
    assert user_files(tmp_path, *paths, path=(tmp_path / "vendor",)) == [False, False, True]
    beside = write(tmp_path / "other-1.0.dist-info/RECORD", "other/__init__.py,,\n").parents[1]
    assert user_files(tmp_path, beside / "other/a.py", beside / "train.py", path=(beside,)) == [False, True]


def test_an_editable_library_is_a_library_unless_the_script_belongs_to_it(tmp_path):
    source = write(tmp_path / "my lib/src/lib/loop.py")
    project = {"url": (tmp_path / "my lib").as_uri(), "dir_info": {"editable": True}}
    base = tmp_path / "base"
    env = {**os.environ, "PYTHONUSERBASE": str(base)}
    words = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    site_folder = Path(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip())
    write(site_folder / "lib-0.1.dist-info/direct_url.json", json.dumps(project))
    assert user_files(tmp_path / "runs", source, PYTHONUSERBASE=str(base)) == [False]
    assert user_files(tmp_path / "my lib/scripts", source, PYTHONUSERBASE=str(base)) == [True]
    link = write(site_folder / "old.egg-link", f"{tmp_path / 'old'}\n.").parent / "old.egg-link"
    assert user_files(tmp_path / "runs", tmp_path / "old/loop.py", PYTHONUSERBASE=str(base)) == [False], link


def test_a_framework_on_the_path_is_a_library_by_its_name(tmp_path):
    for name in ("accelerate", "helpers"):
        write(tmp_path / f"src/{name}/__init__.py")
    paths = [tmp_path / "src" / name / "loop.py" for name in ("accelerate", "helpers")]
    said = user_files(tmp_path / "runs", *paths, path=(tmp_path / "src",), imports="accelerate,helpers")
    assert said == [False, True]


def traced_loop(folder: Path):
    words = (sys.executable, str(folder / "train.py"))
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words))
    return trace_command(workload, runner=run_forked, cwd=folder).loop


def test_steps_are_not_halved_when_torch_lies_outside_the_site_folders(tmp_path, monkeypatch):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.endswith((".dist-info", ".pth")):  # as a build in place: no metadata
            (libraries / entry.name).symlink_to(entry)
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    project = tmp_path / "project"
    write(project / "train.py", TWO_LOSSES)
    loop = traced_loop(project)
    assert (loop.accumulation, loop.steps_per_epoch, loop.epochs) == (1, 10, 3)


@pytest.mark.usefixtures("_only_read")
def test_a_loop_inside_a_library_is_not_the_scripts(tmp_path, monkeypatch):
    vendor = tmp_path / "vendor"
    write(vendor / "trainlib.py", LIBRARY_LOOP)
    write(tmp_path / "train.py", LIBRARY_SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(vendor))
    assert traced_loop(tmp_path).epochs == 7  # the user's own module
    write(vendor / "trainlib-1.0.dist-info/RECORD", "trainlib.py,,\n")
    loop = traced_loop(tmp_path)
    assert (loop.steps_per_epoch, loop.epochs) == (10, None)
