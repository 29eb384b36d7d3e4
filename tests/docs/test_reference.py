"""The reference of the command line names every command and every option, and the pages build without a warning."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from leadline.interfaces.cli.main import COMMANDS
from leadline.interfaces.cli.reference import reference

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_reference_has_every_command_with_every_option(verb):
    text = reference()
    made = typer.main.get_command(import_module(f"leadline.interfaces.cli.{COMMANDS[verb][0]}").app)
    for name, command in getattr(made, "commands", {"": made}).items():
        part = text.partition(f"# leadline {verb} {name}".rstrip() + "\n")[2].partition("\n#")[0]
        assert part, f"{verb} {name} has no part of its own"
        for option in command.params:
            if option.param_type_name == "option":
                assert max(option.opts, key=len) in part


def test_the_pages_build_without_a_warning_and_hold_the_reference(tmp_path):
    pytest.importorskip("sphinx")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(tmp_path / "cache"), str(ROOT / "docs"),
         str(tmp_path / "html")],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "cli.html").read_text(encoding="utf-8")
    assert "--held-in-memory" in page
    assert "<!-- reference -->" not in page
