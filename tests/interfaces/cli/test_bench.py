"""``leadline bench`` runs benchmarks where they are importable, and says where they are elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def bench(*words, path):
    return subprocess.run(
        [sys.executable, "-P", "-m", "leadline", "bench", *words], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
    )  # fmt: skip


def hide(folder):
    """Return a folder whose package ``benchmarks`` is another project's."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "__init__.py").write_text("")
    return folder


def test_an_installed_leadline_says_where_the_benchmarks_are(tmp_path):
    ended = bench("speed", "--quick", path=(hide(tmp_path), ROOT / "src"))
    assert ended.returncode == 2
    assert "python3 dev bench speed" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_clone_lists_its_benchmarks():
    ended = bench("--help", path=(ROOT, ROOT / "src"))
    assert ended.returncode == 0
    assert "fine-tunes" in ended.stdout
