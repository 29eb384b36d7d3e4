"""Shells complete commands, subcommands, options and file names, through the script that they are given."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.interfaces.cli.main import main

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])


def run(words, **variables):
    environment = {**os.environ, "PYTHONPATH": PATH, **variables}
    return subprocess.run(
        [sys.executable, "-m", "leadline", *words], env=environment, capture_output=True, text=True, check=True
    ).stdout


def completions(line):
    """Return what Bash is told: lines of a type and a value."""
    words = [*shlex.split(line), ""] if line.endswith(" ") else shlex.split(line)
    variables = {"COMP_WORDS": shlex.join(words), "COMP_CWORD": str(len(words) - 1)}
    return sorted(run([], _LEADLINE_COMPLETE="bash_complete", **variables).split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("leadline e", ["plain,estimate", "plain,explain", "plain,export"]),
        ("leadline systems p", ["plain,probe"]),
        ("leadline systems ", [f"plain,{name}" for name in ("check", "list", "probe", "show", "validate")]),
        ("leadline systems probe --dry", ["plain,--dry-run"]),
        ("leadline estimate config.json --st", ["plain,--steps"]),
        ("leadline estimate conf", ["file,conf"]),
        ("leadline estimate config.json --estimator k", ["plain,kernels"]),
        ("leadline nothing --st", []),
    ],
)
def test_the_words_of_a_command_line_are_completed(line, expected):
    assert completions(line) == expected


def test_only_the_command_on_the_line_is_imported():
    program = (
        "import sys; from leadline.interfaces.cli.main import run\n"
        "try: run()\n"
        "finally: print(*(name for name in sys.modules if name.startswith('leadline.interfaces.cli.')))"
    )
    variables = {"_LEADLINE_COMPLETE": "bash_complete", "COMP_WORDS": "leadline jobs --", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": PATH, **variables}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "plain,--limit" in done.stdout
    assert "leadline.interfaces.cli.jobs" in done.stdout
    assert "leadline.interfaces.cli.estimate" not in done.stdout


@pytest.mark.parametrize(("shell", "startup"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_the_script_is_installed_once(shell, startup, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert main(["--show-completion"]) == 0
    script = capsys.readouterr().out
    assert "_LEADLINE_COMPLETE" in script
    for _ in range(2):
        assert main(["--install-completion"]) == 0
    installed = Path(capsys.readouterr().out.split("installed in ")[1].split(";")[0]).expanduser()
    assert installed.read_text() == script[:-1]
    if startup:
        assert (tmp_path / startup).read_text().count(str(installed)) == 1


def test_an_unknown_shell_is_refused(monkeypatch, capsys):
    assert main(["--install-completion", "tcsh"]) == 2
    assert "unknown shell 'tcsh'" in capsys.readouterr().err
    monkeypatch.delenv("SHELL", raising=False)
    assert main(["--install-completion"]) == 2
    assert "name the shell: --install-completion bash" in capsys.readouterr().err


def test_bash_completes_with_the_script(tmp_path):
    program = tmp_path / "leadline"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m leadline "$@"\n')
    program.chmod(0o755)
    script = f"""
        PATH={shlex.quote(str(tmp_path))}:$PATH
        {run(["--show-completion", "bash"])}
        COMP_WORDS=(leadline systems probe --dry)
        COMP_CWORD=3
        _leadline_completion leadline
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--dry-run"]
