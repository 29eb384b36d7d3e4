"""``leadline probe``: run the first steps of a command, and extrapolate to the whole job."""

import sys
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.jobs.probe import LIMIT_S, SCHEMA, TIME_S, ProbeLimits, probe, suggested_walltime_s
from leadline.core.documents import to_document
from leadline.core.errors import JobFailed
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.progress import LoopProgress, Probe
from leadline.core.units import format_bytes, format_clock, format_duration, parse_duration_s
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json
from leadline.interfaces.cli.usage_errors import COMMAND_PLACEHOLDER

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline probe -- python train.py --epochs 50
  leadline probe --steps 200 --json -- python -m solver --grid 512
  leadline probe --time 30s --steps-total 100000 -- ./simulate input.nml"""


@app.command("probe", epilog=EXAMPLES)
def probe_command(
    subject: Annotated[
        list[str] | None,
        typer.Argument(metavar=f"-- {COMMAND_PLACEHOLDER}…", help="Your command, after --.", show_default=False),
    ] = None,
    *,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Stop after this many units of work.", show_default="limited by --time"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this much time, start-up not included.",
            show_default=f"{TIME_S:g}s; none with --steps",
        ),
    ] = None,
    limit: Annotated[
        str, typer.Option(metavar="TIME", help="Stop after this much time in any case, start-up included.")
    ] = f"{LIMIT_S / 60:g}m",
    steps_total: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Units of work in the whole job, if the script does not show it.",
            show_default="read from the loops",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the first steps of your unmodified command on this machine, and extrapolate to the whole job.

    The command really runs: files that it writes in its first steps stay.
    """
    limits = ProbeLimits(steps, parse_duration_s(time) if time else None, parse_duration_s(limit))
    probed = probe(subject or [], limits, units_total=steps_total, output=sys.stderr.fileno())
    if json:
        print_json(to_document(probed, SCHEMA))
    else:
        _show(probed)
    if probed.state is JobState.FAILED:
        raise JobFailed(probed.forecast.unknown["elapsed_s"])


def _show(probed: Probe) -> None:
    """Print the observations, the forecast, and how to go on."""
    console = out()
    console.print(_observed_table(probed))
    console.print(_forecast_table(probed))
    for name, reason in probed.forecast.unknown.items():
        console.print(f"{name.removesuffix('_s')} unknown: {reason}", markup=False, soft_wrap=True)
    for sentence in probed.forecast.assumptions:
        console.print(f"assumed: {sentence}", markup=False, soft_wrap=True)
    for sentence in probed.remarks:
        err().print(f"note: {sentence}", markup=False, soft_wrap=True)
    if not probed.finished:
        err().print("note: files that the command wrote in these steps were kept", markup=False, soft_wrap=True)
    if (ask_s := suggested_walltime_s(probed)) is not None:
        words = f"leadline submit --time {format_clock(ask_s)} -- {' '.join(probed.command)}"
        console.print(f"next: {words}", markup=False, soft_wrap=True)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column("what", overflow="fold")
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    return table


def _observed_table(probed: Probe) -> Table:
    progress = probed.progress
    table = _table(f"Observed ({progress.source})" if progress else "Observed")
    table.add_row("elapsed", format_duration(probed.measured["elapsed_s"].value), "")
    if progress is not None:
        if progress.startup_s is not None:
            table.add_row("start-up", format_duration(progress.startup_s), "before the first unit of work")
        for level in progress.levels:
            table.add_row(level.name, f"{level.count} done", _describe_level(level))
        for name, phase_s in progress.phases.items():
            table.add_row(f"phase {name}", format_duration(phase_s), "named by the job")
    if (memory := probed.measured.get("host_memory_bytes")) is not None:
        table.add_row("memory", f"≥ {format_bytes(memory.value)}", "peak so far, a lower bound for the whole job")
    if (memory := probed.measured.get("gpu_memory_bytes")) is not None:
        table.add_row("GPU memory", f"≥ {format_bytes(memory.value)}", "peak so far, a lower bound for the whole job")
    return table


def _describe_level(level: LoopProgress) -> str:
    length = "of an unknown number" if level.length is None else f"of {level.length}"
    passes = " a pass" if level.passes else ""
    where = f", {level.where}" if level.where else ""
    median = f"; median {format_duration(level.median_s)}" if level.median_s is not None else ""
    return f"{length}{passes}{where}{median}"


def _forecast_table(probed: Probe) -> Table:
    forecast = probed.forecast
    table = _table("Extrapolated to the whole job")
    if forecast.unit_s is not None:
        table.add_row(
            "steady unit", format_duration(forecast.unit_s.point), f"{_range(forecast.unit_s)}; {forecast.unit}"
        )
    if forecast.warmup_s:
        table.add_row("first units", f"+ {format_duration(forecast.warmup_s)}", "longer than steady units")
    if forecast.pass_s is not None:
        besides = f"{format_duration(forecast.between_s)} of it outside the units" if forecast.between_s else ""
        table.add_row("outer pass", format_duration(forecast.pass_s), besides)
    if forecast.units is not None:
        passes = f"in {forecast.passes} passes" if forecast.passes else ""
        table.add_row("units", f"{forecast.units}", passes)
    elapsed = "unknown" if forecast.elapsed_s is None else format_duration(forecast.elapsed_s.point)
    table.add_row(
        "elapsed", elapsed, "" if forecast.elapsed_s is None or probed.finished else _range(forecast.elapsed_s)
    )
    return table


def _range(interval: Interval) -> str:
    return f"{interval.level:.0%} range {format_duration(interval.low)} – {format_duration(interval.high)}"
