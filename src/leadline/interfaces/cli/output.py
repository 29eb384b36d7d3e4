"""What every command shares: Typer's start, the error's end, and the two streams."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from leadline.core.documents import to_json
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Estimate
from leadline.core.runs import Value
from leadline.interfaces.cli.usage_errors import describe_usage_error

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
All = Annotated[bool, typer.Option("--all", help="Show every place, and what was left out.")]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; Typer returns it by itself."""

PIPE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


class _Output(Console):
    """The console for data; a reader who has gone is an error like any other here, and ends the command quietly."""

    def on_broken_pipe(self) -> None:
        """Let the start of the process decide, rather than end it with a failure."""
        raise BrokenPipeError


def out() -> Console:
    """Return the console for data (stdout): no colour without a terminal, nor under NO_COLOR."""
    return _Output(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


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


def format_place(system: str | None, partition: str | None) -> str:
    """Return a place as it is written after ``--on``."""
    return f"{system}:{partition}" if system and partition else system or ""


def varying_names(parameters: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the names whose values differ between configurations."""
    names = dict.fromkeys(name for one in parameters for name in one)
    return [name for name in names if len({one.get(name) for one in parameters}) > 1]


def format_value(value: Value | None) -> str:
    """Return a parameter's value as a cell."""
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


def print_json(document: object) -> None:
    """Print a document on stdout, without colour or wrapping."""
    write_text(to_json(document) + "\n")


def write_text(text: str) -> None:
    """Write text on stdout; a reader who has gone is told to the start of the process alone, which ends quietly.

    Raises:
        BrokenPipeError: without an error number, by which Typer would take it for a failure of its own to handle.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise BrokenPipeError from None


def run_command(app: typer.Typer, name: str, arguments: list[str]) -> int:
    """Run one command's Typer application and return the exit code; an error is one sentence on stderr."""
    try:
        result = app(arguments, prog_name=f"leadline {name}", standalone_mode=False)
    except LeadlineError as error:
        sys.stderr.write(f"leadline {name}: {error}\n")
        return error.exit_code
    except typer.Abort:
        sys.stderr.write(f"leadline {name}: nothing was done\n")
        return 1
    except KeyboardInterrupt:
        result = INTERRUPTED
    except OSError:
        raise  # of a stream, which the start of the process answers
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage_error(error, name, arguments)
    if result == INTERRUPTED:
        sys.stderr.write(f"leadline {name}: interrupted\n")
    return result if isinstance(result, int) else 0


def _usage_error(error: Any, name: str, arguments: list[str]) -> int:  # noqa: ANN401 - Typer's own are private
    """Answer a wrong command line; a group of commands that is called alone explains itself."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error.format_message()}\n")
        return 0
    sys.stderr.write(f"leadline {name}: {describe_usage_error(error, f'leadline {name}', arguments)}\n")
    return int(getattr(error, "exit_code", 2))
