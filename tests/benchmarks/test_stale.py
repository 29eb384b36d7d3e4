"""A result is stale once the code that it measures changed after its commit."""

import json
import shutil
import subprocess

import pytest

from benchmarks import stale
from benchmarks.provenance import current_commit
from benchmarks.stale import stale_reason, stale_results

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def clone(tmp_path):
    """A repository with one measured file."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text("def step():\n    return 1.0\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder, *words):
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")


def write_result(folder, **changes):
    path = folder.parent / f"{folder.name}.json"
    document = {"bench": "speed", "commit": current_commit(["src"], folder), "measures": ["src"], **changes}
    path.write_text(json.dumps(document))
    return path


def test_a_result_of_unchanged_code_is_not_stale(clone):
    path = write_result(clone)
    (clone / "README.md").write_text("A file that nothing measures.")
    commit(clone)
    assert stale_reason(path, clone) == ""


def test_comments_docstrings_and_moves_do_not_make_a_result_stale(clone):
    path = write_result(clone)
    (clone / "src" / "model.py").write_text('def step():\n    """Return seconds."""\n    # one step\n    return 1.0\n')
    commit(clone)
    git(clone, "mv", "src/model.py", "src/steps.py")
    commit(clone)
    assert stale_reason(path, clone) == ""


def test_changed_code_makes_a_result_stale_and_is_named(clone):
    path = write_result(clone)
    (clone / "src" / "model.py").write_text("def step():\n    return 2.0\n")
    reason = stale_reason(path, clone)
    assert "1 measured files changed" in reason
    assert "src/model.py" in reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"commit": ""}, "no commit is recorded"),
        ({"measures": []}, "no commit is recorded"),
        ({"commit": "1" * 40}, "not in this clone"),
    ],
)
def test_a_result_without_a_known_commit_is_stale(clone, changes, reason):
    assert reason in stale_reason(write_result(clone, **changes), clone)


def test_a_result_of_uncommitted_code_is_stale(clone):
    (clone / "src" / "model.py").write_text("def step():\n    return 2.0\n")
    assert "not committed" in stale_reason(write_result(clone), clone)


def test_stale_results_are_warnings_unless_strict(tmp_path, monkeypatch, capsys):
    (tmp_path / "speed.json").write_text(json.dumps({"bench": "speed"}))
    assert [result.file for result in stale_results(tmp_path)] == ["speed.json"]
    monkeypatch.setattr(stale, "stale_results", lambda: stale_results(tmp_path))
    assert stale.main([]) == 0
    assert "warning: speed.json is stale" in capsys.readouterr().err
    assert stale.main(["--strict"]) == 1
