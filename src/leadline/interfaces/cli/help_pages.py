"""Stored help texts of all commands; ``python -m leadline.interfaces.cli.help_pages`` writes them again.

Importing Typer and a command to print its help takes some thirty times as long as starting Python. A test compares the
file with the live commands.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_name("help.json")
WIDTH = 78
"""Columns of text on a terminal of 80."""
HELP_OPTIONS = ("-h", "--help")


def help_page(arguments: list[str]) -> str | None:
    """Return the help that a command line asks for: ``COMMAND --help`` or ``COMMAND SUBCOMMAND --help``; else None."""
    if not arguments or arguments[-1] not in HELP_OPTIONS:
        return None
    try:
        pages = json.loads(FILE.read_text(encoding="utf-8"))
    except OSError:  # a copy without the file still has the live help
        return None
    page = pages.get(" ".join(arguments[:-1]))
    return page if isinstance(page, str) else None


def render() -> dict[str, str]:
    """Return the help of every command and subcommand, by its words after ``leadline``."""
    from importlib import import_module  # noqa: PLC0415 - only the writer needs Typer and the commands

    from typer.main import get_command  # noqa: PLC0415

    from leadline.interfaces.cli.main import COMMANDS  # noqa: PLC0415

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
    FILE.write_text(json.dumps(render(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
