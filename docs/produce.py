#!/usr/bin/env python3
"""Run the commands of the documentation pages and insert their output.

Usage: python docs/produce.py [PAGE.md …]      default: every tutorial, how-to guide and explanation

Each page runs in its own empty folder. A block after "Save this as `NAME`:" is written to that file. The command of
each ``console`` block is run, and its output replaces the rest of the block. The marker ``<!-- here -->`` before a
block means that its output depends on the machine; tests then do not compare it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FOLDERS = ("tutorials", "how-to", "explanation")
PAGES = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]

HOME = "/home/ada"
"""Stands for the folder of a page in its output."""

_BLOCK = re.compile(
    r"Save this as `(?P<name>[^`]+)`:\n\n```\w+\n(?P<content>.*?)```"
    r"|(?P<here><!-- here -->\n)?```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<shown>.*?)```",
    re.DOTALL,
)
_NUMBER = re.compile(r"\d[\d.,:]*(?: ?(?:ms|µs|[smhd]|[KMGT]i?B|B|[kMGTPE](?:FLOP)?|%))?\b%?")


@dataclass(frozen=True)
class Block:
    """A command of a page, with the position of its output, the shown output and the actual output."""

    command: str
    start: int
    end: int
    shown: str
    printed: str
    code: int
    here: bool


def work_through(page: Path, folder: Path, prepare: Callable[[str], str] = lambda command: command) -> Iterator[Block]:
    """Write the files of a page and run its commands in ``folder``; ``prepare`` may modify a command first."""
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["name"]:
            (folder / match["name"]).write_text(match["content"], encoding="utf-8")
            continue
        code, printed = _run(prepare(match["command"]), folder)
        yield Block(
            match["command"],
            match.start("shown"),
            match.end("shown"),
            match["shown"],
            printed,
            code,
            bool(match["here"]),
        )


def likeness(shown: str, printed: str) -> float:
    """Return the share of the shown lines that were printed again, ignoring numbers."""
    expected, actual = _skeleton(shown), set(_skeleton(printed))
    return sum(line in actual for line in expected) / len(expected) if expected else 1.0


def _skeleton(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        masked = re.sub(r"\b[0-9a-f]{6,12}\b", "#", line)
        masked = re.sub(r"#(?:[\s–-]*#)+", "#", _NUMBER.sub("#", masked))
        lines.append(" ".join(masked.split()))
    return [line for line in lines if line]


def _run(command: str, folder: Path) -> tuple[int, str]:
    """Run one shell line with this Python's ``leadline`` and ``python``; return the exit code and both streams."""
    launcher = folder / ".bin" / "leadline"
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m leadline "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    programs = [str(launcher.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ, "LEADLINE_DATA_DIR": str(folder / "data"), "HOME": str(folder), "COLUMNS": "110",
        "PATH": os.pathsep.join(programs), "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(DOCS.parent / "src"), os.environ.get("PYTHONPATH")])),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, check=False,
    )  # fmt: skip
    lines = [text.rstrip() for text in done.stdout.replace(f"{folder}/", "").replace(str(folder), HOME).splitlines()]
    return done.returncode, "\n".join(lines).strip("\n") + "\n" if lines else ""


def main(names: list[str]) -> int:
    """Update every page; return 1 if a command failed."""
    failed = 0
    for page in [Path(name).resolve() for name in names] or PAGES:
        folder = Path(tempfile.mkdtemp(prefix="pages-"))
        text = page.read_text(encoding="utf-8")
        for block in reversed(list(work_through(page, folder))):
            failed += block.code not in (0, 3)
            print(f"{page.name}: {block.command} -> {block.code}")
            text = text[: block.start] + block.printed + text[block.end :]
        page.write_text(text, encoding="utf-8")
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
