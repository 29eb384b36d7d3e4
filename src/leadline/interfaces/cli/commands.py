"""The table of all commands; each is imported only when it is called."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

COMPLETE = "_LEADLINE_COMPLETE"
"""Environment variable with which a shell asks for completions, by Click's protocol."""

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
    "Process data as it arrives": {
        "pipeline": "plan and run stages that files, messages, schedules or metrics start",
    },
    "Run and remember": {
        "submit": "run a job here or on a cluster, or print its batch script",
        "jobs": "list jobs with their status, progress and cost",
        "watch": "follow jobs until they end",
        "logs": "print or follow the output of a job",
        "explain": "show the event log of a job: every decision with its evidence",
        "cancel": "cancel jobs",
        "approve": "let a prediction restart running jobs with a larger request",
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
    "Other ways in": {
        "chat": "ask in your own words",
        "web": "serve the web page and the REST API",
        "export": "write an answer as a table, a report, or a workflow tool's request",
        "mcp": "serve the tools to assistants that speak the Model Context Protocol",
    },
    "See for yourself": {
        "demo": "try everything on three real jobs, in minutes",
        "bench": "measure every published metric again",
    },
}
"""Heading → command → one line of help; each command is in the module of its name."""

COMMANDS = {verb: entry for verbs in GROUPS.values() for verb, entry in verbs.items()}


def load_command(name: str) -> "click.Command":
    """Import one command."""
    command: click.Command = getattr(import_module(f"leadline.interfaces.cli.{name}"), name)
    return command
