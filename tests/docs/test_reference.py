"""The command-line reference lists every command and option, and the documentation builds without warnings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.cli_reference import reference
from leadline.interfaces.cli.commands import COMMANDS, load_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_reference_lists_every_option_of_a_command(verb):
    text = reference()
    group = load_command(verb)
    for name, command in getattr(group, "commands", {"": group}).items():
        part = text.partition(f"# leadline {verb} {name}".rstrip() + "\n")[2].partition("\n#")[0]
        assert part, f"{verb} {name} has no section"
        for option in command.params:
            if option.param_type_name == "option":
                assert max(option.opts, key=len) in part


def test_the_pages_build_without_warnings_and_contain_the_reference(tmp_path):
    pytest.importorskip("sphinx")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(tmp_path / "cache"), str(ROOT / "docs"),
         str(tmp_path / "html")],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "--held-in-memory" in page
    assert "<!-- reference -->" not in page
