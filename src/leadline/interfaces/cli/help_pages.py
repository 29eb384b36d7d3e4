"""Stored help texts of all commands; ``python -m leadline.interfaces.cli.reference`` writes them again.

Importing a command to print its help takes many times as long as starting Python. A test compares the
file with the live commands.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_name("help.json")
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
