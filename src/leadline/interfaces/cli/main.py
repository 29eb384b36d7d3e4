"""The ``leadline`` command: a table of verbs, each loaded only when it is called."""

import os
import sys
from importlib import import_module

from leadline import __version__

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Before a job runs": {
        "estimate": ("estimate", "time, memory and cost of a job, without running it"),
        "fit": ("fit", "does it fit into memory, how surely, and what would make it fit"),
        "probe": ("probe", "the first steps of your own command, run here and scaled to the whole job"),
        "recommend": ("recommend", "the configuration to ask for, under a deadline, a budget and a risk"),
    },
    "Measure an application": {
        "campaign": ("campaign", "plan and make the runs from which time and memory are learned"),
    },
    "Run and remember": {
        "submit": ("submit", "the batch script, or the job itself on this machine"),
        "jobs": ("jobs", "your jobs: where, how far, until when, and what they took"),
        "watch": ("watch", "follow jobs until they end"),
        "explain": ("explain", "the whole story of a job: every decision with its evidence"),
        "cancel": ("cancel", "take jobs back"),
        "plane": ("plane", "look after the jobs: watch, resize, move, resubmit"),
        "history": ("history", "what ran, beside what was predicted"),
        "train": ("train", "measured runs to the estimator that predicts them best, with its card"),
        "model": ("model", "list and show trained models, and how far off each is"),
    },
    "Machines": {
        "systems": ("systems", "list, show, probe, check and validate the known systems"),
        "devices": ("devices", "list and show the known devices"),
        "calibrate": ("calibrate", "measure the device at hand, for better estimates"),
        "measure": ("measure", "steps of many models on a device, into one file that estimators learn from"),
        "adapt": ("adapt", "a few measured steps of your own device, for estimates that fit it"),
    },
    "See for yourself": {
        "demo": ("demo", "the whole path on three real jobs, here, in minutes"),
        "bench": ("bench", "measure every promised figure again"),
    },
}
"""Heading → verb → (module beside this one that defines ``app``, one line of help)."""

COMMANDS = {verb: entry for verbs in GROUPS.values() for verb, entry in verbs.items()}


def main(arguments: list[str]) -> int:
    """Run one command line and return its exit code.

    Codes: 0 done, 1 failure, 2 usage, 3 nothing fits, 4 scheduler unreachable, 5 the job failed.
    """
    if len(arguments) > 1 and arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"leadline {__version__}\n")
        return 0
    if arguments[0] not in COMMANDS:
        return _unknown(arguments[0])
    module = import_module(f"leadline.interfaces.cli.{COMMANDS[arguments[0]][0]}")
    from leadline.interfaces.cli.output import run_command  # noqa: PLC0415 - Typer loads only with a command

    return run_command(module.app, arguments[0], arguments[1:])


def run() -> None:
    """Run this process's own command line and end with its exit code, whatever becomes of the streams."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - it stands in for a closed stream
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _say("interrupted", 130)
    except BrokenPipeError:
        code = 0  # whoever read the output has what they wanted
    except OSError as error:
        what = "the output cannot be written" if error.filename is None else f"{error.filename} cannot be used"
        code = _say(f"{what}: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("LEADLINE_DEBUG"):
            raise
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        code = _say(f"a fault of Leadline's own, {said}: LEADLINE_DEBUG=1 shows where; please report it", 1)
    _let_go_of_stdout()
    sys.exit(code)


def _say(sentence: str, code: int) -> int:
    sys.stderr.write(f"leadline: {sentence}\n")
    return code


def _let_go_of_stdout() -> None:
    """Drop what could not be written, which Python would else try again at the end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    listed = [
        "\n".join([f"{heading}:", *(f"  {name:<{width}}  {summary}" for name, (_, summary) in verbs.items()), ""])
        for heading, verbs in GROUPS.items()
    ]
    return "\n".join(
        [
            "Usage: leadline COMMAND [ARGUMENTS]",
            "",
            "Know how long an AI job takes, what memory it needs and what it costs, before it runs.",
            "",
            *listed,
            "Try:",
            "  leadline estimate config.json --on OSC-Pitzer      a Hugging Face model, no torch needed",
            "  leadline estimate -- python train.py --epochs 3    your own script, unmodified",
            "",
            "leadline COMMAND --help says more; leadline --version prints the version.",
            "Exit codes: 0 done, 1 failure, 2 usage, 3 nothing fits, 4 scheduler unreachable, 5 the job failed.",
            "",
        ]
    )


def _unknown(name: str) -> int:
    from leadline.core.errors import UnknownName  # noqa: PLC0415 - difflib loads only when needed

    sys.stderr.write(f"leadline: {UnknownName('command', name, COMMANDS)}\n")
    return 2
