"""The ``leadline`` command: a table of commands, each imported only when it is called."""

import os
import sys
from importlib import import_module

from leadline import __version__
from leadline.interfaces.cli.help_pages import help_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

COMPLETE = "_LEADLINE_COMPLETE"
"""Environment variable with which a shell asks for completions, by Click's protocol."""
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")

GROUPS: dict[str, dict[str, str]] = {
    "Before a job runs": {
        "estimate": "predict time, memory and cost of a job",
        "fit": "check whether a job fits into memory, and what would make it fit",
        "probe": "run the first steps of a command and extrapolate to the whole job",
        "recommend": "choose a configuration under a deadline, a budget and a risk",
    },
    "Measure an application": {
        "campaign": "plan and run experiments to train a model of an application",
    },
    "Run and remember": {
        "submit": "run a job here or on a cluster, or print its batch script",
        "jobs": "list jobs with their status, progress and cost",
        "watch": "follow jobs until they end",
        "explain": "show the event log of a job: every decision with its evidence",
        "cancel": "cancel jobs",
        "plane": "run the process that manages jobs: watch, resize, move, resubmit",
        "history": "list past runs with their predictions",
        "train": "train a model on measured runs",
        "model": "list and show trained models",
    },
    "Machines": {
        "systems": "list, show, probe, check and validate systems",
        "devices": "list and show devices",
        "calibrate": "measure this machine's device for better estimates",
        "measure": "time steps of many models on this device",
        "adapt": "adapt estimates to a few measured steps of your device",
    },
    "See for yourself": {
        "demo": "try everything on three real jobs, in minutes",
        "bench": "measure every published metric again",
    },
}
"""Heading → command → one line of help; each command is in the module of its name."""

COMMANDS = {verb: entry for verbs in GROUPS.values() for verb, entry in verbs.items()}


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
        return _unknown(arguments[0])
    if page := help_page(arguments):
        sys.stdout.write(page)
        return 0
    from leadline.interfaces.cli.command import run_command  # noqa: PLC0415 - Click loads only with a command

    return run_command(load_command(arguments[0]), arguments[0], arguments[1:])


def load_command(name: str) -> "click.Command":
    """Import one command."""
    command: click.Command = getattr(import_module(f"leadline.interfaces.cli.{name}"), name)
    return command


def run() -> None:
    """Run this process's command line, and exit with its code."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - replaces a closed stream
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
        if os.environ.get("LEADLINE_DEBUG"):
            raise
        error_text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        code = _print_error(
            f"internal error ({error_text}); set LEADLINE_DEBUG=1 for a traceback, and please report it", 1
        )
    _discard_unwritable_output()
    sys.exit(code)


def _print_error(sentence: str, code: int) -> int:
    sys.stderr.write(f"leadline: {sentence}\n")
    return code


def _discard_unwritable_output() -> None:
    """Drop output that cannot be written; Python would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    listed = [
        "\n".join([f"{heading}:", *(f"  {name:<{width}}  {summary}" for name, summary in verbs.items()), ""])
        for heading, verbs in GROUPS.items()
    ]
    return "\n".join(
        [
            "Usage: leadline COMMAND [ARGUMENTS]",
            "",
            "Predict time, memory and cost of AI jobs before they run.",
            "",
            *listed,
            "Try:",
            "  leadline estimate config.json --on OSC-Pitzer      a Hugging Face model, no torch needed",
            "  leadline estimate -- python train.py --epochs 3    your own script, unmodified",
            "",
            "Run leadline COMMAND --help for details of a command, leadline --version for the version,",
            "leadline --install-completion to complete commands with Tab (bash, zsh, fish).",
            "Exit codes: 0 done, 1 failure, 2 usage, 3 nothing fits, 4 scheduler unreachable, 5 the job failed.",
            "",
        ]
    )


def _unknown(name: str) -> int:
    from leadline.core.errors import UnknownName  # noqa: PLC0415 - difflib loads on use

    sys.stderr.write(f"leadline: {UnknownName('command', name, COMMANDS)}\n")
    return 2
