"""The shell function of the completion page completes verbs, subcommands and options."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "shell-completion.md"
FUNCTION = re.search(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]


def completions(line):
    words = [*shlex.split(line), ""] if line.endswith(" ") else shlex.split(line)
    script = f"""
        leadline() {{ {shlex.quote(sys.executable)} -m leadline "$@"; }}
        {FUNCTION}
        COMP_WORDS=({" ".join(map(shlex.quote, words))})
        COMP_CWORD={len(words) - 1}
        _leadline
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return sorted({line for line in done.stdout.splitlines() if line})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("leadline e", ["estimate", "explain"]),
        ("leadline systems p", ["probe"]),
        ("leadline systems ", ["check", "list", "probe", "show", "validate"]),
        ("leadline systems probe --dry", ["--dry-run"]),
        ("leadline estimate config.json --st", ["--steps"]),
        ("leadline estimate conf", []),
    ],
)
def test_the_function_completes(line, expected):
    assert completions(line) == expected
