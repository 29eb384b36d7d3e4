"""The command-line reference as Markdown, and the stored help texts, generated from the parsers.

``python -m leadline.interfaces.cli.reference`` writes the help texts.
"""

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from typer.main import get_command

from leadline.interfaces.cli.command import format_usage, option_sections
from leadline.interfaces.cli.help_pages import FILE
from leadline.interfaces.cli.main import COMMANDS, GROUPS

WIDTH = 78
"""Columns of text on a terminal of 80."""


def reference() -> str:
    """Return every command in the order of ``leadline --help``: usage, help, and options by section."""
    parts: list[str] = []
    for heading, verbs in GROUPS.items():
        parts.append(f"## {heading}")
        for verb, (module, summary) in verbs.items():
            parts += [f"### leadline {verb}", f"{summary[0].upper()}{summary[1:]}."]
            app = import_module(f"leadline.interfaces.cli.{module}").app
            parts += _command(get_command(app), f"leadline {verb}")
    return "\n\n".join(parts) + "\n"


def _command(command: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - Typer's own are private
    """Yield the paragraphs of a command, or of each command of a group."""
    for name, inner in getattr(command, "commands", {}).items():
        yield f"#### {path} {name}"
        yield from _command(inner, f"{path} {name}")
    if hasattr(command, "commands"):
        return
    yield f"```text\n{path} {format_usage(command)}\n```"
    yield " ".join((command.help or "").split())
    with command.make_context(path, ["--help"], resilient_parsing=True) as context:
        for title, rows in option_sections(command, context).items():
            if rows:
                yield f"**{title}**"
                yield "\n\n".join(f"`{name}`\n: {_escaped(description)}" for name, description in rows)
    if command.epilog:
        yield f"```text\n{command.epilog}\n```"


def _escaped(text: str) -> str:
    """Escape Markdown's own characters."""
    return text.replace("*", r"\*").replace("[", r"\[").replace("<", r"\<")


def help_pages() -> dict[str, str]:
    """Return the help of every command and subcommand, by its words after ``leadline``."""
    pages = {}
    for verb, (module, _) in COMMANDS.items():
        if verb == "bench":  # its help depends on whether the benchmarks are installed
            continue
        command = get_command(import_module(f"leadline.interfaces.cli.{module}").app)
        for name, inner in (("", command), *getattr(command, "commands", {}).items()):
            words = f"{verb} {name}".rstrip()
            context = inner.make_context(f"leadline {words}", [], resilient_parsing=True, terminal_width=WIDTH)
            pages[words] = f"{inner.get_help(context)}\n"
    return pages


if __name__ == "__main__":
    FILE.write_text(json.dumps(help_pages(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
