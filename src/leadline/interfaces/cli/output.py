"""Shared parts of all commands: running Typer, reporting errors, and writing to stdout and stderr."""

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
All = Annotated[bool, typer.Option("--all", help="Show all partitions, and those left out.")]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

PIPE_WIDTH = 160
"""Width of a table that goes to a file or a pipe."""


class _Output(Console):
    """The console for data; a closed pipe raises ``BrokenPipeError``, which ends the command quietly."""

    def on_broken_pipe(self) -> None:
        """Raise, so that ``main.run`` decides on the exit code."""
        raise BrokenPipeError


def out() -> Console:
    """Return the console for data (stdout); without colour if it is no terminal, or NO_COLOR is set."""
    return _Output(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """Return the console for progress and notes (stderr)."""
    return Console(stderr=True, highlight=False)


def format_cost(estimate: Estimate) -> tuple[str, str]:
    """Return an estimate's cost and its currency as two cells; the second is empty for dollars."""
    if estimate.cost is None:
        return "unknown", ""
    if estimate.currency == "USD":
        return f"${estimate.cost.point:.4g}", ""
    return f"{estimate.cost.point:.3g}", estimate.currency or ""


def format_place(system: str | None, partition: str | None) -> str:
    """Return a target as it is written after ``--on``."""
    return f"{system}:{partition}" if system and partition else system or ""


def varying_names(parameters: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the names of parameters with different values."""
    names = dict.fromkeys(name for parameter in parameters for name in parameter)
    return [name for name in names if len({parameter.get(name) for parameter in parameters}) > 1]


def format_value(value: Value | None) -> str:
    """Return a parameter's value as a cell."""
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


def print_json(document: object) -> None:
    """Print a document on stdout, without colour or wrapping."""
    write_text(to_json(document) + "\n")


def write_text(text: str) -> None:
    """Write text on stdout.

    Raises:
        BrokenPipeError: without an error number; with one, Typer would handle it itself.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise BrokenPipeError from None


def run_command(app: typer.Typer, name: str, arguments: list[str]) -> int:
    """Run a command's Typer application and return the exit code; an error is one sentence on stderr."""
    try:
        result = app(arguments, prog_name=f"leadline {name}", standalone_mode=False)
    except LeadlineError as error:
        sys.stderr.write(f"leadline {name}: {error}\n")
        return error.exit_code
    except typer.Abort:
        sys.stderr.write(f"leadline {name}: aborted\n")
        return 1
    except KeyboardInterrupt:
        result = INTERRUPTED
    except OSError:
        # A closed stream: main.run reports it.
        raise
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage_error(error, name, arguments)
    if result == INTERRUPTED:
        sys.stderr.write(f"leadline {name}: interrupted\n")
    return result if isinstance(result, int) else 0


def _usage_error(error: Any, name: str, arguments: list[str]) -> int:  # noqa: ANN401 - Typer's own are private
    """Report a wrong command line; a command group without arguments prints its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error.format_message()}\n")
        return 0
    sys.stderr.write(f"leadline {name}: {describe_usage_error(error, f'leadline {name}', arguments)}\n")
    return int(getattr(error, "exit_code", 2))
