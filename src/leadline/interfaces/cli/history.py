"""``leadline history``: past runs with their predictions."""

import click

from leadline.app.jobs.history import RunComparison, compare_run, export_runs, list_runs, show_run
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.runs import Run
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.command import argument, group, json_option, option
from leadline.interfaces.cli.output import print_json, print_note, print_table


@group("history")
def history() -> None:
    """List, show and export past runs with their predictions."""


@history.command("list")
@option("--limit", "N", "Show at most N runs, the newest.", "all", type=click.IntRange(1))
@json_option
def list_command(*, limit: int | None, json: bool) -> None:
    """List runs, newest first."""
    _list(limit, json=json)


@history.command("show")
@argument("run", "ID", "Run ID or its prefix.", "list all runs", required=False)
@json_option
def show(run: str | None, *, json: bool) -> None:
    """Show one run: predicted and measured values, and how it ended."""
    if run is None:
        _list(None, json=json)
    else:
        print_run(show_run(run), json=json)


@history.command("export")
@option("form --format", "FORMAT", "csv or json.", default="csv")
def export(*, form: str) -> None:
    """Write the whole history to stdout."""
    if form not in ("csv", "json"):
        raise InvalidInput(f"--format is {form!r}, but it must be csv or json")
    click.echo(export_runs(form), nl=False)


def print_run(run: Run, *, json: bool) -> None:
    """Print one run as a document, or how it ended and then a line per quantity."""
    if json:
        print_json({**to_document(run, "leadline.run/1"), "comparison": compare_run(run)})
        return
    ended = f"{run.state.value} on {run.host or 'an unknown host'}, started {run.started_at}"
    click.secho(f"{run.id}  {run.job.name}: {ended}", bold=True)
    if reason := run.tags.get("reason"):
        click.echo(f"reason: {reason}")
    titles = ("quantity", "predicted", "interval", "measured", "error", "method")
    rows = [(*_cells(comparison), _method(run, comparison.quantity)) for comparison in compare_run(run)]
    print_table(titles, rows, words=("quantity", "method"))
    if run.state.censored:
        click.echo("The run was cut off: measurements are lower bounds.")


def _list(limit: int | None, *, json: bool) -> None:
    runs = list_runs(limit)
    if json:
        print_json({"schema": "leadline.history/1", "runs": runs})
        return
    if not runs:
        print_note("The history is empty; run a job with leadline submit -- COMMAND.")
        return
    rows = []
    for run in runs:
        by_name = {comparison.quantity: comparison for comparison in compare_run(run)}
        cells = [cell for name in ("elapsed_s", "host_memory_bytes") for cell in _summary(by_name.get(name))]
        rows.append((run.id, run.started_at[:19], run.job.name, run.state.value, *cells))
    titles = (
        "id", "started", "job", "state", "time predicted", "measured", "error", "memory predicted", "measured",
        "error",
    )  # fmt: skip
    print_table(titles, rows, words=("id", "job", "state"))
    if any(run.state.censored for run in runs):
        print_note("≥ marks a run that was cut off: a lower bound.")


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
