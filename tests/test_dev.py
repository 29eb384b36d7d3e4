"""The developer's script: what it decides without installing anything."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.graphs.torch.test_releases import EXTRACTED
from tests.support.newer_slurm import NEWER_SLURM

SCRIPT = Path(__file__).parents[1] / "dev"


@pytest.fixture(scope="module")
def dev():
    loader = SourceFileLoader("leadline_dev", str(SCRIPT))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_a_stamp_covers_the_extra_it_names_and_dev_covers_torch(dev):
    mark = dev.fingerprint(b"[project]", "/somewhere", "3.11.7")
    assert dev.satisfied(dev.stamp_text("torch", mark), "torch", mark)
    assert dev.satisfied(dev.stamp_text("dev", mark), "torch", mark)
    assert not dev.satisfied(dev.stamp_text("torch", mark), "dev", mark)
    assert not dev.satisfied("", "torch", mark)


def test_a_changed_pyproject_asks_for_pip_again_in_the_same_environment(dev):
    old = dev.fingerprint(b"[project]", "/somewhere", "3.11.7")
    new = dev.fingerprint(b"[project]\nname = 'x'", "/somewhere", "3.11.7")
    stamp = dev.stamp_text("dev", old)
    assert not dev.satisfied(stamp, "dev", new)
    assert dev.stamp_root(stamp) == dev.stamp_root(dev.stamp_text("dev", new))


def test_a_moved_repository_or_another_python_asks_for_a_new_environment(dev):
    here = dev.stamp_root(dev.stamp_text("dev", dev.fingerprint(b"x", "/here", "3.11.7")))
    assert here
    assert here != dev.stamp_root(dev.stamp_text("dev", dev.fingerprint(b"x", "/there", "3.11.7")))
    assert here != dev.stamp_root(dev.stamp_text("dev", dev.fingerprint(b"x", "/here", "3.12.1")))


def test_an_environment_of_another_checkout_is_not_emptied(dev, monkeypatch, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    link = tmp_path / ".venv"
    link.symlink_to(other)
    monkeypatch.setattr(dev, "VENV", link)
    with pytest.raises(dev.Stop, match="remove the link"):
        dev.make_venv()
    assert (other / "kept").exists()


def test_no_stamp_names_no_place(dev):
    assert dev.stamp_root("") == ""


def test_help_names_every_command(dev):
    ended = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
    for name in dev.COMMANDS:
        assert f"  {name} " in ended.stdout


def test_an_unknown_command_is_one_sentence_and_a_usage_error():
    ended = subprocess.run([sys.executable, str(SCRIPT), "tset"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("dev: unknown command 'tset': known are setup, demo, test")
    assert ended.stderr.count("\n") == 1


def test_the_tests_look_for_the_newer_slurm_where_it_is_put(dev):
    assert dev.NEWER_SLURM == NEWER_SLURM


def test_the_tests_look_for_the_newer_python_where_it_is_put(dev):
    assert dev.NEWER_PYTHON / "bin" / "python" == EXTRACTED


@pytest.mark.parametrize(("codes", "ended"), [([0], 0), ([1, 0], 0), ([1, 1], 1), ([2], 2)])
def test_tests_that_failed_beside_others_run_again_alone(dev, monkeypatch, codes, ended):
    commands = []
    for name in ("ensure", "ensure_programs", "ensure_newer_slurm", "ensure_newer_python"):
        monkeypatch.setattr(dev, name, lambda *_, **__: None)
    monkeypatch.setattr(dev, "run", lambda command: commands.append(command) or codes[len(commands) - 1])
    assert ended == dev.test([])
    assert ["--last-failed" in command for command in commands] == [False, True][: len(codes)]
