"""What every command shares: Typer's start, the error's end, and the two streams."""

import os
import sys

import typer
from rich.console import Console

from leadline.core.documents import dump
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Estimate

JSON_HELP = "Print one JSON document instead of text."

PIPE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def out() -> Console:
    """Return the console for data (stdout): no colour without a terminal, nor under NO_COLOR."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """Return the console for progress and remarks (stderr)."""
    return Console(stderr=True, highlight=False)


def format_cost(estimate: Estimate) -> tuple[str, str]:
    """Return an estimate's cost and its currency as two cells; a dollar amount needs no second one."""
    if estimate.cost is None:
        return "not known", ""
    if estimate.currency == "USD":
        return f"${estimate.cost.point:.4g}", ""
    return f"{estimate.cost.point:.3g}", estimate.currency or ""


def print_json(document: object) -> None:
    """Print a document on stdout, without colour or wrapping."""
    sys.stdout.write(dump(document) + "\n")


def run_command(app: typer.Typer, name: str, arguments: list[str]) -> int:
    """Run one command's Typer application and return the exit code; an error is one sentence on stderr."""
    try:
        result = app(arguments, prog_name=f"leadline {name}", standalone_mode=False)
    except LeadlineError as error:
        sys.stderr.write(f"leadline {name}: {error}\n")
        return error.exit_code
    except (typer.Exit, typer.Abort) as end:
        return int(getattr(end, "exit_code", 1))
    except KeyboardInterrupt:
        sys.stderr.write(f"leadline {name}: interrupted\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        hint = "; an option of your own command goes after --" if "No such option" in error.format_message() else ""
        sys.stderr.write(f"leadline {name}: {error.format_message()}{hint}\n")
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0
