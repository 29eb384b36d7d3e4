"""The command-line reference as Markdown, and the stored help texts, generated from the parsers.

``python docs/cli_reference.py`` writes the help texts.
"""

import json
import re
from collections.abc import Iterator

import click

from leadline.interfaces.cli.command import CONTEXT, command_epilog, option_sections
from leadline.interfaces.cli.commands import COMMANDS, GROUPS, load_command
from leadline.interfaces.cli.main import HELP_FILE

WIDTH = 78
"""Columns of text on a terminal of 80."""


def reference() -> str:
    """Return every command in the order of ``leadline --help``: usage, help, and options by section."""
    parts: list[str] = []
    for heading, verbs in GROUPS.items():
        parts.append(f"## {heading}")
        for verb, summary in verbs.items():
            parts += [f"### leadline {verb}", f"{summary[0].upper()}{summary[1:]}."]
            parts += _command(load_command(verb), f"leadline {verb}")
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, path: str) -> Iterator[str]:
    """Yield the paragraphs of a command, or of each command of a group."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield f"#### {path} {name}"
            yield from _command(inner, f"{path} {name}")
        return
    context = click.Context(command, info_name=path, **CONTEXT)
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield " ".join((command.help or "").split())
    for title, rows in option_sections(command, context).items():
        yield f"**{title}**"
        # Markdown's own characters are escaped.
        escaped = [(name, re.sub(r"[*[<]", r"\\\g<0>", description)) for name, description in rows]
        yield "\n\n".join(f"`{name}`\n: {description}" for name, description in escaped)
    if text := command_epilog(command, context):
        yield f"```text\n{text}\n```"


def help_pages() -> dict[str, str]:
    """Return the help of every command and subcommand, by its words after ``leadline``."""
    pages = {}
    for verb in COMMANDS:
        if verb == "bench":  # its help depends on whether the benchmarks are installed
            continue
        command = load_command(verb)
        for name, inner in (("", command), *getattr(command, "commands", {}).items()):
            words = f"{verb} {name}".rstrip()
            context = inner.make_context(
                f"leadline {words}", [], resilient_parsing=True, terminal_width=WIDTH, **CONTEXT
            )
            pages[words] = f"{inner.get_help(context)}\n"
    return pages


if __name__ == "__main__":
    HELP_FILE.write_text(json.dumps(help_pages(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
