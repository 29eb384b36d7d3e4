"""The ``leadline`` command: a table of commands, each imported only when it is called."""

import json
import os
import sys
from pathlib import Path

from leadline import __version__
from leadline.interfaces.cli.commands import COMMANDS, COMPLETE, GROUPS, load_command

HELP_FILE = Path(__file__).with_name("help.json")
"""Stored help texts of all commands; ``python docs/cli_reference.py`` writes them again.

Importing a command to print its help takes many times as long as starting Python. A test compares the file with the
live commands.
"""
HELP_OPTIONS = ("-h", "--help")
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")
HELP = """\
Usage: leadline COMMAND [ARGUMENTS]

Predict time, memory and cost of AI jobs before they run.

{commands}

Try:
  leadline estimate config.json --on OSC-Pitzer      a Hugging Face model, no torch needed
  leadline estimate -- python train.py --epochs 3    your own script, unmodified

Run leadline COMMAND --help for details of a command, leadline --version for the version,
leadline --install-completion to complete commands with Tab (bash, zsh, fish).
Exit codes: 0 done, 1 failure, 2 usage, 3 nothing fits, 4 scheduler unreachable, 5 the job failed.
"""


def main(arguments: list[str]) -> int:
    """Run one command line and return its exit code.

    Codes: 0 done, 1 failure, 2 usage, 3 nothing fits, 4 scheduler unreachable, 5 the job failed.
    """
    # "leadline help submit" is what git and cargo users type.
    if len(arguments) > 1 and arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"leadline {__version__}\n")
        return 0
    if arguments[0] in COMPLETION_OPTIONS:
        from leadline.interfaces.cli.completion import completion_option  # noqa: PLC0415 - Click loads on use

        return completion_option(*arguments)
    if arguments[0] not in COMMANDS:
        from leadline.core.errors import UnknownName  # noqa: PLC0415 - difflib loads on use

        return _print_error(str(UnknownName("command", arguments[0], COMMANDS)), 2)
    if page := help_page(arguments):
        sys.stdout.write(page)
        return 0
    from leadline.interfaces.cli.command import run_command  # noqa: PLC0415 - Click loads only with a command

    return run_command(load_command(arguments[0]), arguments[0], arguments[1:])


def help_page(arguments: list[str]) -> str | None:
    """Return the help that a command line asks for: ``COMMAND --help`` or ``COMMAND SUBCOMMAND --help``; else None."""
    if not arguments or arguments[-1] not in HELP_OPTIONS:
        return None
    try:
        pages = json.loads(HELP_FILE.read_text(encoding="utf-8"))
    except OSError:  # a copy without the file still has the live help
        return None
    page = pages.get(" ".join(arguments[:-1]))
    return page if isinstance(page, str) else None


def run() -> None:
    """Run this process's command line, and exit with its code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for a closed stream
    try:
        if COMPLETE in os.environ:
            from leadline.interfaces.cli.completion import complete  # noqa: PLC0415 - Click loads on use

            sys.exit(complete())
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _print_error("interrupted", 130)
    except BrokenPipeError:
        # The reader, such as head, has what it needs.
        code = 0
    except OSError as error:
        message = "cannot write the output" if error.filename is None else f"cannot use {error.filename}"
        code = _print_error(f"{message}: {error.strerror or error}", 1)
    except Exception as error:
        # Python 3.11 wraps what is raised while a class is made, even an interrupt.
        if isinstance(error.__cause__, KeyboardInterrupt):
            sys.exit(_print_error("interrupted", 130))
        if os.environ.get("LEADLINE_DEBUG"):
            raise
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        code = _print_error(f"internal error ({text}); set LEADLINE_DEBUG=1 for a traceback, and please report it", 1)
    _discard_unwritable_output()
    sys.exit(code)


def _print_error(sentence: str, code: int) -> int:
    from leadline.core.errors import LeadlineError  # noqa: PLC0415 - only for an error

    sys.stderr.write(f"leadline: {LeadlineError(sentence)}\n")  # with excerpts of long values
    return code


def _discard_unwritable_output() -> None:
    """Drop output that cannot be written; Python would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    groups = []
    for heading, verbs in GROUPS.items():
        groups.append("\n".join([f"{heading}:", *(f"  {name:<{width}}  {summary}" for name, summary in verbs.items())]))
    return HELP.format(commands="\n\n".join(groups))
