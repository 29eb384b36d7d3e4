"""``leadline history``: past runs with their predictions."""

from typing import Annotated

import typer
from rich.measure import Measurement
from rich.table import Table

from leadline.app.jobs.history import RunComparison, compare_run, export_runs, list_runs, show_run
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.runs import Run
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json, write_text

app = CommandApp(group=True, help="List, show and export past runs with their predictions.")

Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Show at most N runs, the newest.", show_default="all")
]


@app.command("list")
def list_command(limit: Limit = None, json: Json = False) -> None:
    """List runs, newest first."""
    _list(limit, json=json)


@app.command()
def show(
    run: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Run ID or its prefix.", show_default="list all runs"),
    ] = None,
    json: Json = False,
) -> None:
    """Show one run: predicted and measured values, and how it ended."""
    if run is None:
        _list(None, json=json)
        return
    stored = show_run(run)
    if json:
        print_json({**to_document(stored, "leadline.run/1"), "comparison": compare_run(stored)})
    else:
        show_run_comparison(stored)


@app.command()
def export(
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="csv or json.")] = "csv",
) -> None:
    """Write the whole history to stdout."""
    if form not in ("csv", "json"):
        raise InvalidInput(f"--format is {form!r}, but it must be csv or json")
    write_text(export_runs(form))


def show_run_comparison(run: Run) -> None:
    """Print one run: how it ended, then a line per quantity."""
    console = out()
    ended = f"{run.state.value} on {run.host or 'an unknown host'}, started {run.started_at}"
    console.print(f"{run.id}  {run.job.name}: {ended}", style="bold", markup=False)
    if reason := run.tags.get("reason"):
        console.print(f"reason: {reason}", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in ("quantity", "predicted", "interval", "measured", "error", "method"):
        table.add_column(column)
    for comparison in compare_run(run):
        table.add_row(*_cells(comparison), _method(run, comparison.quantity))
    _print_whole(table)
    if run.state.censored:
        console.print("The run was cut off: measurements are lower bounds.")


def _list(limit: int | None, *, json: bool) -> None:
    runs = list_runs(limit)
    if json:
        print_json(to_document({"runs": runs}, "leadline.history/1"))
        return
    if not runs:
        err().print("The history is empty; run a job with leadline submit -- COMMAND.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("id", "started", "job", "state", "time predicted", "measured", "error", "memory predicted",
                   "measured", "error"):  # fmt: skip
        table.add_column(column, no_wrap=True)
    for run in runs:
        by_name = {comparison.quantity: comparison for comparison in compare_run(run)}
        cells = [cell for name in ("elapsed_s", "host_memory_bytes") for cell in _summary(by_name.get(name))]
        table.add_row(run.id, run.started_at[:19], run.job.name, run.state.value, *cells)
    _print_whole(table)
    if any(run.state.censored for run in runs):
        err().print("≥ marks a run that was cut off: a lower bound.")


def _print_whole(table: Table) -> None:
    """Print a table without truncating cells, so that IDs and numbers can be copied."""
    console = out()
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.width = max(console.width, needed)
    console.print(table, crop=False, soft_wrap=True)


def _summary(comparison: RunComparison | None) -> tuple[str, str, str]:
    if comparison is None:
        return "", "", ""
    _, predicted, _, measured, error = _cells(comparison)
    return predicted, measured, error


def _cells(comparison: RunComparison) -> tuple[str, str, str, str, str]:
    """Return quantity, predicted, interval, measured and error as text; empty if unknown."""
    format_quantity = format_bytes if comparison.quantity.endswith("_bytes") else format_duration
    predicted, interval, measured, error = "", "", "", ""
    if comparison.predicted is not None:
        predicted = format_quantity(comparison.predicted.point)
        interval = f"{format_quantity(comparison.predicted.low)} to {format_quantity(comparison.predicted.high)}"
    if comparison.measured is not None:
        measured = ("≥ " if comparison.lower_bound else "") + format_quantity(comparison.measured)
    if comparison.error is not None:
        error = f"{100 * comparison.error:+.1f} %" + ("" if comparison.within else " (outside)")
    return comparison.quantity, predicted, interval, measured, error


def _method(run: Run, quantity: str) -> str:
    figure = run.measured.get(quantity)
    if figure is None:
        return ""
    return figure.method + (f", every {format_duration(figure.interval_s)} at most" if figure.interval_s else "")
